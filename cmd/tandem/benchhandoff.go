package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/tandem-llm/tandem/bench"
	"github.com/tandem-llm/tandem/bench/move"
	"github.com/tandem-llm/tandem/bench/serve"
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
	SlotSave     string      `name:"slot-save-url" help:"Base URL of a llama-server that runs with --slot-save-path: transfer takes turns with saving its slot 0 and restoring it in another (scripts/peer.sh)." placeholder:"URL"`
	SlotRestore  string      `name:"slot-restore-url" help:"Base URL of that other llama-server, with the same model, --slot-save-path and at least as many cells." placeholder:"URL"`
	Window       int64       `default:"16777216" help:"Credit of one handoff in bytes; at least four pages are always allowed."`
}

func (c *benchHandoffCmd) Run(a *app) error {
	plan, err := c.plan(a)
	if err != nil {
		return err
	}
	if c.TransferMiB < 1 || c.StreamTokens < 1 || c.PageTokens < 1 || c.Threads < 0 || c.Window < 1 {
		return usageError{errors.New("sizes, tokens and threads must be at least 1")}
	}
	threads := c.Threads
	if threads == 0 {
		threads = max(runtime.NumCPU()-1, 1)
	}
	if (c.SlotSave == "") != (c.SlotRestore == "") {
		return usageError{errors.New("--slot-save-url and --slot-restore-url belong together")}
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
		Threads: threads, Lane: wire.LaneMode(c.Lane), Window: c.Window, Plan: plan, Against: c.against(),
		Pair: pair.Options{Command: []string{self, "--config=", pair.PeerCommand}},
	})
	return c.print(a, report, err)
}

// against moves the same sequence through a file of llama-server's.
func (c *benchHandoffCmd) against() *move.Against {
	if c.SlotSave == "" {
		return nil
	}
	slots := &serve.Slots{Save: c.SlotSave, Restore: c.SlotRestore, File: "tandem-bench.bin"}
	return &move.Against{
		Name: "llama-server", Prefill: slots.Prefill,
		Move: func(ctx context.Context) (time.Duration, int64, []bench.Figure, error) {
			m, err := slots.Move(ctx)
			ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			return m.Save + m.Restore, m.Bytes, []bench.Figure{
				{Name: "transfer: saving a slot", Unit: "ms", Value: ms(m.Save)},
				{Name: "transfer: restoring it", Unit: "ms", Value: ms(m.Restore)},
			}, err
		},
	}
}
