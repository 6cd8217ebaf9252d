package verify

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Table shows a run while it goes on. On a terminal it redraws a block of lines; elsewhere it writes a line
// when a group of cells is over, and one for each cell that did not simply pass.
type Table struct {
	w     io.Writer
	live  bool
	now   func() time.Time
	began time.Time
	title string

	rows  []*tableRow
	drawn int // lines on the screen
	last  time.Time
	at    Progress
	note  string
	told  map[Status]int // cells that had a line of their own
}

// mostTold is how many cells of one status get a line of their own.
const mostTold = 10

// tableRow is a group of cells: those of one prompt length and KV type, the refusals of one lane.
type tableRow struct {
	name   string
	total  int // cells that run
	counts map[Status]int
	took   float64
}

// redraw is the least time between two drawings.
const redraw = 100 * time.Millisecond

// NewTable returns a table for the cells of a plan (see Plan), titled with what is verified. now is the clock.
func NewTable(w io.Writer, live bool, title string, plan *Report, now func() time.Time) *Table {
	t := &Table{w: w, live: live, now: now, began: now(), title: title, told: map[Status]int{}}
	for i := range plan.Cells {
		c := &plan.Cells[i]
		row := t.row(c)
		if c.Status == "" {
			row.total++
		} else {
			row.counts[c.Status]++
		}
	}
	if !live {
		fmt.Fprintf(w, "%s\n", title)
	}
	return t
}

func (t *Table) row(c *Result) *tableRow {
	name := rowName(c)
	i := slices.IndexFunc(t.rows, func(r *tableRow) bool { return r.name == name })
	if i < 0 {
		t.rows = append(t.rows, &tableRow{name: name, counts: map[Status]int{}})
		i = len(t.rows) - 1
	}
	return t.rows[i]
}

func rowName(c *Result) string {
	switch {
	case c.Params != nil:
		return fmt.Sprintf("%d tokens, %s", c.Params.Tokens, c.Params.KVType)
	case c.Kind == KindRefusal:
		return "refusals over " + strings.Split(c.Name, "/")[1]
	case c.Kind == KindResource:
		return "after refusals"
	case c.Kind == KindLater:
		return "not built yet"
	}
	first, _, _ := strings.Cut(c.Name, "/")
	return first + " tokens"
}

// Progress takes Options.Progress.
func (t *Table) Progress(p Progress) {
	t.at = p
	if p.Result == nil {
		t.note = p.Note
		if !t.live && !strings.HasPrefix(p.Note, "prefilling") {
			fmt.Fprintln(t.w, "  "+p.Note)
		}
		t.draw(false)
		return
	}
	c := p.Result
	if c.Status == "" {
		t.note = c.Name
		t.draw(false)
		return
	}
	row := t.row(c)
	row.counts[c.Status]++
	row.took += c.Took
	if c.Status != Passed {
		t.clear()
		t.told[c.Status]++
		switch n := t.told[c.Status]; {
		case n <= mostTold:
			fmt.Fprintf(t.w, "  %s: %s: %s\n", c.Status, c.Name, c.Reason)
		case n == mostTold+1:
			fmt.Fprintf(t.w, "  %s: more of them, see --json\n", c.Status)
		}
	}
	over := row.counts[Passed]+row.counts[Explained]+row.counts[Failed] == row.total
	if !t.live && over {
		fmt.Fprintln(t.w, "  "+row.line())
	}
	t.draw(over)
}

// line describes a row.
func (r *tableRow) line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-22s %4d/%-4d passed", r.name, r.counts[Passed], r.total)
	for _, s := range []Status{Explained, Failed, Unfinished, Skipped, NotApplicable, NotBuilt} {
		if n := r.counts[s]; n > 0 {
			fmt.Fprintf(&b, ", %d %s", n, s)
		}
	}
	if r.took >= 0.1 {
		fmt.Fprintf(&b, "  %.1fs", r.took)
	}
	return b.String()
}

