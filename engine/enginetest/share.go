package enginetest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/tandem-llm/tandem/engine"
)

// sharePage is the chunk of these tests, and all sequences are whole chunks: what
// is computed after a prefix has the same bits as from the start only where cells
// lie alike, and hosts retire whole chunks for that reason.
const sharePage = 64

// boundaries computes tokens in chunks and returns the snapshot after each page.
func boundaries(t testing.TB, e engine.Engine, seq int32, tokens []engine.Token) (map[int][]byte, []float32) {
	t.Helper()
	all := map[int][]byte{}
	logits := Prefill(t, e, seq, tokens, sharePage, func(_, end int) {
		if end%sharePage == 0 {
			all[end], _ = ExportSnapshot(t, e, seq)
		}
	})
	return all, logits
}

type piece struct {
	from       int32
	first, end int
}

// fork makes a sequence of n tokens of pieces of others and a snapshot.
func fork(e engine.Engine, seq int32, n int, snapshot []byte, pieces ...piece) error {
	imp, err := e.BeginImport(seq, n)
	if err != nil {
		return err
	}
	for _, p := range pieces {
		if !e.Paged() {
			break
		}
		if err := imp.Share(p.from, p.first, p.end); err != nil {
			return err
		}
	}
	if len(snapshot) > 0 {
		if err := imp.Snapshot(snapshot); err != nil {
			return err
		}
	}
	return imp.Commit()
}

// rest computes what a fork does not have yet.
func rest(t testing.TB, e engine.Engine, seq int32, tokens []engine.Token, have int) []float32 {
	t.Helper()
	var logits []float32
	for first := have; first < len(tokens); first += sharePage {
		end := min(first+sharePage, len(tokens))
		if err := e.Decode(Rows(tokens[first:end], first, seq)); err != nil {
			t.Fatal(err)
		}
		l, err := e.Logits(end - first - 1)
		if err != nil {
			t.Fatal(err)
		}
		logits = append(logits[:0], l...)
	}
	return logits
}

// A prefix that is shared is the prefix that was computed: from a sequence that
// goes on, from a retired one, and from pieces of several. Where it was and what
// became of the others changes nothing.
func testShare(t *testing.T, open Open) {
	c := Config{Slots: 6, Cells: 2048, BatchTokens: 256}
	e := opened(t, open, c)
	long := Prompt(e.Vocab(), 5*sharePage, 1)
	other := append(append([]engine.Token(nil), long[:3*sharePage]...), Prompt(e.Vocab(), 2*sharePage, 2)...)
	cold := func(tokens []engine.Token) []byte {
		defer e.Drop(0)
		Prefill(t, e, 0, tokens, sharePage, nil)
		return Canonical(t, e, 0)
	}
	at := 3 * sharePage
	wantLong, wantOther, wantPrefix := cold(long), cold(other), cold(long[:at])
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	same := func(what string, seq int32, want []byte) {
		t.Helper()
		if !bytes.Equal(Canonical(t, e, seq), want) {
			t.Errorf("%s: the state is another", what)
		}
	}
	snaps, logits := boundaries(t, e, 1, long)
	must(fork(e, 2, at, snaps[at], piece{1, 0, at}))
	if e.Tokens(2) != at {
		t.Errorf("the fork has %d tokens, want %d", e.Tokens(2), at)
	}
	same("the prefix alone", 2, wantPrefix)
	rest(t, e, 2, other, at)
	same("shared with a live sequence", 2, wantOther)
	same("the sequence it was shared with", 1, wantLong)
	next, _ := Greedy(t, e, 1, logits, sharePage)
	same("after the other went on", 2, wantOther)
	if len(next) == 0 {
		t.Error("it did not")
	}
	if !e.Paged() {
		return
	}
	must(e.Retire(1))
	must(e.Trim(1, 5*sharePage, -1))
	must(fork(e, 3, at, snaps[at], piece{1, 0, at}))
	rest(t, e, 3, other, at)
	same("shared with a retired sequence", 3, wantOther)
	must(e.Retire(2))
	must(e.Trim(2, 0, sharePage))
	must(e.Trim(1, sharePage, 2*sharePage))
	must(fork(e, 4, at, snaps[at], piece{1, 0, sharePage}, piece{2, sharePage, 2 * sharePage}, piece{1, 2 * sharePage, at}))
	rest(t, e, 4, long, at)
	same("put together from two retired ones", 4, wantLong)
	// Gathered in one retired slot, the other may go.
	must(e.Keep(1, 2, sharePage, 2*sharePage))
	for _, seq := range []int32{2, 3, 4} {
		must(e.Drop(seq))
	}
	must(fork(e, 5, at, snaps[at], piece{1, 0, at}))
	rest(t, e, 5, long, at)
	same("from what was gathered", 5, wantLong)
	must(e.Trim(1, 0, -1))
	same("after the retired one went", 5, wantLong)
	must(e.Drop(5))
	// Nothing is left: all cells are there again.
	for seq := range int32(4) {
		Prefill(t, e, seq, Prompt(e.Vocab(), 500, uint64(seq)), 250, nil)
	}
}

