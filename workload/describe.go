package workload

import (
	"fmt"
	"io"
	"math"

	"github.com/tandem-llm/tandem/engine/timed"
)

// Summary says what a source holds. It has numbers only.
type Summary struct {
	Requests int        `json:"requests"`
	Span     timed.Time `json:"span_ps"` // first to last arrival
	Rate     float64    `json:"rate"`    // requests per second of the span; 0 when all arrive at once
	// GapCV is the coefficient of variation of the gaps between arrivals: 0 for
	// equal ones, 1 for a Poisson process, more for bursts.
	GapCV float64 `json:"gap_cv"`
	Peak  int     `json:"peak_minute"` // most requests of one minute; minutes begin with the first request
	Later int     `json:"later_turns"` // requests that are a session's second turn or later

	Tenants int `json:"tenants"` // how many, 4,096 at most

	Input  Lengths `json:"input"`
	Output Lengths `json:"output"`

	// Of the prompts' blocks, where ids are known: how many there are, how many
	// different ones, and the part of all prompt tokens in leading blocks that an
	// earlier prompt had, which is what an unlimited cache would save at most.
	Blocks   int     `json:"blocks"`
	Distinct int     `json:"distinct_blocks"`
	Shared   float64 `json:"shared"`
	Cut      bool    `json:"shared_cut,omitempty"` // more than 4,194,304 different ones: later ones count as new
}

// Lengths are tokens of prompts or answers. Percentiles are exact below
// 1,048,576 tokens.
type Lengths struct {
	Total int64   `json:"total"`
	Mean  float64 `json:"mean"`
	P50   int     `json:"p50"`
	P90   int     `json:"p90"`
	P99   int     `json:"p99"`
	Max   int     `json:"max"`
}

// What a description holds at most, whatever the trace.
const (
	maxCounted  = 1 << 20 // tokens whose requests are counted one by one
	maxDistinct = 1 << 22 // block ids
)

// turnLasts is how long Describe lets a session's turn take. Sessions of a
// generator wait for the end of their turns.
const turnLasts = timed.Second

// Describe reads src to its end.
func Describe(src Source) (Summary, error) {
	var (
		s          Summary
		in, out    tally
		seen       = map[uint64]struct{}{}
		tenants    = map[string]uint64{}
		sharedIn   int64
		sum, sum2  float64 // of the gaps
		first      timed.Time
		last       timed.Time
		minute     timed.Time
		thisMinute int
	)
	for {
		q, ok, err := src.Next()
		if err != nil || !ok {
			if s.Requests > 1 {
				s.Span = last - first
			}
			if s.Span > 0 {
				gaps := float64(s.Requests - 1)
				s.Rate = gaps / s.Span.Seconds()
				s.GapCV = math.Sqrt(max(sum2/gaps-(sum/gaps)*(sum/gaps), 0)) / (sum / gaps)
			}
			s.Input, s.Output = in.lengths(s.Requests), out.lengths(s.Requests)
			s.Distinct, s.Tenants = len(seen), len(tenants)
			if s.Input.Total > 0 {
				s.Shared = float64(sharedIn) / float64(s.Input.Total)
			}
			return s, err
		}
		if s.Requests == 0 {
			first, last = q.Arrival, q.Arrival
		}
		s.Requests++
		gap := (q.Arrival - last).Seconds()
		sum, sum2, last = sum+gap, sum2+gap*gap, q.Arrival
		if m := (q.Arrival - first) / (60 * timed.Second); m != minute {
			minute, thisMinute = m, 0
		}
		thisMinute++
		s.Peak = max(s.Peak, thisMinute)
		if q.Turn > 1 {
			s.Later++
		}
		in.add(q.Input)
		out.add(q.Output)
		tenant, known := tenants[q.Tenant]
		if !known && len(tenants) < maxTenants {
			tenant = uint64(len(tenants))
			tenants[q.Tenant] = tenant
		}
		s.Blocks += len(q.Hashes)
		leading := 0
		for i, id := range q.Hashes {
			id = mix(id) + tenant
			if _, known := seen[id]; known {
				if leading == i {
					leading++
				}
			} else if len(seen) < maxDistinct {
				seen[id] = struct{}{}
			} else {
				s.Cut = true
			}
		}
		sharedIn += int64(min(leading*q.HashTokens, q.Input))
		src.Finished(q.Session, later(q.Arrival, turnLasts))
	}
}

// Print writes the summary for people.
func (s *Summary) Print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "requests      %d", s.Requests)
	line := func(format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(w, "\n"+format, args...)
		}
	}
	line("span          %.3f s, %.3f requests/s, at most %d in a minute, gaps vary by %.2f of their mean", s.Span.Seconds(), s.Rate, s.Peak, s.GapCV)
	for _, l := range []struct {
		name string
		Lengths
	}{{"input", s.Input}, {"output", s.Output}} {
		line("%-13s %d tokens, mean %.1f, p50 %d, p90 %d, p99 %d, max %d", l.name, l.Total, l.Mean, l.P50, l.P90, l.P99, l.Max)
	}
	if s.Blocks > 0 {
		note := ""
		if s.Cut {
			note = " or more"
		}
		line("sharing       %.1f %%%s of input tokens are in blocks that an earlier prompt began with (%d block ids, %d different)", 100*s.Shared, note, s.Blocks, s.Distinct)
	} else {
		line("sharing       not known")
	}
	if s.Later > 0 {
		line("sessions      %d requests are later turns", s.Later)
	}
	if s.Tenants > 1 {
		line("tenants       %d", s.Tenants)
	}
	line("")
	return err
}

// Print writes what was left out for people, nothing if there was nothing.
func (m *Malformed) Print(w io.Writer) error {
	if m.Lines == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "malformed     %d lines", m.Lines)
	for p, n := range m.Counts {
		if n > 0 && err == nil {
			_, err = fmt.Fprintf(w, ", %d %v", n, Problem(p))
		}
	}
	for _, e := range m.First {
		if err == nil {
			_, err = fmt.Fprintf(w, "\n  line %d: %v: %s", e.Line, e.Problem, e.Detail)
		}
	}
	if more := m.Lines - len(m.First); more > 0 && err == nil {
		_, err = fmt.Fprintf(w, "\n  and %d more", more)
	}
	if err == nil {
		_, err = fmt.Fprintln(w)
	}
	return err
}

// tally counts requests by length.
type tally struct {
	counts []uint32 // the last one counts longer ones too
	total  int64
	most   int
}

func (t *tally) add(n int) {
	t.total += int64(n)
	t.most = max(t.most, n)
	n = min(n, maxCounted)
	if n >= len(t.counts) {
		t.counts = append(t.counts, make([]uint32, n+1-len(t.counts))...)
	}
	t.counts[n]++
}

func (t *tally) lengths(requests int) Lengths {
	l := Lengths{Total: t.total, Max: t.most}
	if requests > 0 {
		l.Mean = float64(t.total) / float64(requests)
	}
	l.P50, l.P90, l.P99 = t.percentile(requests, 50), t.percentile(requests, 90), t.percentile(requests, 99)
	return l
}

// percentile returns the smallest length that so many percent of the requests
// do not exceed.
func (t *tally) percentile(requests, percent int) int {
	rank := (requests*percent + 99) / 100
	below := 0
	for n, count := range t.counts {
		if below += int(count); below >= rank && rank > 0 {
			if n == maxCounted {
				return t.most
			}
			return n
		}
	}
	return 0
}
