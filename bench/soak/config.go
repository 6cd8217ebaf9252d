package soak

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-llm/tandem/bench"
	"github.com/tandem-llm/tandem/engine"
)

// Config says what to soak. Zero fields take the defaults in brackets.
type Config struct {
	Requests    int    // that are handed off [5000]
	Concurrency int    // clients at once [12]
	Seed        uint64 // [1]
	Every       int    // requests for each worker that is killed or drained; negative: nobody is [25]
	Compare     int    // one in so many requests is served colocated too [2]
	Alone       int    // requests that run alone at the end; negative: none [50]
	KeepGoing   bool   // after a failure too
	MostErrors  float64
	Patience    time.Duration // longest wait for the end of a request [3m]
	Rest        time.Duration // longest wait until nothing is held any more [1m]

	Workers []Worker // of the fleet
	Page    int      // tokens of one prefill step on the workers, and of a page
	Context int      // most tokens of a sequence
	// Open opens an engine as the workers do. It is called twice: for the reference, and
	// for what batching makes of the same.
	Open  func() (engine.Engine, error)
	Start Start

	Settings []bench.Setting   // for the report
	Say      func(line string) // gets progress; may be nil
}

// ErrConfig matches errors about a Config.
var ErrConfig = errors.New("soak: bad configuration")

func (c *Config) fill() error {
	c.Requests = cmp.Or(c.Requests, 5000)
	c.Concurrency = cmp.Or(c.Concurrency, 12)
	c.Seed = cmp.Or(c.Seed, 1)
	c.Every = cmp.Or(c.Every, 25)
	c.Compare = cmp.Or(c.Compare, 2)
	c.Alone = cmp.Or(c.Alone, 50)
	c.Patience = cmp.Or(c.Patience, 3*time.Minute)
	c.Rest = cmp.Or(c.Rest, time.Minute)
	if c.MostErrors == 0 {
		c.MostErrors = 0.05
	}
	if c.Say == nil {
		c.Say = func(string) {}
	}
	for _, f := range []struct {
		name string
		bad  bool
	}{
		{"Requests", c.Requests < 0}, {"Concurrency", c.Concurrency < 1}, {"Compare", c.Compare < 1},
		{"Patience", c.Patience < 0}, {"Rest", c.Rest < 0}, {"MostErrors", !(c.MostErrors >= 0 && c.MostErrors <= 1)},
		{"Workers", len(c.Workers) == 0}, {"Page", c.Page < 1}, {"Context", c.Context < 16},
		{"Open", c.Open == nil}, {"Start", c.Start == nil},
	} {
		if f.bad {
			return fmt.Errorf("%w: %s is missing or out of range", ErrConfig, f.name)
		}
	}
	return nil
}
