package soak

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/bench"
)

// Report is what a soak found. The names of its JSON fields do not change; new ones may
// come.
type Report struct {
	Command  string          `json:"command"`
	Settings []bench.Setting `json:"settings"`
	Machine  bench.Machine   `json:"machine"`
	Complete bool            `json:"complete"` // false: it was interrupted, or stopped at a failure
	Took     float64         `json:"took_s"`

	HandedOff Tally `json:"handed_off"` // while workers die
	Colocated Tally `json:"colocated"`  // the same load, nobody dies
	Alone     Tally `json:"alone"`
	// AloneCached ran with nobody else too, on workers that keep prefixes; Alone, then, after
	// these were started anew to keep none.
	AloneCached Tally `json:"alone_cached"`

	Kills  int `json:"kills"`  // SIGKILL
	Drains int `json:"drains"` // SIGTERM
	// Points says in how many killed workers there was a handoff in a state; "idle": none.
	Points   map[string]int `json:"points"`
	Attempts int            `json:"attempts"` // of all requests at the gateway
	Noise    Noise          `json:"noise"`
	// Tokens of greedy answers were held against the reference; Gap is the most by which
	// it preferred another one.
	// Explained are the tokens beyond the bound that control runs found again.
	Tokens     int64      `json:"tokens"`
	Gap        float64    `json:"gap"`
	Explained  int        `json:"explained"`
	Divergence Divergence `json:"divergence"`
	// Records of Lives of processes were replayed. Gaps are lives whose stream is
	// incomplete, which ends their replay.
	Records    int          `json:"records"`
	Lives      int          `json:"lives"`
	Gaps       []string     `json:"gaps,omitempty"`
	Footprints []*Footprint `json:"footprints"`

	Checks []*Check `json:"checks"`
}

// Tally counts requests by their ends.
type Tally struct {
	Requests int            `json:"requests"`
	Ends     map[End]int    `json:"ends"`
	Errors   map[string]int `json:"errors,omitempty"` // refused ones by status and code
}

func (t *Tally) add(a *Answer) {
	if t.Ends == nil {
		t.Ends, t.Errors = map[End]int{}, map[string]int{}
	}
	t.Requests++
	t.Ends[a.End]++
	if a.End == Refused {
		t.Errors[fmt.Sprintf("%d %s", a.Status, a.Code)]++
	}
}

// Divergence is how many whole answers differ from what the reference says alone.
type Divergence struct {
	HandedOff Share `json:"handed_off"`
	Colocated Share `json:"colocated"`
	// Chance is how likely a difference so large to the disadvantage of handed-off
	// answers is if both are equal.
	Chance float64 `json:"chance"`
	// Of the handed-off ones, by order, and those that took more than one attempt.
	Orders  map[Order]Share `json:"orders"`
	Retried Share           `json:"retried"`
	// Answers that were drawn at random, against drawing with the reference's logits.
	SampledHandedOff Share `json:"sampled_handed_off"`
	SampledColocated Share `json:"sampled_colocated"`
	// Answers of AloneCached, greedy or drawn.
	AloneCached  Share    `json:"alone_cached"`
	AloneDetails []string `json:"alone_details,omitempty"` // of the first that differ
}

// Check is one thing that must hold.
type Check struct {
	Name     string   `json:"name"`
	Held     *bool    `json:"held"` // null: there was nothing to judge
	Note     string   `json:"note,omitempty"`
	Failures int      `json:"failures"`
	Details  []string `json:"details,omitempty"` // of the first failures
}

// The checks, in the order of a report.
const (
	checkEnds      = "each request has one end"
	checkErrors    = "errors only while workers die, and few"
	checkTokens    = "each greedy token within the noise of batching"
	checkAlone     = "alone equal to the reference"
	checkRate      = "no more divergence than colocated"
	checkLedger    = "one status, tokens in order, bookings ended"
	checkReplay    = "recorded facts replay"
	checkHeld      = "nothing held at the end"
	checkGrowth    = "no growth at rest"
	checkProcesses = "processes end as they are asked to"
)

var checkNames = []string{
	checkEnds, checkErrors, checkTokens, checkAlone, checkRate, checkLedger, checkReplay, checkHeld, checkGrowth, checkProcesses,
}

// mostDetails bounds the failures of a check that are told.
const mostDetails = 20

func (c *Check) fail(format string, args ...any) {
	held := false
	c.Held = &held
	if c.Failures++; len(c.Details) < mostDetails {
		c.Details = append(c.Details, fmt.Sprintf(format, args...))
	}
}