// draw redraws the block on a terminal.
func (t *Table) draw(force bool) {
	now := t.now()
	if !t.live || !force && now.Sub(t.last) < redraw {
		return
	}
	t.last = now
	t.clear()
	var b strings.Builder
	line := func(s string) {
		if len(s) > 100 {
			s = s[:99] + "~"
		}
		b.WriteString(s + "\n")
		t.drawn++
	}
	line(t.title)
	for _, r := range t.rows {
		if r.total > 0 {
			line("  " + r.line())
		}
	}
	line("  " + t.bar(now) + "  " + t.note)
	_, _ = io.WriteString(t.w, b.String())
}

// bar is the progress and how long the rest may take.
func (t *Table) bar(now time.Time) string {
	const width = 24
	p := t.at
	if p.Weights <= 0 {
		return ""
	}
	full := min(int(width*p.Weight/p.Weights), width)
	s := fmt.Sprintf("[%s%s] %d/%d", strings.Repeat("#", full), strings.Repeat(".", width-full), p.Done, p.Total)
	took := now.Sub(t.began)
	if p.Weight > 0 && p.Done < p.Total && took > time.Second {
		rest := time.Duration(float64(took) * (p.Weights - p.Weight) / p.Weight)
		s += fmt.Sprintf(", about %v to go", rest.Round(time.Second))
	}
	return s
}

// clear takes the block off the terminal.
func (t *Table) clear() {
	if t.live && t.drawn > 0 {
		fmt.Fprintf(t.w, "\x1b[%dA\x1b[J", t.drawn)
		t.drawn = 0
	}
}

// End leaves the table as it is at the end.
func (t *Table) End() {
	t.draw(true)
	t.drawn = 0
}

// WriteSummary writes what a report says in a few lines: the counts, what was left out and why, and the first cells
// that failed or had to be explained.
func WriteSummary(w io.Writer, r *Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s, %s): ", r.Model.File, r.Model.Architecture, r.Model.Family)
	var parts []string
	for _, s := range []Status{Passed, Explained, Failed, Unfinished, Skipped, NotApplicable, NotBuilt} {
		if n := r.Counts[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	fmt.Fprintf(&b, "%s, in %.0fs\n", strings.Join(parts, ", "), r.Took)
	reasons, told := map[string]int{}, map[Status]int{}
	var order []string
	for i := range r.Cells {
		c := &r.Cells[i]
		switch c.Status {
		case Failed, Explained:
			if told[c.Status]++; told[c.Status] <= mostTold {
				fmt.Fprintf(&b, "  %s: %s: %s\n", c.Status, c.Name, c.Reason)
			}
		case Skipped, NotApplicable, NotBuilt, Unfinished:
			key := fmt.Sprintf("%s: %s", c.Status, c.Reason)
			if reasons[key] == 0 {
				order = append(order, key)
			}
			reasons[key]++
		}
	}
	for _, s := range []Status{Explained, Failed} {
		if n := told[s] - mostTold; n > 0 {
			fmt.Fprintf(&b, "  %s: %d more, see --json\n", s, n)
		}
	}
	for _, key := range order {
		fmt.Fprintf(&b, "  %d %s\n", reasons[key], key)
	}
	if d := r.Divergence(); d.Load > 0 {
		fmt.Fprintf(&b, "  controlled: %d cells, every bit of %d steps equal; under load: %d of %d cells with other bits, %d with another token\n",
			d.Controlled, d.Steps, d.Bits, d.Load, d.Tokens)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Divergence counts what passing import cells had to say about bits and tokens.
type Divergence struct {
	// Controlled and Load count cells of either kind, and Steps the steps of controlled ones.
	Controlled, Load, Steps int
	// Bits counts cells under load in which some logits differed from the source's, Tokens those in which a token
	// did.
	Bits, Tokens int
}

// Divergence counts over the report.
func (r *Report) Divergence() Divergence {
	var d Divergence
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.Compared == nil || c.Status != Passed && c.Status != Explained {
			continue
		}
		if c.Compared.Controlled {
			d.Controlled++
			d.Steps += c.Compared.Steps
			continue
		}
		d.Load++
		if c.Compared.BitEqual < c.Compared.Steps {
			d.Bits++
		}
		if c.Compared.Tokens < c.Compared.Steps {
			d.Tokens++
		}
	}
	return d
}
