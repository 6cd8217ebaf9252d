package route

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/handoff"
	"pgregory.net/rapid"
)

func id(n int) handoff.ID { return handoff.Mint(uint64(n), [10]byte{}) }

func anyPair(Target, Target) error { return nil }

func worker(name string, role Role) Worker {
	return Worker{Name: name, Incarnation: 1, Role: role, Model: "m", Slots: 4, Cells: 1000, Context: 1000}
}

func fleet(compatible func(a, b Target) error, list ...Worker) *Router {
	r := New(compatible)
	for _, w := range list {
		r.Update(w)
	}
	return r
}

func TestTiesGoRound(t *testing.T) {
	r := fleet(anyPair, worker("p2", Prefill), worker("d1", Decode), worker("p1", Prefill), worker("d2", Decode), worker("d3", Decode))
	var got []string
	for range 4 {
		p, err := r.ChoosePair(Request{Model: "m", Tokens: 10})
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, p.Prefill.Worker+p.Decode.Worker)
	}
	if d := cmp.Diff([]string{"p1d1", "p2d2", "p1d3", "p2d1"}, got); d != "" {
		t.Error(d)
	}
}

func TestLeastLoaded(t *testing.T) {
	big := worker("d2", Decode)
	big.Slots = 8
	r := fleet(anyPair, worker("p1", Prefill), worker("p2", Prefill), worker("d1", Decode), big)
	book := func(n int, what handoff.Booking, name string, tokens int) {
		t.Helper()
		if err := r.Book(id(n), what, Target{name, 1}, tokens); err != nil {
			t.Fatal(err)
		}
	}
	want := func(prefill, decode string) {
		t.Helper()
		p, err := r.ChoosePair(Request{Model: "m", Tokens: 10})
		if err != nil || p.Prefill.Worker != prefill || p.Decode.Worker != decode {
			t.Fatalf("got %v %v, want %s and %s", p, err, prefill, decode)
		}
	}
	book(1, handoff.BookPrefill, "p1", 100)
	book(2, handoff.BookPrefill, "p2", 50)
	book(1, handoff.BookDecode, "d1", 10)
	book(2, handoff.BookDecode, "d2", 10)
	want("p2", "d2") // fewer prompt tokens; 1 of 8 slots is less than 1 of 4
	book(3, handoff.BookPrefill, "p2", 51)
	book(3, handoff.BookDecode, "d2", 1)
	want("p1", "d1") // equal shares of slots: fewer tokens
	if err := r.Unbook(id(1), handoff.BookPrefill); err != nil {
		t.Fatal(err)
	}
	want("p1", "d1")
	// With no prompt left to compute, ownership decides between prefill workers.
	for _, n := range []int{2, 3} {
		if err := r.Unbook(id(n), handoff.BookPrefill); err != nil {
			t.Fatal(err)
		}
	}
	book(4, handoff.BookSource, "p1", 0)
	want("p2", "d1")
}

func TestRefusals(t *testing.T) {
	draining, small, other := worker("p1", Prefill), worker("p2", Prefill), worker("p3", Prefill)
	draining.Draining = true
	small.Cells = 99
	other.Model = "x"
	away := worker("p4", Prefill)
	away.Unreachable = true
	r := fleet(anyPair, draining, small, other, away, worker("d1", Decode))
	_, err := r.ChoosePair(Request{Model: "m", Tokens: 100})
	var refused *RefusedError
	if !errors.As(err, &refused) || !errors.Is(err, ErrRefused) {
		t.Fatalf("got %v", err)
	}
	want := &RefusedError{Prefill, []Refusal{
		{"d1", WrongRole, ""}, {"p1", Draining, ""}, {"p2", TooLong, ""}, {"p3", WrongModel, ""}, {"p4", Unreachable, ""},
	}}
	if d := cmp.Diff(want, refused); d != "" {
		t.Error(d)
	}
	if refused.Only(TooLong) || !refused.Has(TooLong) {
		t.Error("not only too long: one is draining")
	}
	draining.Draining, draining.Cells = false, 99
	r.Update(draining)
	r.Remove(away.Target())
	_, err = r.ChooseWhole(Request{Model: "m", Tokens: 100})
	if !errors.As(err, &refused) || !refused.Only(TooLong) {
		t.Errorf("all that could are too small: %v", err)
	}
	if got := r.Longest(Prefill, "m"); got != 99 {
		t.Errorf("longest %d", got)
	}
	if _, err := New(anyPair).ChoosePair(Request{Model: "m"}); err == nil {
		t.Error("a fleet of nobody chose")
	}
}

