package sched

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/handoff"
)

var errImpossible = errors.New("not possible here")

// note applies one notice to what the test knows.
func (w *world) note(c *client, n Notice) error {
	has := func(want bool) error {
		if c.admitted != want || n.Ref != c.ref {
			return errImpossible
		}
		return nil
	}
	switch n.Kind {
	case NoteAdmitted, NoteGranted:
		if c.ended || (n.Kind == NoteGranted) != (c.receives && c.tokens == 0) {
			return errImpossible
		}
		err := has(false)
		c.admitted, c.computed = true, int(n.Tokens)
		if n.Kind == NoteGranted {
			c.computed = c.prompt
		}
		if c.computed >= c.prompt+c.tokens && n.Kind == NoteAdmitted {
			return errors.New("nothing is left to compute")
		}
		return errors.Join(err, w.inOrder(c))
	case NoteRefused:
		c.ended = true
		return has(false)
	case NotePromoted:
		if c.ended {
			return errImpossible
		}
		return has(true)
	case NotePinned:
		if !c.held || c.computed != c.prompt || int(n.Tokens) != c.prompt || n.Blocks < 1 {
			return errImpossible
		}
		if s := w.m.Snapshot(); s.Pinned == 0 && s.Active == 0 {
			return errors.New("finished prefill memory is not owned")
		}
		c.ended = true
		return has(true)
	case NoteFinished:
		if int(n.Tokens) != max(c.tokens, 1) || !c.ended && c.most != 1 {
			return fmt.Errorf("%d tokens", n.Tokens)
		}
		c.ended = true
		return has(true)
	case NotePreempted:
		if c.ended || c.touched || int(n.Tokens) != c.computed || w.cfg.NoRecompute {
			return errImpossible
		}
		err := has(true)
		c.admitted, c.computed = false, 0
		return err
	case NoteFailed:
		err := has(true)
		c.ended = true
		c.admitted = w.s.Info(n.Ref).Seq != 0
		return err
	case NoteRetired:
		c.ended = true
		return has(true)
	case NoteFreed:
		w.gone(c)
		return nil
	}
	return errImpossible
}

// inOrder sees that nobody was overtaken: of those that never had memory, the one
// that came first comes in first, on its side.
func (w *world) inOrder(c *client) error {
	of := source
	if c.receives {
		of = destination
	}
	if c.tokens > 0 || c.order < w.last[of] {
		return nil // preempted before, or again
	}
	w.last[of] = c.order
	for _, other := range w.order {
		if other.order < c.order && other.receives == c.receives && !other.ended && !other.gone && !other.admitted && other.ref != c.ref {
			if st := w.s.Info(other.ref).State; st == StateWaiting || st == StateReserving {
				return fmt.Errorf("%+v was overtaken", other)
			}
		}
	}
	return nil
}

func (w *world) gone(c *client) {
	c.gone, c.ended, c.admitted = true, true, false
	w.order = slices.DeleteFunc(w.order, func(o *client) bool { return o == c })
	delete(w.clients, c.id)
}

// in reports whether the running step has a row of it.
func (w *world) in(c *client) bool {
	if !w.running {
		return false
	}
	return slices.ContainsFunc(w.step.Decodes, func(d Decode) bool { return d.Ref == c.ref }) ||
		slices.ContainsFunc(w.step.Chunks, func(k Chunk) bool { return k.Ref == c.ref })
}

func (w *world) activate() error {
	c := w.pick()
	if c == nil {
		return nil
	}
	before := w.s.Info(c.ref).State
	w.what = fmt.Sprintf("activate %v", before)
	switch o := w.s.Activate(w.now, c.id); {
	case o == Accepted && before == StateReserved && !c.touched:
		c.tokens = 1
		if c.most == 1 {
			c.ended = true
		}
	case o == Touched && c.touched && before == StateReserved, o == Expired && before == StateReserved:
	case o == Duplicate && c.receives && c.tokens > 0 && before != StateReserved:
	case o == Conflict && before != StateReserved && (c.tokens == 0 || !c.receives || before == StateStopped || before == StateQuarantine):
	default:
		return fmt.Errorf("%v of %+v", o, c)
	}
	return nil
}

func (w *world) cancel() error {
	c := w.pick()
	if c == nil {
		return nil
	}
	in := w.in(c)
	before := w.s.Info(c.ref).State
	w.what = fmt.Sprintf("cancel %v", before)
	switch o := w.s.Cancel(w.now, c.id); {
	case o == Stepping && in, o == Accepted && !in, o == Duplicate && (before == StateStopped || before == StateFinished || before == StateQuarantine):
		c.ended = true
	default:
		return fmt.Errorf("%v, in the step: %v", o, in)
	}
	return nil
}

func (w *world) release() error {
	c := w.pick()
	if c == nil {
		return nil
	}
	in := w.in(c)
	free := w.m.Snapshot()
	w.what = fmt.Sprintf("release %v", w.s.Info(c.ref).State)
	o := w.s.Release(w.now, c.id)
	c.ended = true
	switch {
	case o == Stepping && in:
	case o == Quarantined && !in:
		if now := w.m.Snapshot(); c.admitted && now.Used() < free.Used() {
			return fmt.Errorf("quarantined memory is not counted: %+v, before %+v", now, free)
		}
	case o == Accepted && !in:
		if err := w.follow(); err != nil { // others may have come in
			return err
		}
		w.gone(c)
		if o := w.s.Release(w.now, c.id); o != Unknown {
			return fmt.Errorf("repeated: %v", o)
		}
	default:
		return fmt.Errorf("%v, in the step: %v", o, in)
	}
	return nil
}

