package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/bench"
	"github.com/tandem-llm/tandem/bench/serve"
)

type benchCmd struct {
	Handoff   benchHandoffCmd   `cmd:"" help:"Measure a model's state: out of and into the engine, to another process, and while the prompt is computed."`
	Lane      benchLaneCmd      `cmd:"" help:"Measure the data plane between two processes against bare connections of the same kind."`
	Serve     benchServeCmd     `cmd:"" help:"Drive an OpenAI-compatible endpoint and measure what a client sees; with --compare-url two endpoints in turn."`
	Prefix    benchPrefixCmd    `cmd:"" help:"Measure what an endpoint's prefix cache saves: prompts that begin as an earlier one against new ones, in turn."`
	Soak      benchSoakCmd      `cmd:"" help:"Keep a fleet of real processes under a random load, kill its workers, and hold every answer against an idle engine."`
	LaneChild benchLaneChildCmd `cmd:"" hidden:"" help:"The other process of 'bench lane'."`
}

// benchFlags are those of every benchmark.
type benchFlags struct {
	Runs        int           `default:"5" help:"Turns that count; in each, everything that is compared runs once."`
	Warmup      int           `default:"1" help:"Turns before them that do not count."`
	Pause       time.Duration `default:"300ms" help:"Rest before each run, in which what ran last comes to rest."`
	JSON        bool          `name:"json" help:"Print the report as JSON."`
	RequireBars bool          `help:"Exit with 1 if a bar is missed."`
}

func (f *benchFlags) plan(a *app) (bench.Plan, error) {
	if f.Runs < 1 || f.Warmup < 0 {
		return bench.Plan{}, usageError{fmt.Errorf("--runs=%d --warmup=%d: at least one turn must count", f.Runs, f.Warmup)}
	}
	return bench.Plan{Runs: f.Runs, Warmup: f.Warmup, Pause: f.Pause, Say: func(line string) { fmt.Fprintln(a.stderr, line) }}, nil
}

// print writes the report, also that of an interrupted or failed measurement, and
// returns what the command ends with.
func (f *benchFlags) print(a *app, report *bench.Report, err error) error {
	if report == nil {
		return err
	}
	write := report.WriteTable
	if f.JSON {
		write = report.WriteJSON
	}
	if werr := write(a.stdout); werr != nil && err == nil {
		err = werr
	}
	if missed := report.Missed(); err == nil && f.RequireBars && len(missed) > 0 {
		err = fmt.Errorf("missed bars: %s", strings.Join(missed, "; "))
	}
	return err
}

type benchServeCmd struct {
	benchFlags

	URL              string   `name:"url" required:"" help:"Endpoint, as far as the paths of the API: http://127.0.0.1:8080/v1." placeholder:"URL"`
	Name             string   `help:"Its name in the report; default: host and port." placeholder:"NAME"`
	ModelName        string   `help:"Model to ask for; default: the first that the endpoint lists." placeholder:"NAME"`
	APIKey           string   `name:"api-key" help:"Key to send. Other users of this machine see flags; they do not see the environment." placeholder:"KEY"`
	Header           []string `sep:"none" help:"Header to send, as 'Tandem-Mode: colocated'; may be repeated." placeholder:"HEADER"`
	CompareURL       string   `name:"compare-url" help:"Endpoint to compare with." placeholder:"URL"`
	CompareName      string   `help:"Its name in the report." placeholder:"NAME"`
	CompareModelName string   `help:"Model to ask it for." placeholder:"NAME"`
	CompareAPIKey    string   `name:"compare-api-key" help:"Key to send to it." placeholder:"KEY"`
	CompareHeader    []string `sep:"none" help:"Header to send to it; may be repeated." placeholder:"HEADER"`

	Concurrency int           `default:"1" help:"Closed loop: streams at once, each asking again when it has its answer."`
	Rate        float64       `default:"0" help:"Open loop: requests per second that come whether or not earlier ones are answered; latency counts from when each was due. 0: closed loop."`
	Arrivals    string        `default:"poisson" enum:"poisson,constant" help:"Gaps between arrivals of an open loop: poisson or constant."`
	MaxInFlight int           `default:"1024" help:"Open loop: most requests at once; later ones wait, which counts as latency."`
	Requests    int           `default:"32" help:"Requests of one run."`
	Duration    time.Duration `default:"0s" help:"No request begins later in a run than this; 0: no bound."`
	Timeout     time.Duration `default:"5m" help:"Longest wait for a whole answer."`

	Endpoint     string `default:"completions" enum:"completions,chat" help:"What to ask: completions or chat."`
	PromptLength string `default:"512" help:"Words of a prompt, or tokens with --prompt-tokens: 512, uniform:128-1024 or lognormal:512:0.6 (median, sigma)."`
	OutputLength string `default:"128" help:"Tokens of an answer, in the same manner."`
	PromptTokens bool   `help:"Send prompts as arrays of random token ids, so that their length in tokens is known."`
	Vocab        int    `default:"256" help:"Token ids of --prompt-tokens are below this."`
	IgnoreEOS    bool   `name:"ignore-eos" default:"true" negatable:"" help:"Ask to generate past the end, so that answers have exactly their length; --no-ignore-eos for servers that refuse the field."`
	Seed         uint64 `default:"1" help:"Seed of prompts, lengths and arrivals."`

	SLOTTFT time.Duration `name:"slo-ttft" default:"0s" help:"Time to the first token that counts as good; 0: any."`
	SLOTPOT time.Duration `name:"slo-tpot" default:"0s" help:"Time per later token that counts as good; 0: any."`
	Bar     float64       `default:"0.95" help:"Closed loop with --compare-url: least ratio of decode tokens/s, or of prefill tokens/s where answers have one token; 0: no bar."`
}