// snapshotOf is the snapshot after n tokens of the prompt of testShareRefusals.
func snapshotOf(t *testing.T, open Open, n int) []byte {
	t.Helper()
	e := opened(t, open, standard)
	Prefill(t, e, 0, Prompt(e.Vocab(), 100, 1)[:n], n, nil)
	s, _ := ExportSnapshot(t, e, 0)
	return s
}

// What sharing and retiring refuse, and what a failed one leaves.
func testShareRefusals(t *testing.T, open Open) {
	e := opened(t, open, standard)
	Prefill(t, e, 0, Prompt(e.Vocab(), 100, 1), 100, nil)
	for _, seq := range []int32{-1, 3, 256, 1} {
		if err := e.Retire(seq); !errors.Is(err, engine.ErrSequence) {
			t.Errorf("Retire(%d): %v", seq, err)
		}
		if err := e.Trim(seq, 0, 1); !errors.Is(err, engine.ErrSequence) {
			t.Errorf("Trim(%d): %v", seq, err)
		}
		if err := e.Keep(seq, 0, 0, 1); !errors.Is(err, engine.ErrSequence) {
			t.Errorf("Keep(%d): %v", seq, err)
		}
	}
	if err := e.Trim(0, 0, 10); !errors.Is(err, engine.ErrSequence) {
		t.Errorf("trimming a sequence that is decoded: %v", err)
	}
	if !e.Paged() {
		return
	}
	for _, p := range []piece{{0, 0, 101}, {0, -1, 10}, {0, 10, 10}, {1, 0, 10}, {2, 0, 10}, {-1, 0, 10}, {0, 40, 60}} {
		imp, err := e.BeginImport(1, 50)
		if err != nil {
			t.Fatal(err)
		}
		err = imp.Share(p.from, p.first, p.end)
		if !errors.Is(err, engine.ErrSequence) && !errors.Is(err, engine.ErrCoverage) {
			t.Errorf("sharing %+v: %v", p, err)
		}
		if err := imp.Share(0, 0, 10); !errors.Is(err, engine.ErrImportDead) {
			t.Errorf("after it was refused: %v", err)
		}
	}
	// What a failed or discarded import shared stays, and nothing else of it.
	before := func(seq int32) []byte {
		t.Helper()
		if err := fork(e, seq, 40, snapshotOf(t, open, 40), piece{0, 0, 40}); err != nil {
			t.Fatal(err)
		}
		defer e.Drop(seq)
		return Canonical(t, e, seq)
	}
	want := before(2)
	for _, fails := range []bool{true, false} {
		imp, err := e.BeginImport(1, 90)
		if err != nil {
			t.Fatal(err)
		}
		if err := imp.Share(0, 0, 40); err != nil {
			t.Fatal(err)
		}
		if err := imp.Page(40, 80, ExportPage(t, e, 0, 40, 80).Payload); err != nil {
			t.Fatal(err)
		}
		// Another one may share what this one does, while it is not committed.
		if err := fork(e, 2, 40, snapshotOf(t, open, 40), piece{1, 0, 40}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(Canonical(t, e, 2), want) {
			t.Error("shared from an import: the state is another")
		}
		if err := e.Drop(2); err != nil {
			t.Fatal(err)
		}
		if err := fork(e, 2, 80, nil, piece{1, 0, 80}); !errors.Is(err, engine.ErrSequence) {
			t.Errorf("sharing what an import received: %v", err)
		}
		if fails {
			if err := imp.Commit(); !errors.Is(err, engine.ErrCoverage) {
				t.Errorf("a commit of 80 of 90: %v", err)
			}
		} else if err := imp.Discard(); err != nil {
			t.Fatal(err)
		}
		if err := e.Retire(1); err != nil {
			t.Errorf("retiring what is retired: %v", err)
		}
		if err := fork(e, 2, 41, nil, piece{1, 0, 41}); !errors.Is(err, engine.ErrSequence) {
			t.Errorf("sharing more than was kept: %v", err)
		}
		if err := e.Drop(2); err != nil {
			t.Fatal(err)
		}
		if err := fork(e, 2, 40, snapshotOf(t, open, 40), piece{1, 0, 40}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(Canonical(t, e, 2), want) {
			t.Error("shared from what was kept: the state is another")
		}
		for _, seq := range []int32{1, 2} {
			if err := e.Drop(seq); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := e.Retire(0); err != nil {
		t.Fatal(err)
	}
	if e.Tokens(0) != 0 {
		t.Errorf("a retired slot has %d tokens", e.Tokens(0))
	}
	_, err1 := e.Canonical(0)
	_, err2 := e.BeginImport(0, 5)
	_, err3 := e.ExportPage(0, 0, 10, make([]byte, e.PageBytes(10)))
	for i, err := range []error{e.Decode(Rows(Prompt(e.Vocab(), 1, 1), 100, 0)), e.Keep(0, 0, 0, 1), e.Trim(0, 5, 5), err1, err2, err3} {
		if !errors.Is(err, engine.ErrSequence) {
			t.Errorf("call %d on a retired slot: %v", i, err)
		}
	}
	if err := e.Trim(0, 20, 30); err != nil {
		t.Fatal(err)
	}
	if err := fork(e, 1, 50, nil, piece{0, 0, 50}); !errors.Is(err, engine.ErrSequence) {
		t.Errorf("sharing what was trimmed: %v", err)
	}
	if err := e.Drop(0); err != nil {
		t.Fatal(err)
	}
}