// judged says that there was something to judge.
func (c *Check) judged() {
	if c.Held == nil {
		held := true
		c.Held = &held
	}
}

// Failed returns the names of the checks that do not hold.
func (r *Report) Failed() []string {
	var out []string
	for _, c := range r.Checks {
		if c.Held != nil && !*c.Held {
			out = append(out, c.Name)
		}
	}
	return out
}

// WriteJSON writes the report as one indented JSON document.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	p := &lines{w: w}
	p.say("tandem bench soak, %.0f s", r.Took)
	p.say("%s, %d cores, %s", cmp.Or(r.Machine.CPU, r.Machine.Arch), r.Machine.Cores, r.Machine.OS)
	for _, s := range r.Settings {
		p.say("%s: %s", s.Name, s.Value)
	}
	if !r.Complete {
		p.say("INCOMPLETE: it was stopped before its end")
	}
	p.say("")
	for _, t := range []struct {
		name string
		Tally
	}{{"handed off", r.HandedOff}, {"colocated", r.Colocated}, {"alone, caches", r.AloneCached}, {"alone", r.Alone}} {
		if t.Requests == 0 {
			continue
		}
		p.say("%-13s %d requests: %d finished, %d left, %d refused, %d hung, %d broken%s", t.name, t.Requests,
			t.Ends[Finished], t.Ends[Left], t.Ends[Refused], t.Ends[Hung], t.Ends[Broken], counts(" (", t.Errors, ")"))
	}
	p.say("workers     %d killed, %d drained; %d attempts at the gateway", r.Kills, r.Drains, r.Attempts)
	p.say("killed with %s", counts("", r.Points, ""))
	p.say("noise       %.3g usually, %.3g at most in %d steps, bound %.3g; the two best are %.3g apart in the median, closer than the bound in %s",
		r.Noise.Usual, r.Noise.Max, r.Noise.Steps, r.Noise.Bound, r.Noise.Margin, r.Noise.Close)
	p.say("tokens      %d of greedy answers checked; the reference preferred another by at most %.3g, beyond the bound in %d that control runs explain",
		r.Tokens, r.Gap, r.Explained)
	d := &r.Divergence
	p.say("divergence  handed off %s, colocated %s; by chance so much higher: %.2g", d.HandedOff, d.Colocated, d.Chance)
	for _, o := range slices.Sorted(maps.Keys(d.Orders)) {
		p.say("            %s %s", o, d.Orders[o])
	}
	p.say("            retried %s; drawn at random: handed off %s, colocated %s", d.Retried, d.SampledHandedOff, d.SampledColocated)
	if d.AloneCached.Of > 0 {
		p.say("            alone on workers that keep prefixes %s", d.AloneCached)
		for _, line := range d.AloneDetails {
			p.say("                %s", line)
		}
	}
	p.say("lifecycle   %d records of %d lives replayed, %d lives with gaps", r.Records, r.Lives, len(r.Gaps))
	for _, f := range r.Footprints {
		if len(f.Goroutines) > 1 {
			p.say("at rest     %s (life %d): goroutines %s, files %s, MiB %s", f.Process, f.Life, ends(f.Goroutines), ends(f.Files), ends(f.RSSMiB))
		}
	}
	p.say("")
	for _, c := range r.Checks {
		verdict := "not judged"
		if c.Held != nil {
			verdict = map[bool]string{true: "held", false: "FAILED"}[*c.Held]
		}
		if c.Note != "" {
			verdict += ", " + c.Note
		}
		p.say("%-48s %s", c.Name, verdict)
		for _, line := range c.Details {
			p.say("    %s", line)
		}
		if more := c.Failures - len(c.Details); more > 0 {
			p.say("    and %d more", more)
		}
	}
	return p.err
}

// String is the share as people read it.
func (s Share) String() string { return fmt.Sprintf("%d of %d (%.2f%%)", s.Count, s.Of, 100*s.Rate()) }

func counts(before string, m map[string]int, after string) string {
	if len(m) == 0 {
		return ""
	}
	var list []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list = append(list, fmt.Sprintf("%s %d", k, m[k]))
	}
	return before + strings.Join(list, ", ") + after
}

func ends(list []int) string {
	return fmt.Sprintf("%d…%d (most %d)", list[0], list[len(list)-1], slices.Max(list))
}

type lines struct {
	w   io.Writer
	err error
}

func (l *lines) say(format string, args ...any) {
	if l.err == nil {
		_, l.err = fmt.Fprintf(l.w, format+"\n", args...)
	}
}
