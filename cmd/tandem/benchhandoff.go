package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/tandem-llm/tandem/bench/move"
	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/pair"
	"github.com/tandem-llm/tandem/wire"
)

type benchHandoffCmd struct {
	benchFlags

	Parts        []move.Part `default:"pages,snapshot,transfer,stream" enum:"pages,snapshot,transfer,stream" help:"What to measure: pages and snapshot out of and into the engine, the transfer of a large sequence to another process, a prompt whose pages stream while it is computed."`
	Model        string      `help:"GGUF file for transfer and stream; default: seeded models with much state, made in the user's cache." placeholder:"FILE" type:"existingfile"`
	TransferMiB  int         `name:"transfer-mib" default:"1024" help:"Least state to transfer, in MiB."`
	StreamTokens int         `default:"8192" help:"Tokens of the streamed prompt."`
	PageTokens   int         `default:"512" help:"Tokens of one prefill chunk, which is one page of transfer."`
	Threads      int         `default:"0" help:"Threads that compute in this process; 0: the number of cores less one for the other process, which has one."`
	Lane         string      `default:"auto" enum:"auto,quic,tls,local" help:"How bulk state travels: auto, quic, tls or local (docs/wire.md)."`
	Window       int64       `default:"16777216" help:"Credit of one handoff in bytes; at least four pages are always allowed."`
}

func (c *benchHandoffCmd) Run(a *app) error {
	plan, err := c.plan(a)
	if err != nil {
		return err
	}
	if c.TransferMiB < 1 || c.StreamTokens < 1 || c.PageTokens < 1 || c.Threads < 0 || c.Window < 1 {
		return usageError{fmt.Errorf("sizes, tokens and threads must be at least 1")}
	}
	threads := c.Threads
	if threads == 0 {
		threads = max(runtime.NumCPU()-1, 1)
	}
	lib, err := install.Ensure(a.ctx, install.Options{Progress: plan.Say})
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program, to start it again: %w", err)
	}
	report, err := move.Run(a.ctx, move.Config{
		Parts: slices.Compact(slices.Sorted(slices.Values(c.Parts))), Lib: lib.Dir, Model: c.Model,
		TransferBytes: int64(c.TransferMiB) << 20, StreamTokens: c.StreamTokens, PageTokens: c.PageTokens,
		Threads: threads, Lane: wire.LaneMode(c.Lane), Window: c.Window, Plan: plan,
		Pair: pair.Options{Command: []string{self, "--config=", "bench", pair.PeerCommand}},
	})
	return c.print(a, report, err)
}

type benchPeerCmd struct{}

func (c *benchPeerCmd) Run(a *app) error { return pair.Serve(a.ctx, os.Stdin, a.stdout) }
