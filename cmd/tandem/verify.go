package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/pair"
	"github.com/tandem-llm/tandem/verify"
	"github.com/tandem-llm/tandem/wire"
)

type verifyCmd struct {
	Model       string   `help:"GGUF file to verify; for a split model its first part. Without it the four small models that Tandem makes." placeholder:"FILE" type:"existingfile"`
	Quick       bool     `help:"The small matrix: seconds for each of the small models."`
	Lengths     []int    `help:"Prompt lengths in tokens; default: 1024,8192,32768,65536, with --quick 512." placeholder:"N,..."`
	MaxTokens   int      `default:"0" help:"Longest prompt; 0: as long as memory and the model allow."`
	Steps       int      `default:"0" help:"Tokens that either side decodes; 0: 32, with --quick 8."`
	KVType      []string `name:"kv-type" help:"Element types of attention state: f16, bf16, q8_0; default: all." placeholder:"TYPE"`
	Lane        []string `help:"How bulk state travels: tls, quic, local; default: all." placeholder:"LANE"`
	Threads     int      `default:"0" help:"Threads that compute on either side; 0: the number of cores."`
	GPULayers   int      `name:"gpu-layers" default:"-1" help:"Layers to put on an accelerator; -1: all, where there is one."`
	Match       string   `help:"Verify only the cells whose names this regular expression matches." placeholder:"PATTERN"`
	List        bool     `help:"List the cells and what is left out, and verify nothing."`
	JSON        bool     `name:"json" help:"Print the report as JSON."`
	Certificate string   `help:"Where to write the certificate; default: below the user's configuration directory. Only with --model." placeholder:"FILE"`
	Seed        uint64   `default:"1" help:"Seed of prompts and orders."`
}

// errMismatch makes the exit code of a run in which something was not exact.
var errMismatch = errors.New("not everything was exact")

func (c *verifyCmd) Run(a *app) error {
	if err := errors.Join(
		between("max-tokens", c.MaxTokens, 0, most), between("steps", c.Steps, 0, 4096), between("threads", c.Threads, 0, 512),
		between("gpu-layers", c.GPULayers, -1, most),
	); err != nil {
		return err
	}
	models := []string{c.Model}
	if c.Model == "" {
		if c.Certificate != "" {
			return usageError{errors.New("--certificate: certificates are for a model: name it with --model")}
		}
		models = nil
		for _, arch := range tiny.Archs() {
			file, err := tiny.Cached(arch)
			if err != nil {
				return err
			}
			models = append(models, file)
		}
	}
	lib, err := install.Ensure(a.ctx, install.Options{Progress: func(line string) { fmt.Fprintln(a.stderr, line) }})
	if err != nil {
		return err
	}
	reports := []*verify.Report{}
	failed := false
	for _, file := range models {
		r, err := c.verify(a, c.options(lib.Dir, file))
		if r != nil {
			reports = append(reports, r)
			failed = failed || !r.OK()
		}
		if err == nil && !c.List && c.Model != "" {
			err = c.certify(a, r)
		}
		if err != nil {
			return errors.Join(c.print(a, reports), err)
		}
	}
	if err := c.print(a, reports); err != nil {
		return err
	}
	if failed && !c.List {
		return errMismatch
	}
	return nil
}

func (c *verifyCmd) options(lib, file string) verify.Options {
	gpu := c.GPULayers
	if gpu < 0 {
		gpu = 1 << 16
	}
	o := verify.Options{
		Lib: lib, Model: file, Lengths: c.Lengths, MaxTokens: c.MaxTokens, Steps: c.Steps, KVTypes: c.KVType, Threads: c.Threads,
		GPULayers: gpu, Quick: c.Quick, Match: c.Match, Seed: c.Seed, Version: version(),
	}
	for _, l := range c.Lane {
		if l == string(wire.LaneAuto) { // of a configuration file that workers share
			o.Lanes = nil
			break
		}
		o.Lanes = append(o.Lanes, wire.LaneMode(l))
	}
	return o
}

// verify verifies one model, or lists what it would.
func (c *verifyCmd) verify(a *app, o verify.Options) (*verify.Report, error) {
	plan, err := verify.Plan(o)
	if errors.Is(err, verify.ErrOptions) {
		return nil, usageError{err}
	}
	if err != nil || c.List {
		return plan, err
	}
	t := verify.NewTable(a.stderr, isTerminal(a.stderr), "verifying "+o.Model, plan, time.Now)
	o.Progress = t.Progress
	r, err := verify.Run(a.ctx, o)
	t.End()
	return r, err
}

func (c *verifyCmd) print(a *app, reports []*verify.Report) error {
	switch {
	case c.JSON:
		return verify.WriteJSON(a.stdout, reports)
	case c.List:
		for _, r := range reports {
			for i := range r.Cells {
				cell := &r.Cells[i]
				if cell.Status == "" {
					fmt.Fprintln(a.stdout, cell.Name)
				} else {
					fmt.Fprintf(a.stdout, "%s (%s: %s)\n", cell.Name, cell.Status, cell.Reason)
				}
			}
		}
		return nil
	}
	for _, r := range reports {
		if err := verify.WriteSummary(a.stdout, r); err != nil {
			return err
		}
	}
	return nil
}

// certify writes the certificate of a run without a failure.
func (c *verifyCmd) certify(a *app, r *verify.Report) error {
	if !r.OK() {
		return nil
	}
	cert, err := verify.Certify(r)
	if errors.Is(err, verify.ErrCertificate) {
		fmt.Fprintln(a.stderr, "no certificate:", err)
		return nil
	}
	if err != nil {
		return err
	}
	path := c.Certificate
	if path == "" {
		if path, err = verify.CertificatePath(r.Model); err != nil {
			return err
		}
	}
	if err := cert.Write(path); err != nil {
		return err
	}
	fmt.Fprintln(a.stderr, "certificate:", path)
	return nil
}

// isTerminal reports whether lines can be redrawn on w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || slices.Contains([]string{"", "dumb"}, os.Getenv("TERM")) {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// pairPeerCmd is the other process of verify and of bench handoff.
type pairPeerCmd struct{}

func (*pairPeerCmd) Run(a *app) error { return pair.Serve(a.ctx, os.Stdin, os.Stdout) }
