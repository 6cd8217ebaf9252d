package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/place"
	"github.com/tandem-llm/tandem/route"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/telemetry/otlp"
)

// Mode says how requests may be served; see package place.
type Mode = place.Mode

// Modes.
const (
	Auto          = place.Auto
	Disaggregated = place.Disaggregated
	Colocated     = place.Colocated
)

// ParseMode reads a mode's name.
func ParseMode(s string) (Mode, error) {
	m, err := place.ParseMode(s)
	if err != nil {
		return "", fmt.Errorf("gateway: %w", err)
	}
	return m, nil
}

// ParseOrder reads the name of a handoff's order.
func ParseOrder(s string) (handoff.Policy, error) {
	for _, p := range []handoff.Policy{handoff.DestinationFirst, handoff.SourceFirst} {
		if s == p.String() {
			return p, nil
		}
	}
	return 0, errors.New("gateway: unknown order: use destination-first or source-first")
}

// ParseRetry reads the name of a retry policy.
func ParseRetry(s string) (handoff.Retry, error) {
	var r handoff.Retry
	if r.UnmarshalText([]byte(s)) != nil {
		return 0, errors.New("gateway: unknown retry policy: use recompute, rebind or none")
	}
	return r, nil
}

// Config is everything a gateway is told. Zero values mean the defaults that the comments name.
type Config struct {
	Name        string // the gateway's name on the bus; required
	Incarnation uint64 // grows with every start; required
	Version     string

	// Model is the id that clients ask for and that workers announce; required.
	Model string
	// Vocab is the model's vocabulary, safe for concurrent use; required.
	Vocab engine.Vocab
	// Template is the chat template; default: the vocabulary's own. Without any, chat requests are
	// refused.
	Template string
	// Tokenizer, when set, is the vocabulary's digest: workers with another one are not used.
	Tokenizer state.Digest

	Mode Mode // default Auto
	// Order of handoffs: DestinationFirst, the default, streams while the prompt is computed; SourceFirst
	// reserves at the destination when the prompt is done.
	Order handoff.Policy
	// Prefill and Decode say how a worker of the role is chosen; Prefill also that of a colocated
	// request. Default: the least loaded.
	Prefill, Decode route.Policy

	Keys *Keys // nil: no authentication, one tenant

	MaxActive    int   // most samples at once; default 256
	MaxQueue     int   // most HTTP requests waiting behind them; default 1024
	MaxPerTenant int   // most samples of one tenant, waiting ones included; default unlimited
	MaxBody      int64 // bytes of a request body; default 8 MiB
	MaxBuffered  int   // bytes of an answer that a client has not read; default 1 MiB
	// DefaultMaxTokens bounds answers of chat requests that give no limit; default: what the context
	// allows.
	DefaultMaxTokens int

	Retries        int           // attempts after the first; default 3, negative: none
	Retry          handoff.Retry // what failed attempts are answered with; default RetryRecompute
	RequestTimeout time.Duration // life of a request after admission; default 10 min
	QueueTimeout   time.Duration // longest wait for admission; default 1 min
	Patience       time.Duration // placement to commit; default half of RequestTimeout
	PlaceWait      time.Duration // wait for a worker to come back; default 15 s
	CommandWait    time.Duration // until a live worker's missing answer fails the attempt; default 30 s
	BusWait        time.Duration // until a lost bus fails requests; default 10 s
	WorkerTimeout  time.Duration // silence after which a worker is taken for gone; default 10 s
	WriteTimeout   time.Duration // one write to a client; default 30 s
	ReadTimeout    time.Duration // a request's header, and its body; default 30 s
	ShutdownGrace  time.Duration // for requests in flight at shutdown; default 30 s

	SLO telemetry.SLO // what goodput is judged by; default: nothing but answers that came to their end

	Metrics *telemetry.Gateway // default: a new one
	Traces  *otlp.Exporter     // nil: off; whoever made it closes it after Run
	Events  *telemetry.Events  // nil: off
	Log     *slog.Logger       // default: discards
}

// ErrConfig is wrapped by every error about a Config.
var ErrConfig = errors.New("bad gateway configuration")

