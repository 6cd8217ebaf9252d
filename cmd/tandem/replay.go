package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/replay"
	replayfleet "github.com/tandem-llm/tandem/replay/fleet"
	"github.com/tandem-llm/tandem/replay/report"
	"github.com/tandem-llm/tandem/replay/sweep"
	"github.com/tandem-llm/tandem/workload"
	"go.yaml.in/yaml/v3"
)

type replayCmd struct {
	Run    replayRunCmd    `cmd:"" default:"withargs" help:"Replay one trace or generated workload and report on it."`
	Sweep  replaySweepCmd  `cmd:"" help:"Replay on a grid of fleets, on all cores, or search the goodput of each."`
	Trace  replayTraceCmd  `cmd:"" help:"Describe a trace or a generated workload: how many requests, how often, how long, and what their prompts share."`
	Models replayModelsCmd `cmd:"" help:"List the models, hardware and published step times that fleets can name."`
}

// replayInput is what a replay reads.
type replayInput struct {
	Trace    string        `help:"Trace to replay, in gzip or not; -: standard input." placeholder:"FILE"`
	Format   string        `default:"auto" enum:"auto,mooncake,azure,jsonl,burstgpt" help:"Format of the trace: auto, mooncake, azure, jsonl or burstgpt."`
	Workload string        `help:"Generate requests instead, as in 'poisson rate=40 input=512 output=normal:128:64:1:256 requests=10000'." placeholder:"SPEC"`
	Speedup  float64       `default:"0" help:"Make time in the trace run so many times as fast; 0: as the fleet says, or 1."`
	From     time.Duration `default:"0s" help:"Leave out what arrives before."`
	To       time.Duration `default:"0s" help:"Leave out what arrives from then on; 0: to the end."`
	Skip     int           `default:"0" help:"Leave out so many requests."`
	Limit    int           `default:"0" help:"Replay so many requests; 0: all."`
	Strict   bool          `help:"Stop at the first malformed line of the trace, instead of counting it."`
	Reorder  int           `default:"0" help:"Put the trace in order of arrival, over so many requests at a time."`
	Seed     uint64        `default:"0" help:"Seed of everything random; 0: as the fleet and the workload say."`
	Set      []string      `help:"Give a field of the fleet a value, as in pools.decode.count=4; may be repeated." placeholder:"PATH=VALUE" sep:"none"`

	SLOTTFT       time.Duration `name:"slo-ttft" default:"0s" help:"Longest time to the first token of a good request; 0: any."`
	SLOTTST       time.Duration `name:"slo-ttst" default:"0s" help:"Longest time from the first to the second token of a good request; 0: any."`
	SLOTPOT       time.Duration `name:"slo-tpot" default:"0s" help:"Longest mean time per token after the first of a good request; 0: any."`
	SLOE2E        time.Duration `name:"slo-e2e" env:"TANDEM_SLO_E2E" default:"0s" help:"Longest time to the last token of a good request; 0: any."`
	SLOAttainment float64       `name:"slo-attainment" default:"0.9" help:"Part of the requests that must be good for the run to meet its SLO."`
}

type replayRunCmd struct {
	replayInput    `embed:""`
	JSON           bool   `name:"json" help:"Print the report as JSON."`
	HTML           string `name:"html" help:"Write the report as one page with charts that needs nothing else." placeholder:"FILE"`
	RequestsOut    string `help:"Write one line of JSON for each request, in the order of their ends." placeholder:"FILE"`
	TraceLifecycle string `help:"Write lifecycle events as JSON lines, in the format of the live hosts." placeholder:"FILE"`
	StepByStep     bool   `hidden:"" help:"Take every step by itself."`
}

// Run replays one trace.
func (c *replayRunCmd) Run(a *app) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	cfg, err := c.fleet(a.config)
	if err != nil {
		return err
	}
	src, err := c.source(cfg)
	if err != nil {
		return err
	}
	defer src.close()
	opt := replay.Options{StepByStep: c.StepByStep, Report: c.options(a.config)}
	for _, out := range []struct {
		flag, path string
		to         *io.Writer
	}{{"--requests-out", c.RequestsOut, &opt.Report.PerRequest}, {"--trace-lifecycle", c.TraceLifecycle, &opt.Lifecycle}} {
		if out.path == "" {
			continue
		}
		f, err := os.Create(out.path)
		if err != nil {
			return usageError{fmt.Errorf("%s: %w", out.flag, err)}
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		*out.to = f
	}
	p := newReplayProgress(a.stderr)
	opt.Progress = p.show
	res, err := replay.Run(a.ctx, cfg, src, opt)
	p.end()
	if err != nil {
		return err
	}
	src.complain(a.stderr)
	if c.HTML != "" {
		if err = writeFile(c.HTML, res.HTML); err != nil {
			err = fmt.Errorf("--html: %w", err) // the report is shown all the same
		}
	}
	if c.JSON {
		enc := json.NewEncoder(a.stdout)
		enc.SetIndent("", "  ")
		return errors.Join(err, enc.Encode(res))
	}
	return errors.Join(err, res.Table(a.stdout))
}

