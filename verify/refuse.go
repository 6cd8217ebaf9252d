package verify

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/pair"
	"github.com/tandem-llm/tandem/wire"
)

// The prompt of refusal cells: three whole pages and a part of one.
const (
	refusalTokens = 350
	refusalPage   = 100
)

// damaged is one refusal cell.
type damaged struct {
	// name is below "refusal/<lane>/".
	name string
	// pages and snapshot say which parts the family must have.
	pages, snapshot bool
	// pull is the source-first order.
	pull bool
	// damage makes the damage.
	damage func(*refuser) *pair.Damage
	// budget is the binding's deadline, if it matters.
	budget time.Duration
	// source and destination are what the sides must say: one of each list; an empty list asks for nothing.
	source, destination []error
}

// refuser is what damage is made from.
type refuser struct {
	r     *runner
	good  *pair.Export // what is sent
	other *pair.Export // the same length of another prompt
	state pair.StateSum
	lane  wire.LaneMode // of the cell
}

// residue is the cell after all refusals.
const residue = "nothing left behind"

// refusals adds the refusal cells of every lane.
func (p *plan) refusals() {
	inv := p.inv[p.kv()]
	any := false
	for _, lane := range p.o.Lanes {
		for _, d := range refusals() {
			r := Result{Name: fmt.Sprintf("refusal/%s/%s", lane, d.name), Kind: KindRefusal}
			switch {
			case d.pages && !inv.Paged():
				r.Status, r.Reason = NotApplicable, noPages
			case d.snapshot && !inv.Snapshot():
				r.Status, r.Reason = NotApplicable, "all state of the family is in its pages: there is no snapshot"
			default:
				any = any || p.o.match.MatchString(r.Name)
			}
			p.add(r)
		}
	}
	r := Result{Name: "refusal/" + residue, Kind: KindResource}
	if !any {
		r.Status, r.Reason = Skipped, "no refusal was asked for"
	}
	p.add(r)
}

// refusal runs one refusal cell.
func (r *runner) refusal(c *Result) error {
	n := min(refusalTokens, r.file.Context-1)
	if r.file.Context == 0 {
		n = refusalTokens
	}
	g := group{tokens: n, cells: n + extraCells(r.o.Steps), kv: r.cells.kv(), threads: r.o.Threads}
	if r.peer == nil || r.group != g {
		r.refuser = nil
	}
	if err := r.open(g); err != nil {
		return err
	}
	if r.refuser == nil {
		if err := r.makeRefuser(); err != nil {
			return err
		}
	}
	if c.Kind == KindResource {
		return r.residue(c)
	}
	_, rest, _ := strings.Cut(c.Name, "/")
	lane, name, _ := strings.Cut(rest, "/")
	list := refusals()
	i := slices.IndexFunc(list, func(d damaged) bool { return d.name == name })
	if i < 0 {
		return fmt.Errorf("%w: no refusal %q", ErrOptions, name)
	}
	return r.refuse(&list[i], wire.LaneMode(lane), c)
}

// makeRefuser prefills two prompts and takes stock of the other process before anybody connects.
func (r *runner) makeRefuser() error {
	f := &refuser{r: r}
	for i, x := range []**pair.Export{&f.other, &f.good} {
		if err := r.source.Clear(); err != nil {
			return err
		}
		prompt := pair.Prompt(r.sourceEngine.Vocab(), r.group.tokens, r.o.Seed+77*uint64(i+1))
		_, err := r.source.Prefill(prompt, r.sourceEngine.Info().BatchTokens, nil)
		if err == nil {
			*x, err = r.source.Export(prompt, refusalPage)
		}
		if err == nil {
			f.state, err = r.source.State()
		}
		if err != nil {
			return err
		}
	}
	var err error
	r.baseline, err = r.settled()
	r.refuser = f
	return err
}

// refuse sends one damaged handoff and then a good one.
func (r *runner) refuse(d *damaged, lane wire.LaneMode, c *Result) error {
	f := r.refuser
	f.lane = lane
	s := pair.Sending{Export: f.good, Lane: lane, Pull: d.pull, Damage: d.damage(f), Budget: d.budget}
	_, err := r.peer.Send(r.ctx, s)
	var both *pair.HandoffError
	switch {
	case err == nil:
		return errors.New("it was not refused")
	case !errors.As(err, &both):
		return err
	case !oneOf(both.Source, d.source):
		return fmt.Errorf("the source says %q, which is not what was expected", text(both.Source))
	case !oneOf(both.Destination, d.destination):
		return fmt.Errorf("the destination says %q, which is not what was expected", text(both.Destination))
	}
	c.Reason = "refused: " + text(both.Destination)
	if errors.Is(both.Destination, pair.ErrAborted) {
		c.Reason = "refused: " + text(both.Source)
		if both.Source == nil {
			c.Reason = "cancelled"
		}
	}
	if err := r.peer.Idle(r.ctx); err != nil { // before anything is cleared
		return err
	}
	// What comes next is not affected.
	if _, err := r.peer.Send(r.ctx, pair.Sending{Export: f.good, Lane: lane, Pull: d.pull}); err != nil {
		return fmt.Errorf("the good handoff after it: %w", err)
	}
	sum, err := r.peer.State(r.ctx)
	if err == nil && sum != f.state {
		err = errors.New("another state arrived")
	}
	if err == nil {
		err = r.leaves()
	}
	if err != nil {
		return fmt.Errorf("the good handoff after it: %w", err)
	}
	c.Status = Passed
	return nil
}

func text(err error) string {
	if err == nil {
		return "nothing"
	}
	return err.Error()
}

// oneOf reports whether err is one of the list, or the list asks for nothing.
func oneOf(err error, list []error) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(want error) bool { return errors.Is(err, want) })
}

// residue compares what the other process owns after all refusals with what it owned before the first one,
// both without a connection: sequences, streams, tickets, buffers, goroutines, file descriptors.
func (r *runner) residue(c *Result) error {
	now, err := r.settled()
	if err != nil {
		return err
	}
	was := r.baseline
	if !now.Idle() || now.Goroutines > was.Goroutines || now.Files > was.Files {
		return fmt.Errorf("the destination owned %+v before the refusals and %+v after them", was, now)
	}
	c.Status = Passed
	c.Reason = fmt.Sprintf("%d goroutines and %d file descriptors, as before", now.Goroutines, now.Files)
	return nil
}

// settleFor is how long connections may take to go away.
const settleFor = 20 * time.Second

// settled disconnects, and returns what the other process owns once it is at rest: fewer than before twice in
// a row is not, and neither is a stream that ends.
func (r *runner) settled() (pair.Stats, error) {
	if err := r.peer.Reconnect(); err != nil {
		return pair.Stats{}, err
	}
	var last pair.Stats
	same := 0
	for began := time.Now(); ; {
		s, err := r.peer.Stats(r.ctx)
		if err != nil {
			return s, err
		}
		if s == last && s.Idle() {
			same++
		} else {
			same = 0
		}
		below := r.baseline.Goroutines == 0 || s.Goroutines <= r.baseline.Goroutines && s.Files <= r.baseline.Files
		if same >= 10 && below || time.Since(began) > settleFor {
			return s, nil
		}
		last = s
		select {
		case <-r.ctx.Done():
			return s, r.ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}