func (c *benchServeCmd) Run(a *app) error {
	plan, err := c.plan(a)
	if err != nil {
		return err
	}
	cfg := serve.Config{Plan: plan, Bar: c.Bar}
	if cfg.Targets, err = c.targets(); err != nil {
		return usageError{err}
	}
	if cfg.Load, err = c.load(); err != nil {
		return usageError{err}
	}
	report, err := serve.Run(a.ctx, cfg)
	return c.print(a, report, err)
}

func (c *benchServeCmd) targets() ([]serve.Target, error) {
	one, err := target("--url", c.URL, c.Name, c.ModelName, c.APIKey, c.Header)
	if err != nil {
		return nil, err
	}
	if c.CompareURL == "" {
		if c.CompareName != "" || c.CompareModelName != "" || c.CompareAPIKey != "" || len(c.CompareHeader) > 0 {
			return nil, errors.New("the --compare flags need --compare-url")
		}
		return []serve.Target{one}, nil
	}
	two, err := target("--compare-url", c.CompareURL, c.CompareName, c.CompareModelName, c.CompareAPIKey, c.CompareHeader)
	return []serve.Target{one, two}, err
}

func target(flag, address, name, model, key string, headers []string) (serve.Target, error) {
	t := serve.Target{Name: name, URL: address, Model: model, Key: key, Header: http.Header{}}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return t, fmt.Errorf("%s must be like http://HOST:PORT/v1", flag)
	}
	for _, h := range headers {
		name, value, ok := strings.Cut(h, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return t, fmt.Errorf("header %q must be like 'Name: value'", name)
		}
		t.Header.Add(name, strings.TrimSpace(value))
	}
	return t, nil
}

func (c *benchServeCmd) load() (serve.Load, error) {
	l := serve.Load{
		Concurrency: c.Concurrency, Rate: c.Rate, Arrivals: serve.Arrivals(c.Arrivals), MaxInFlight: c.MaxInFlight,
		Requests: c.Requests, Duration: c.Duration, Timeout: c.Timeout,
		Chat: c.Endpoint == "chat", IgnoreEOS: c.IgnoreEOS, Seed: c.Seed,
		SLO: serve.SLO{TTFT: c.SLOTTFT, TPOT: c.SLOTPOT},
	}
	if c.PromptTokens {
		l.Vocab = c.Vocab
	}
	var err error
	if l.Prompt, err = serve.ParseLength(c.PromptLength); err != nil {
		return l, fmt.Errorf("--prompt-length: %w", err)
	}
	if l.Output, err = serve.ParseLength(c.OutputLength); err != nil {
		return l, fmt.Errorf("--output-length: %w", err)
	}
	return l, l.Check()
}