// writeFile writes what write gives to a new file.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// maxFleetFile bounds the files that a fleet names.
const maxFleetFile = 4 << 20

// readNear reads a file that another one names, relative to that one.
func readNear(from string) replayfleet.Files {
	return func(name string) ([]byte, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(from), name)
		}
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return io.ReadAll(io.LimitReader(f, maxFleetFile))
	}
}

// readFleet reads a description as maps and lists.
func readFleet(path string) (doc any, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, replayfleet.MaxBytes+1))
	if err != nil {
		return nil, err
	}
	// The strict reading follows; this one names the line of what is no YAML at all, and
	// of fields that are unknown.
	if _, err := replayfleet.Parse(raw, readNear(path)); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return doc, yaml.Unmarshal(raw, &doc)
}

// document reads the description of the fleet with the changes of --set. Where
// several fleets are compared, taken notes which of them some fleet has taken, and
// what does not fit this one is left out; it is nil where there is one.
func (in *replayInput) document(path string, taken []bool) (any, error) {
	doc, err := readFleet(path)
	if err != nil {
		return nil, usageError{fmt.Errorf("--config: %w", err)}
	}
	for i, text := range in.Set {
		field, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, usageError{fmt.Errorf("--set %s: write it as PATH=VALUE", text)}
		}
		changed, err := sweep.Set(doc, field, value)
		switch {
		case err == nil:
			doc = changed
			if taken != nil {
				taken[i] = true
			}
		case taken == nil || !errors.Is(err, sweep.ErrPath):
			return nil, usageError{fmt.Errorf("--set: %w", err)}
		}
	}
	return doc, nil
}

// check refuses values that nothing can be done with.
func (in *replayInput) check() error {
	for _, d := range []struct {
		flag string
		of   time.Duration
	}{
		{"from", in.From}, {"to", in.To}, {"slo-ttft", in.SLOTTFT}, {"slo-ttst", in.SLOTTST}, {"slo-tpot", in.SLOTPOT}, {"slo-e2e", in.SLOE2E},
	} {
		if err := between(d.flag, d.of, 0, replayfleet.MaxTime); err != nil {
			return err
		}
	}
	return errors.Join(between("slo-attainment", in.SLOAttainment, 1e-6, 1), between("speedup", in.Speedup, 0, 1e9),
		between("skip", in.Skip, 0, math.MaxInt), between("limit", in.Limit, 0, math.MaxInt), between("reorder", in.Reorder, 0, math.MaxInt))
}

var errNoFleet = errors.New("--config is missing: name a fleet, such as examples/replay/colocated.yaml")

// fleet reads the description of the fleet, with the changes that flags make.
func (in *replayInput) fleet(path string) (*replayfleet.Config, error) {
	if path == "" {
		return nil, usageError{errNoFleet}
	}
	doc, err := in.document(path, nil)
	if err != nil {
		return nil, err
	}
	cfg, err := replayfleet.FromAny(doc, readNear(path))
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", path, err)}
	}
	if in.Seed != 0 {
		cfg.Seed = in.Seed
	}
	return cfg, nil
}

// replaySource is what is replayed.
type replaySource struct {
	workload.Source
	reader *workload.Reader // of a trace, else nil
	file   *os.File
	name   string
}

func (s *replaySource) close() {
	if s.file != nil {
		s.file.Close()
	}
}

// complain says which lines were left out.
func (s *replaySource) complain(w io.Writer) {
	if s.reader == nil {
		return
	}
	m := s.reader.Malformed()
	if m.Lines == 0 {
		return
	}
	fmt.Fprintf(w, "tandem: %s: %d malformed lines were left out (--strict stops at them)\n", s.name, m.Lines)
	for i := range m.First {
		fmt.Fprintf(w, "tandem: %v\n", &m.First[i])
	}
}

