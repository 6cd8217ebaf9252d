package main

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/tandem-llm/tandem/bench/lane"
	"github.com/tandem-llm/tandem/wire"
)

type benchLaneCmd struct {
	benchFlags

	Measure []wire.LaneMode `default:"tls,quic" enum:"tls,quic,local" help:"Lanes to measure, one after the other: tls, quic, local."`
	PageMiB int             `name:"page-mib" default:"4" help:"Size of a page in MiB."`
	Pages   int             `default:"64" help:"Pages of one run."`
	Pings   int             `default:"1000" help:"Round trips on the idle pair, per turn; 0: none."`
}

func (c *benchLaneCmd) Run(a *app) error {
	plan, err := c.plan(a)
	if err != nil {
		return err
	}
	if c.PageMiB < 1 || c.PageMiB > 256 || c.Pages < 1 || c.Pings < 0 {
		return usageError{fmt.Errorf("--page-mib=%d --pages=%d --pings=%d: use pages of 1 to 256 MiB, at least one", c.PageMiB, c.Pages, c.Pings)}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program, to start it again: %w", err)
	}
	report, err := lane.Run(a.ctx, lane.Config{
		Lanes: c.Measure, PageBytes: int64(c.PageMiB) << 20, Pages: c.Pages, Pings: c.Pings, Plan: plan,
		Child: func() *exec.Cmd { return exec.Command(self, "--config=", "bench", "lane-child") },
	})
	return c.print(a, report, err)
}

type benchLaneChildCmd struct{}

func (c *benchLaneChildCmd) Run(a *app) error { return lane.Child(os.Stdin, a.stdout) }