func TestOnlyCompatiblePairs(t *testing.T) {
	differ := errors.New("weights differ")
	r := fleet(func(a, b Target) error {
		if a.Worker == "p1" && b.Worker == "d2" || a.Worker == "p2" && b.Worker == "d1" {
			return nil
		}
		return differ
	}, worker("p1", Prefill), worker("p2", Prefill), worker("p3", Prefill), worker("d1", Decode), worker("d2", Decode))
	for range 6 {
		p, err := r.ChoosePair(Request{Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Prefill.Worker + p.Decode.Worker; got != "p1d2" && got != "p2d1" {
			t.Errorf("chose %s", got)
		}
	}
	r = fleet(func(a, b Target) error { return differ }, worker("p1", Prefill), worker("b1", Both))
	_, err := r.ChoosePair(Request{Model: "m"})
	var refused *RefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("got %v", err)
	}
	want := &RefusedError{Prefill, []Refusal{
		{"b1", Incompatible, "it is the only one and does not hand to itself"}, {"p1", Incompatible, "b1: weights differ"},
	}}
	if d := cmp.Diff(want, refused); d != "" {
		t.Error(d)
	}
	if got, err := r.ChooseWhole(Request{Model: "m"}); err != nil || got.IsZero() {
		t.Errorf("the request can be served whole: %v %v", got, err)
	}
}

func TestAvoid(t *testing.T) {
	r := fleet(anyPair, worker("p1", Prefill), worker("d1", Decode), worker("d2", Decode))
	for range 3 {
		p, err := r.ChoosePair(Request{Model: "m", Avoid: []Target{{"d2", 1}, {"p1", 1}}})
		if err != nil || p.Decode.Worker != "d1" || p.Prefill.Worker != "p1" {
			t.Fatalf("got %v %v", p, err)
		}
	}
	// A new incarnation of a worker that failed is a new worker.
	w := worker("d2", Decode)
	w.Incarnation = 2
	r.Update(w)
	r.Book(id(1), handoff.BookDecode, Target{"d1", 1}, 1)
	if p, err := r.ChoosePair(Request{Model: "m", Avoid: []Target{{"d2", 1}}}); err != nil || p.Decode != (Target{"d2", 2}) {
		t.Errorf("got %v %v", p, err)
	}
}

func TestExcludeAndSource(t *testing.T) {
	r := fleet(anyPair, worker("p1", Prefill), worker("p2", Prefill), worker("d1", Decode), worker("d2", Decode))
	q := Request{Model: "m", Source: Target{"p2", 1}, Exclude: []Target{{"d1", 1}}}
	for range 3 {
		if err := r.CheckPair(q); err != nil {
			t.Fatal(err)
		}
		if p, err := r.ChoosePair(q); err != nil || p.Prefill.Worker != "p2" || p.Decode.Worker != "d2" {
			t.Fatalf("got %v %v", p, err)
		}
	}
	q.Exclude = append(q.Exclude, Target{"d2", 1})
	var refused *RefusedError
	if err := r.CheckPair(q); !errors.As(err, &refused) || !refused.Only(Excluded) || refused.Side != Decode {
		t.Errorf("got %v", err)
	}
	q = Request{Model: "m", Source: Target{"p2", 7}}
	if _, err := r.ChoosePair(q); !errors.As(err, &refused) || !refused.Has(NotHolder) {
		t.Errorf("got %v", err)
	}
	// A source that drains hands over what it holds, and takes nothing new.
	draining := worker("p2", Prefill)
	draining.Draining = true
	r.Update(draining)
	q = Request{Model: "m", Source: Target{"p2", 1}}
	if p, err := r.ChoosePair(q); err != nil || p.Prefill.Worker != "p2" {
		t.Errorf("got %v %v", p, err)
	}
	if p, err := r.ChoosePair(Request{Model: "m"}); err != nil || p.Prefill.Worker != "p1" {
		t.Errorf("got %v %v", p, err)
	}
	if err := r.CheckWhole(Request{Model: "x"}); err == nil {
		t.Error("a model that nobody serves")
	}
	if err := r.CheckWhole(Request{Model: "m"}); err != nil {
		t.Error(err)
	}
}

// TestCheckChoosesNothing: checking does not move the turn.
func TestCheckChoosesNothing(t *testing.T) {
	r := fleet(anyPair, worker("p1", Prefill), worker("p2", Prefill), worker("d1", Decode))
	q := Request{Model: "m"}
	for _, want := range []string{"p1", "p2", "p1"} {
		r.CheckPair(q)
		r.CheckWhole(q)
		if p, err := r.ChoosePair(q); err != nil || p.Prefill.Worker != want {
			t.Errorf("got %v %v, want %s", p, err, want)
		}
	}
}

func TestIncarnations(t *testing.T) {
	r := fleet(anyPair, worker("d1", Decode), worker("d2", Decode), worker("p1", Prefill))
	r.Book(id(1), handoff.BookDecode, Target{"d1", 1}, 5)
	w := worker("d1", Decode)
	w.Incarnation = 3
	if !r.Update(w) {
		t.Fatal("newer incarnation ignored")
	}
	w.Incarnation = 2
	if r.Update(w) || r.Live(Target{"d1", 2}) || !r.Live(Target{"d1", 3}) {
		t.Fatal("older incarnation taken")
	}
	if e := r.live(Target{"d1", 3}); e.requests != 0 {
		t.Error("the old incarnation's booking counts against the new one")
	}
	r.Remove(Target{"d1", 1})
	if !r.Live(Target{"d1", 3}) {
		t.Error("a late goodbye of the old incarnation removed the new one")
	}
	if err := r.Unbook(id(1), handoff.BookDecode); err != nil {
		t.Errorf("a booking must end although its worker is gone: %v", err)
	}
	// A worker that was lost and comes back unchanged still has what was booked on it.
	r.Book(id(2), handoff.BookDecode, Target{"d1", 3}, 5)
	w.Incarnation = 3
	r.Remove(w.Target())
	r.Update(w)
	if e := r.live(w.Target()); e.requests != 1 {
		t.Error("bookings forgotten while the worker was away")
	}
}

func TestBookingsEndOnce(t *testing.T) {
	r := fleet(anyPair, worker("d1", Decode))
	at := Target{"d1", 1}
	if err := r.Book(id(1), handoff.BookDecode, at, 5); err != nil {
		t.Fatal(err)
	}
	if err := r.Book(id(1), handoff.BookDecode, at, 5); !errors.Is(err, ErrBooked) {
		t.Errorf("booked twice: %v", err)
	}
	if got, ok := r.Booked(id(1), handoff.BookDecode); !ok || got != at {
		t.Errorf("booked at %v %v", got, ok)
	}
	if err := r.Unbook(id(1), handoff.BookPrefill); !errors.Is(err, ErrNotBooked) {
		t.Errorf("another part ended: %v", err)
	}
	if err := r.Unbook(id(1), handoff.BookDecode); err != nil {
		t.Fatal(err)
	}
	if err := r.Unbook(id(1), handoff.BookDecode); !errors.Is(err, ErrNotBooked) {
		t.Errorf("ended twice: %v", err)
	}
	if e := r.live(at); e.load != (load{}) || r.Bookings() != 0 {
		t.Errorf("left over: %+v", e.load)
	}
}

// TestRandom runs random calls on two routers, by any policies: they agree (determinism), each
// worker's load is the sum of the bookings on its incarnation, every choice is one that the filters
// allow, and by the default nobody less loaded was passed over.
func TestRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		incompatible := func(a, b Target) error {
			if (len(a.Worker)+int(a.Incarnation)+int(b.Worker[1]))%4 == 0 {
				return errors.New("no")
			}
			return nil
		}
		one, two := New(incompatible), New(incompatible)
		options := Options{
			Prefill: Policy(rapid.IntRange(0, int(policies)-1).Draw(t, "prefill policy")),
			Decode:  Policy(rapid.IntRange(0, int(policies)-1).Draw(t, "decode policy")),
			Seed:    rapid.Uint64().Draw(t, "seed"), KeyTokens: 16,
		}
		one.Use(options)
		two.Use(options)
		both := func(f func(r *Router) string) string {
			a, b := f(one), f(two)
			if a != b {
				t.Fatalf("two routers differ: %s and %s", a, b)
			}
			return a
		}
		target := rapid.Custom(func(t *rapid.T) Target {
			return Target{fmt.Sprintf("w%d", rapid.IntRange(0, 5).Draw(t, "worker")), uint64(rapid.IntRange(1, 2).Draw(t, "incarnation"))}
		})
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			at := target.Draw(t, "target")
			n := rapid.IntRange(0, 9).Draw(t, "id")
			what := handoff.Booking(rapid.IntRange(1, 4).Draw(t, "what"))
			switch rapid.IntRange(0, 5).Draw(t, "verb") {
			case 0:
				w := worker(at.Worker, Role(rapid.IntRange(1, 3).Draw(t, "role")))
				w.Incarnation = at.Incarnation
				w.Slots = rapid.IntRange(1, 3).Draw(t, "slots")
				w.Cells = rapid.IntRange(50, 150).Draw(t, "cells")
				w.Draining = rapid.IntRange(0, 5).Draw(t, "draining") == 0
				both(func(r *Router) string { return fmt.Sprint(r.Update(w)) })
			case 1:
				both(func(r *Router) string { r.Remove(at); return "" })
			case 2:
				tokens := rapid.IntRange(0, 9).Draw(t, "tokens")
				both(func(r *Router) string { return fmt.Sprint(r.Book(id(n), what, at, tokens)) })
			case 3:
				both(func(r *Router) string { return fmt.Sprint(r.Unbook(id(n), what)) })
			case 4:
				q := Request{Model: "m", Tokens: rapid.IntRange(0, 150).Draw(t, "size"), Avoid: []Target{at}, Keys: chain(rapid.IntRange(0, 3).Draw(t, "prompt"), rapid.IntRange(0, 12).Draw(t, "blocks"))}
				both(func(r *Router) string {
					p, err := r.ChoosePair(q)
					if err == nil {
						checkPair(t, r, q, p)
						r.Learn(p.Prefill, q.Keys)
						r.Learn(p.Decode, q.Keys)
					}
					if check := r.CheckPair(q); fmt.Sprint(check) != fmt.Sprint(err) {
						t.Fatalf("ChoosePair says %v, CheckPair %v", err, check)
					}
					return fmt.Sprint(p, err)
				})
			case 5:
				q := Request{Model: "m", Tokens: rapid.IntRange(0, 150).Draw(t, "size"), Exclude: []Target{at}}
				both(func(r *Router) string {
					w, err := r.ChooseWhole(q)
					if e := r.live(w); err == nil && (e == nil || w == at || e.Role == Decode || e.Draining || q.Tokens > e.holds()) {
						t.Fatalf("chose %v for %v", w, q)
					}
					return fmt.Sprint(w, err)
				})
			}
			for _, e := range one.workers {
				if e.load != one.sum(e.Target()) {
					t.Fatalf("%s has load %+v, bookings say %+v", e.Name, e.load, one.sum(e.Target()))
				}
			}
		}
	})
}

func checkPair(t *rapid.T, r *Router, q Request, p Pair) {
	s, d := r.live(p.Prefill), r.live(p.Decode)
	if s == nil || d == nil || s == d || r.compatible(p.Prefill, p.Decode) != nil ||
		s.Role == Decode || d.Role == Prefill || s.Draining || d.Draining || q.Tokens > s.holds() || q.Tokens > d.holds() {
		t.Fatalf("chose %v for %v", p, q)
	}
	if r.options.Decode != LeastLoaded {
		return
	}
	for _, o := range r.workers {
		if o.Role != Prefill && !o.Draining && q.Tokens <= o.holds() && o != s && r.compatible(p.Prefill, o.Target()) == nil &&
			o.Target() != q.Avoid[0] && o.compare(Decode, d) < 0 && p.Decode != q.Avoid[0] {
			t.Fatalf("chose %v, %s is less loaded", p, o.Name)
		}
	}
}