// source opens what is replayed.
func (in *replayInput) source(cfg *replayfleet.Config) (*replaySource, error) {
	s := &replaySource{name: in.Trace}
	switch {
	case in.Trace != "" && in.Workload != "":
		return nil, usageError{errors.New("--trace and --workload are both given")}
	case in.Trace != "":
		if err := s.open(in); err != nil {
			return nil, err
		}
	default:
		g, err := in.generator(cfg)
		if err != nil {
			return nil, usageError{err}
		}
		s.Source = g
	}
	if in.From > 0 || in.To > 0 || in.Skip > 0 || in.Limit > 0 {
		s.Source = workload.Cut(s.Source, workload.Window{From: timed.Of(in.From), To: timed.Of(in.To), Skip: in.Skip, Limit: in.Limit})
	}
	speed := cfg.Speedup
	if in.Speedup > 0 {
		speed = in.Speedup
	}
	if speed != 1 {
		s.Source = workload.Speed(s.Source, speed)
	}
	return s, nil
}

// open opens the trace.
func (s *replaySource) open(in *replayInput) (err error) {
	var r io.Reader = os.Stdin
	if in.Trace != "-" {
		if s.file, err = os.Open(in.Trace); err != nil {
			return usageError{fmt.Errorf("--trace: %w", err)}
		}
		r = s.file
	}
	o := workload.ReadOptions{Strict: in.Strict, Reorder: in.Reorder}
	if in.Format != "auto" {
		o.Format = workload.Format(in.Format)
	}
	if s.reader, err = workload.Read(r, o); err != nil {
		s.close()
		return fmt.Errorf("%s: %w", in.Trace, err)
	}
	s.Source = s.reader
	return nil
}

// generator makes requests as a flag or the fleet's file says.
func (in *replayInput) generator(cfg *replayfleet.Config) (*workload.Generator, error) {
	var spec workload.Spec
	switch {
	case in.Workload != "":
		var err error
		if spec, err = workload.ParseSpec(in.Workload); err != nil {
			return nil, fmt.Errorf("--workload: %w", err)
		}
	case cfg.Workload != nil:
		spec = *cfg.Workload
	default:
		return nil, errors.New("nothing to replay: give --trace or --workload, or a workload in the fleet's file")
	}
	if in.Seed != 0 {
		spec.Seed = in.Seed
	}
	return workload.New(spec)
}

// options are those of the report that flags decide.
func (in *replayInput) options(config string) report.Options {
	what := in.Trace
	if what == "" {
		what = cmp.Or(in.Workload, "as the fleet's file says")
	}
	return report.Options{
		Title:    filepath.Base(config),
		Settings: []report.Setting{{Name: "fleet", Value: filepath.Base(config)}, {Name: "requests", Value: what}},
		SLO: report.SLO{
			TTFT: timed.Of(in.SLOTTFT), TTST: timed.Of(in.SLOTTST), TPOT: timed.Of(in.SLOTPOT), E2E: timed.Of(in.SLOE2E),
			Attainment: in.SLOAttainment,
		},
	}
}

// replayProgress shows how far a long run is: in place on a terminal, else a line
// now and then.
type replayProgress struct {
	w        io.Writer
	terminal bool
	every    time.Duration
	last     time.Time
	shown    bool
}

func newReplayProgress(w io.Writer) *replayProgress {
	p := &replayProgress{w: w, terminal: isTerminal(w), every: 10 * time.Second, last: time.Now()}
	if p.terminal {
		p.every = 500 * time.Millisecond
	}
	return p
}

func (p *replayProgress) show(at timed.Time, arrived, ended int64) {
	if time.Since(p.last) < p.every {
		return
	}
	p.last, p.shown = time.Now(), true
	text := fmt.Sprintf("replayed %v: %d requests arrived, %d ended", at.Duration().Round(time.Second), arrived, ended)
	if p.terminal {
		fmt.Fprintf(p.w, "\r\x1b[K%s", text)
	} else {
		fmt.Fprintln(p.w, text)
	}
}

func (p *replayProgress) end() {
	if p.shown && p.terminal {
		fmt.Fprintln(p.w)
	}
}

type replayModelsCmd struct{}

// Run lists what fleets can name.
func (c *replayModelsCmd) Run(a *app) error {
	fmt.Fprintln(a.stdout, "models:")
	for _, m := range timed.Models() {
		fmt.Fprintf(a.stdout, "  %s\n      %s\n", m.String(), m.Source)
	}
	fmt.Fprintln(a.stdout, "hardware:")
	for _, h := range timed.Hardwares() {
		fmt.Fprintf(a.stdout, "  %s\n      %s\n", h.String(), h.Source)
	}
	fmt.Fprintln(a.stdout, "presets of published step times:")
	for _, p := range timed.Presets() {
		fmt.Fprintf(a.stdout, "  %s\n      %s\n", p.Name, p.Source)
	}
	return nil
}
