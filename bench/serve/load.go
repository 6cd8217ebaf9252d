package serve

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Target is one endpoint.
type Target struct {
	Name   string      // in the report
	URL    string      // what the paths of the API are appended to, as in http://127.0.0.1:8080/v1
	Model  string      // empty: the first that GET URL/models lists
	Key    string      // sent as a bearer token unless empty; never part of a report
	Header http.Header // sent with every request
}

// Arrivals is the process by which requests of an open loop come.
type Arrivals string

// Arrival processes.
const (
	Poisson  Arrivals = "poisson"  // exponential gaps, as of independent users
	Constant Arrivals = "constant" // equal gaps
)

// Load is what one run asks of a target.
type Load struct {
	Concurrency int      // closed loop: streams at once; used while Rate is 0
	Rate        float64  // open loop: mean arrivals per second
	Arrivals    Arrivals // open loop; default Poisson
	MaxInFlight int      // open loop: most requests at once, later ones wait and are late; default 1024

	Requests int           // of one run, at least 1
	Duration time.Duration // no request begins later in a run than this; 0: no bound
	Timeout  time.Duration // of one request, default 5 min

	Prompt    Length // in words, or in tokens with Vocab
	Output    Length // most tokens to generate
	Chat      bool   // POST /chat/completions; else /completions
	Vocab     int    // above 0: prompts are arrays of random token ids below it (completions only)
	IgnoreEOS bool   // ask to generate past the end, so that every answer has exactly Output tokens
	Seed      uint64 // of prompts, lengths and arrivals; every run has its own, the same on all targets

	SLO SLO
}

// SLO is what a request must meet to count as goodput. A zero field does not limit.
type SLO struct {
	TTFT time.Duration // time to the first token
	TPOT time.Duration // mean time per token after the first
}

// Check returns an error that says which field is wrong, if one is.
func (l Load) Check() error {
	_, err := l.fill()
	return err
}

func (l Load) fill() (Load, error) {
	if l.Arrivals == "" {
		l.Arrivals = Poisson
	}
	if l.MaxInFlight == 0 {
		l.MaxInFlight = 1024
	}
	if l.Timeout == 0 {
		l.Timeout = 5 * time.Minute
	}
	switch {
	case l.Rate < 0 || math.IsNaN(l.Rate) || math.IsInf(l.Rate, 0):
		return l, fmt.Errorf("a rate of %v arrivals per second: use a positive number, or 0 for a closed loop", l.Rate)
	case l.Rate == 0 && l.Concurrency < 1:
		return l, fmt.Errorf("a closed loop of %d streams: use at least 1", l.Concurrency)
	case l.Rate > 0 && l.MaxInFlight < 1:
		return l, fmt.Errorf("at most %d requests in flight: use at least 1", l.MaxInFlight)
	case l.Requests < 1:
		return l, fmt.Errorf("%d requests in a run: use at least 1", l.Requests)
	case l.Timeout < 0 || l.Duration < 0 || l.SLO.TTFT < 0 || l.SLO.TPOT < 0:
		return l, fmt.Errorf("a negative duration")
	case l.Vocab < 0:
		return l, fmt.Errorf("a vocabulary of %d: use the number of token ids to draw prompts from", l.Vocab)
	case l.Vocab > 0 && l.Chat:
		return l, fmt.Errorf("chats are text: token ids need the completions endpoint")
	case l.Arrivals != Poisson && l.Arrivals != Constant:
		return l, fmt.Errorf("arrivals %q: use %s or %s", l.Arrivals, Poisson, Constant)
	case l.Prompt.mean < 1 || l.Output.mean < 1:
		return l, fmt.Errorf("prompts and answers need a length of at least 1")
	}
	return l, nil
}

// inFlight is the most requests at once.
func (l Load) inFlight() int {
	if l.Rate > 0 {
		return l.MaxInFlight
	}
	return l.Concurrency
}

func (l Load) describe() string {
	if l.Rate > 0 {
		return fmt.Sprintf("open loop, %s arrivals, %v requests/s", l.Arrivals, l.Rate)
	}
	return fmt.Sprintf("closed loop, %d streams", l.Concurrency)
}

// maxLength bounds lengths: longer requests than any server takes.
const maxLength = 1 << 21

// Length is a distribution of lengths. The zero value is none; see [ParseLength].
type Length struct {
	text      string
	low, high int     // uniform, or the bounds of lognormal
	mean      float64 // of fixed and uniform; the median of lognormal
	sigma     float64 // of lognormal: standard deviation of the logarithm
}

// String returns what ParseLength took.
func (l Length) String() string { return l.text }

// Fixed is the distribution with one value, at least 1.
func Fixed(n int) Length {
	return Length{text: strconv.Itoa(n), low: n, high: n, mean: float64(n)}
}

// ParseLength reads a distribution: "512" always, "uniform:128-1024" any of these
// equally, "lognormal:512:0.6" with this median and standard deviation of the
// natural logarithm, cut at 1 and at 16 times the median.
func ParseLength(s string) (Length, error) {
	usage := fmt.Errorf("length %q: write 512, uniform:128-1024 or lognormal:512:0.6 (median, sigma), within 1 and %d", s, maxLength)
	l := Length{text: s}
	kind, rest, ok := strings.Cut(s, ":")
	if !ok {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > maxLength {
			return Length{}, usage
		}
		return Fixed(n), nil
	}
	var err, err2 error
	switch kind {
	case "uniform":
		low, high, _ := strings.Cut(rest, "-")
		l.low, err = strconv.Atoi(low)
		l.high, err2 = strconv.Atoi(high)
		l.mean = (float64(l.low) + float64(l.high)) / 2
	case "lognormal":
		median, sigma, _ := strings.Cut(rest, ":")
		n := 0
		n, err = strconv.Atoi(median)
		l.sigma, err2 = strconv.ParseFloat(sigma, 64)
		if !(l.sigma >= 0 && l.sigma <= 10) {
			return Length{}, usage
		}
		l.mean, l.low, l.high = float64(n), 1, min(16*n, maxLength)
		if n < 1 {
			return Length{}, usage
		}
		if l.sigma == 0 {
			l.low, l.high = n, n
		}
	default:
		return Length{}, usage
	}
	if err != nil || err2 != nil || l.low < 1 || l.high < l.low || l.high > maxLength {
		return Length{}, usage
	}
	return l, nil
}

func (l Length) draw(r *rand.Rand) int {
	if l.sigma > 0 {
		n := math.Exp(math.Log(l.mean) + l.sigma*r.NormFloat64())
		return int(min(max(math.Round(n), float64(l.low)), float64(l.high)))
	}
	return l.low + r.IntN(l.high-l.low+1)
}

// arrivals returns the gap before each next arrival.
func (l Load) gaps(r *rand.Rand) func() time.Duration {
	mean := float64(time.Second) / l.Rate
	return func() time.Duration {
		if l.Arrivals == Constant {
			return time.Duration(mean)
		}
		return time.Duration(mean * r.ExpFloat64())
	}
}