func (w *world) touch() error {
	c := w.pick()
	if c == nil {
		return nil
	}
	before := w.s.Info(c.ref).State
	w.what = fmt.Sprintf("touch %v", before)
	switch o := w.s.Touch(c.id); {
	case o == Accepted && !c.touched:
		c.touched = true
	case o == Duplicate && c.touched:
	case o == Conflict && c.ended:
	default:
		return fmt.Errorf("%v of %+v", o, c)
	}
	return nil
}

func (w *world) quiet() error {
	c := w.pick()
	if c == nil {
		return nil
	}
	w.what = fmt.Sprintf("quiet %v", w.s.Info(c.ref).State)
	switch o := w.s.Quiet(w.now, c.id); {
	case o == Accepted && c.touched:
		c.touched = false
	case o == Duplicate && !c.touched:
	default:
		return fmt.Errorf("%v of %+v", o, c)
	}
	return nil
}

// rebind retries a pinned request.
func (w *world) rebind() error {
	old := w.pick()
	if old == nil {
		return nil
	}
	c := &client{id: w.mint(), held: w.rand.IntN(2) == 0, prompt: old.prompt + w.rand.IntN(3), most: 1 + w.rand.IntN(5)}
	before := w.s.Info(old.ref).State
	w.what = fmt.Sprintf("rebind %v", before)
	q := Request{Prompt: c.prompt, MaxTokens: c.most, Held: c.held}
	ref, o := w.s.Rebind(w.now, old.id, c.id, q)
	switch {
	case o == Accepted && before == StatePinned:
		old.admitted = false
		w.came(c, ref)
		c.order = old.order // it takes over the place in the queue too, should it be preempted
		c.admitted, c.computed = true, old.computed
		if c.computed == c.prompt {
			c.tokens = 1
		}
		if c.computed == c.prompt && c.held {
			c.tokens = 0
		}
	case o == Conflict && before != StatePinned:
	case o == NoRoom && before == StatePinned, o == Never && before == StatePinned:
		if w.s.Info(old.ref).State != StatePinned {
			return errors.New("a refused rebind changed the old request")
		}
	default:
		return fmt.Errorf("%v", o)
	}
	return nil
}

// nonsense gives what cannot be.
func (w *world) nonsense() error {
	w.what = "nonsense"
	id := handoff.Mint(1<<40, [10]byte{})
	if o := w.s.Activate(w.now, id); o != Unknown {
		return fmt.Errorf("activate: %v", o)
	}
	if o := w.s.Cancel(w.now, id); o != Unknown {
		return fmt.Errorf("cancel: %v", o)
	}
	for _, q := range []Request{{}, {Prompt: 1}, {Prompt: -1, MaxTokens: 1}, {Prompt: 1 << 62, MaxTokens: 1 << 62}} {
		if _, o := w.s.Submit(w.now, id, q); o != Invalid && o != Never {
			return fmt.Errorf("submit: %v", o)
		}
	}
	if _, o := w.s.Submit(w.now, handoff.ID{}, Request{Prompt: 1, MaxTokens: 1}); o != Invalid {
		return fmt.Errorf("submit without id: %v", o)
	}
	if !w.running {
		if o := w.s.Done(w.now, Results{}); o != Conflict {
			return fmt.Errorf("done without a step: %v", o)
		}
	} else if !w.s.Plan(w.now).Empty() {
		return errors.New("two steps at once")
	}
	return nil
}

// drain plays the end: peers that never come, transports that become quiet. Every
// request that was not stopped must run to its end, and nothing may be left.
func (w *world) drain() error {
	w.what = "drain"
	for range 10_000 {
		if w.running {
			if err := w.done(); err != nil {
				return err
			}
		}
		if err := w.follow(); err != nil {
			return err
		}
		for _, c := range slices.Clone(w.order) {
			switch w.s.Info(c.ref).State {
			case StatePinned, StateReserved, StateStopped, StateFinished, StateReserving:
				if w.s.Release(w.now, c.id) == Accepted {
					if err := w.follow(); err != nil {
						return err
					}
					w.gone(c)
				}
			}
			if !c.gone {
				w.s.Quiet(w.now, c.id)
				c.touched = false
			}
			if err := w.follow(); err != nil {
				return err
			}
		}
		if err := w.s.check(); err != nil {
			return err
		}
		if w.s.Drained() {
			s := w.m.Snapshot()
			if s.Used() != 0 || s.Slots != 0 || s.Headroom != 0 || !w.s.Idle() || w.s.used != [2]Share{} {
				return fmt.Errorf("leaked: %+v", s)
			}
			if o := w.m.Reset(); o != 1 {
				return fmt.Errorf("reset: %v", o)
			}
			return nil
		}
		if err := w.stepping(); err != nil {
			return err
		}
		if !w.running && len(w.order) > 0 && w.s.Load().Requests == w.s.Load().Waiting+w.s.Load().Reserving {
			return fmt.Errorf("requests wait in an empty worker: %+v", w.s.Load())
		}
	}
	return errors.New("it does not end")
}
