package kvtest

import (
	"fmt"

	"github.com/tandem-llm/tandem/kv"
)

// op does one random operation on both and compares the answers.
func (w *world) op() error {
	defer w.gone()
	switch k := w.rand.IntN(100); {
	case k < 18:
		return w.start()
	case k < 30:
		return w.reserve()
	case k < 38:
		return w.grow()
	case k < 52:
		return w.publish()
	case k < 60:
		return w.hold()
	case k < 70:
		return w.activate()
	case k < 73:
		return w.rekey()
	case k < 76:
		return w.resume()
	case k < 86:
		return w.free()
	case k < 94:
		return w.touch()
	case k < 97:
		return w.mark()
	case k < 99:
		return w.evict()
	}
	w.step = "Reset"
	if got, want := w.real.Reset(), w.model.reset(); got != want {
		return differ(got, want)
	}
	return nil
}

func (w *world) start() error {
	n, path := w.need()
	w.step = fmt.Sprintf("Start(%d of at most %d, headroom %d)", n.Tokens, n.Limit, n.Headroom)
	match := w.real.Match(n, false)
	s, cached, o := w.real.Start(n)
	if o == kv.OK && match != cached {
		return fmt.Errorf("match says %d, Start %d", match, cached)
	}
	wantCached, want := w.model.begin(s, n, active)
	if o != want || cached != wantCached {
		return differ([]any{cached, o}, []any{wantCached, want})
	}
	if o == kv.OK {
		w.made(s, path)
	}
	return nil
}

func (w *world) reserve() error {
	n, path := w.need()
	id := w.id()
	w.step = fmt.Sprintf("Reserve(%d of at most %d, headroom %d)", n.Tokens, n.Limit, n.Headroom)
	match := w.real.Match(n, true)
	s, cached, o := w.real.Reserve(id, n)
	if o == kv.OK && match != cached {
		return fmt.Errorf("match says %d, Reserve %d", match, cached)
	}
	old, q := w.model.byID(id)
	var want kv.Outcome
	wantCached := 0
	switch {
	case id.IsZero():
		want = kv.Invalid
	case q != nil && (q.class == pinned || q.draining):
		want = kv.Conflict
	case q != nil:
		want, wantCached = kv.Duplicate, q.prefix
		if s != old {
			return differ(s, old)
		}
	default:
		wantCached, want = w.model.begin(s, n, reserved)
		if want == kv.OK {
			w.model.seqs[s].id = id
		}
	}
	if o != want || cached != wantCached {
		return differ([]any{cached, o}, []any{wantCached, want})
	}
	if o == kv.OK {
		w.made(s, path)
	}
	return nil
}

func (w *world) grow() error {
	s := w.seq()
	tokens := w.rand.IntN(9*w.real.Config().BlockTokens) - 1
	w.step = fmt.Sprintf("Grow(%d)", tokens)
	room, o := w.real.Grow(s, tokens)
	wantRoom, want := w.model.grow(w.model.seqs[s], tokens)
	if o != want || room != wantRoom {
		return differ([]any{room, o}, []any{wantRoom, want})
	}
	return nil
}

func (w *world) publish() error {
	s := w.seq()
	q := w.model.seqs[s]
	bt := w.real.Config().BlockTokens
	tokens := w.rand.IntN(7*bt) - 1
	keys := w.keys(w.paths[s])
	w.step = fmt.Sprintf("Publish(%d)", tokens)
	o := w.real.Publish(s, tokens, keys)
	want := kv.OK
	switch {
	case q == nil:
		want = kv.Unknown
	case q.class != active || q.draining:
		want = kv.Conflict
	case tokens < 0 || tokens > len(q.blocks)*bt:
		want = kv.Invalid
	default:
		w.model.publish(q, keys[:min(len(keys), tokens/bt)])
	}
	if o != want {
		return differ(o, want)
	}
	if q != nil && w.real.Published(s) != q.published*bt {
		return fmt.Errorf("published is %d, want %d", w.real.Published(s), q.published*bt)
	}
	return nil
}

func (w *world) hold() error {
	s, id := w.seq(), w.id()
	w.step = "Hold"
	if got, want := w.real.Hold(id, s), w.model.hold(id, s); got != want {
		return differ(got, want)
	}
	return nil
}

func (w *world) activate() error {
	id := w.id()
	s, q := w.model.byID(id)
	keys := w.keys(w.paths[s])
	w.step = "Activate"
	got, o := w.real.Activate(id, keys)
	want := w.model.activate(id, keys)
	if o != want || (o == kv.OK || o == kv.Duplicate) && got != s {
		return differ(o, want)
	}
	if found, ok := w.real.Find(id); ok != (q != nil) || found != s {
		return fmt.Errorf("find gives %v %v, want %v", found, ok, s)
	}
	return nil
}

func (w *world) rekey() error {
	old, id := w.id(), w.id()
	w.step = "Rekey"
	if got, want := w.real.Rekey(old, id), w.model.rekey(old, id); got != want {
		return differ(got, want)
	}
	return nil
}

func (w *world) resume() error {
	s := w.seq()
	n, _ := w.need()
	if n.Limit == 0 {
		n.Limit = n.Tokens
	}
	w.step = fmt.Sprintf("Resume(%d of %d, headroom %d)", n.Tokens, n.Limit, n.Headroom)
	if got, want := w.real.Resume(s, n), w.model.resume(w.model.seqs[s], n); got != want {
		return differ(got, want)
	}
	return nil
}

func (w *world) free() error {
	var got, want kv.Outcome
	if w.rand.IntN(2) == 0 {
		s := w.seq()
		w.step = "Free"
		got, want = w.real.Free(s), w.model.free(s)
	} else {
		id := w.id()
		w.step = "Release"
		s, _ := w.model.byID(id)
		got, want = w.real.Release(id), w.model.free(s)
	}
	if got != want {
		return differ(got, want)
	}
	return nil
}

func (w *world) touch() error {
	s := w.seq()
	q := w.model.seqs[s]
	var got kv.Outcome
	want := kv.Unknown
	if w.rand.IntN(5) < 2 {
		w.step = "Touch"
		got = w.real.Touch(s)
		switch {
		case q == nil:
		case q.draining:
			want = kv.Quarantined
		default:
			q.touched++
			want = kv.OK
		}
	} else {
		w.step = "Quiet"
		got = w.real.Quiet(s)
		switch {
		case q == nil:
		case q.touched == 0:
			want = kv.Duplicate
		default:
			want = kv.OK
			if q.touched--; q.touched == 0 && q.draining {
				w.model.free(s)
			}
		}
	}
	if got != want {
		return differ(got, want)
	}
	return nil
}

func (w *world) mark() error {
	s := w.seq()
	tokens, bytes := w.rand.IntN(7)*w.real.Config().BlockTokens, int64(w.rand.IntN(8))
	w.step = fmt.Sprintf("Mark(%d, %d bytes)", tokens, bytes)
	if got, want := w.real.Mark(s, tokens, bytes), w.model.mark(w.model.seqs[s], tokens, bytes); got != want {
		return differ(got, want)
	}
	return nil
}

func (w *world) evict() error {
	n := w.rand.IntN(3)
	w.step = fmt.Sprintf("Evict(%d)", n)
	got, want := w.real.Evict(n), 0
	for want < n && w.model.evict() {
		want++
	}
	if got != want {
		return differ(got, want)
	}
	return nil
}