// normalize checks the configuration and fills in defaults.
func (c *Config) normalize() error {
	switch {
	case c.Name == "":
		return fmt.Errorf("%w: Name is empty", ErrConfig)
	case c.Incarnation == 0:
		return fmt.Errorf("%w: Incarnation is 0: use a number that grows with every start, such as Unix milliseconds", ErrConfig)
	case c.Model == "":
		return fmt.Errorf("%w: Model is empty", ErrConfig)
	case c.Vocab == nil:
		return fmt.Errorf("%w: Vocab is missing", ErrConfig)
	}
	// A negative limit would refuse every request, a negative time would end none.
	for _, v := range []struct {
		name     string
		negative bool
	}{
		{"MaxActive", c.MaxActive < 0},
		{"MaxQueue", c.MaxQueue < 0},
		{"MaxPerTenant", c.MaxPerTenant < 0},
		{"MaxBody", c.MaxBody < 0},
		{"MaxBuffered", c.MaxBuffered < 0},
		{"DefaultMaxTokens", c.DefaultMaxTokens < 0},
		{"RequestTimeout", c.RequestTimeout < 0},
		{"QueueTimeout", c.QueueTimeout < 0},
		{"Patience", c.Patience < 0},
		{"PlaceWait", c.PlaceWait < 0},
		{"CommandWait", c.CommandWait < 0},
		{"BusWait", c.BusWait < 0},
		{"WorkerTimeout", c.WorkerTimeout < 0},
		{"WriteTimeout", c.WriteTimeout < 0},
		{"ReadTimeout", c.ReadTimeout < 0},
		{"ShutdownGrace", c.ShutdownGrace < 0},
		{"SLO.TTFT", c.SLO.TTFT < 0},
		{"SLO.TPOT", c.SLO.TPOT < 0},
	} {
		if v.negative {
			return fmt.Errorf("%w: %s is negative: leave it out for its default", ErrConfig, v.name)
		}
	}
	if c.Mode == "" {
		c.Mode = Auto
	}
	if _, err := ParseMode(string(c.Mode)); err != nil {
		return fmt.Errorf("%w: Mode: %w", ErrConfig, err)
	}
	defaultTo(&c.Order, handoff.DestinationFirst)
	if _, err := ParseOrder(c.Order.String()); err != nil {
		return fmt.Errorf("%w: Order: %w", ErrConfig, err)
	}
	for _, p := range []route.Policy{c.Prefill, c.Decode} {
		if _, err := route.ParsePolicy(p.String()); err != nil {
			return fmt.Errorf("%w: Prefill or Decode: %w", ErrConfig, err)
		}
	}
	defaultTo(&c.Retry, handoff.RetryRecompute)
	if _, err := ParseRetry(c.Retry.String()); err != nil {
		return fmt.Errorf("%w: Retry: %w", ErrConfig, err)
	}
	defaultTo(&c.Template, c.Vocab.ChatTemplate())
	defaultTo(&c.MaxActive, 256)
	defaultTo(&c.MaxQueue, 1024)
	defaultTo(&c.MaxBody, 8<<20)
	defaultTo(&c.MaxBuffered, 1<<20)
	defaultTo(&c.Retries, 3)
	c.Retries = min(max(c.Retries, 0), 255)
	defaultTo(&c.RequestTimeout, 10*time.Minute)
	defaultTo(&c.QueueTimeout, time.Minute)
	// Before the commit lie the wait for a slot and all of prefill, which takes minutes where a long
	// prompt meets a slow worker. Giving up costs the work and the place in the queue.
	defaultTo(&c.Patience, c.RequestTimeout/2)
	defaultTo(&c.PlaceWait, 15*time.Second)
	// A worker answers between two steps, and one chunk of a large model may take a processor many
	// seconds. A worker that is gone is noticed by its silence, long before.
	defaultTo(&c.CommandWait, 30*time.Second)
	defaultTo(&c.BusWait, 10*time.Second)
	defaultTo(&c.WorkerTimeout, 10*time.Second)
	defaultTo(&c.WriteTimeout, 30*time.Second)
	defaultTo(&c.ReadTimeout, 30*time.Second)
	defaultTo(&c.ShutdownGrace, 30*time.Second)
	if c.Metrics == nil {
		c.Metrics = telemetry.NewGateway(c.Version)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

func defaultTo[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
