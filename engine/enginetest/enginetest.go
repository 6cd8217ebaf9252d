// Package enginetest checks that an implementation of engine.Engine keeps the
// contract that hosts rely on: what is refused changes nothing, state that
// leaves and enters is the same state, a failed import leaves nothing behind,
// and a request alone always gives the same bits.
//
// An implementation's own tests call [Run] with a way to open it, once for each
// kind of model it serves.
package enginetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/state"
)

// Config is what a test needs of an engine.
type Config struct {
	Slots, Cells, BatchTokens int
}

// Open opens a new engine of one and the same model. It fails the test if it
// cannot; the suite closes what it opens.
type Open func(t testing.TB, c Config) engine.Engine

// Run runs the whole suite.
func Run(t *testing.T, open Open) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Open)
	}{
		{"Info", testInfo},
		{"Vocab", testVocab},
		{"DecodeRefusals", testDecodeRefusals},
		{"Logits", testLogits},
		{"Drop", testDrop},
		{"Repeatable", testRepeatable},
		{"NoCells", testNoCells},
		{"Handoff", testHandoff},
		{"ExportRefusals", testExportRefusals},
		{"ImportStates", testImportStates},
		{"ImportRefusals", testImportRefusals},
		{"Scan", testScan},
		{"ImportNoCells", testImportNoCells},
		{"ScatteredCells", testScatteredCells},
		{"Interleaved", testInterleaved},
		{"Share", testShare},
		{"ShareRefusals", testShareRefusals},
		{"Closed", testClosed},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open) })
	}
}

// standard is the configuration most tests use.
var standard = Config{Slots: 3, Cells: 1024, BatchTokens: 256}

func opened(t testing.TB, open Open, c Config) engine.Engine {
	t.Helper()
	e := open(t, c)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return e
}

// Prompt returns n tokens of the vocabulary that mean text, the same for the
// same seed.
func Prompt(v engine.Vocab, n int, seed uint64) []engine.Token {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]engine.Token, 0, n)
	for len(out) < n {
		t := engine.Token(r.IntN(v.Size()))
		if !v.IsControl(t) && !v.IsEOG(t) && len(v.Piece(t)) > 0 {
			out = append(out, t)
		}
	}
	return out
}

// Rows makes the rows that append tokens to a sequence of which past positions
// are there; the last one has output.
func Rows(tokens []engine.Token, past int, seq int32) []engine.Row {
	rows := make([]engine.Row, len(tokens))
	for i, t := range tokens {
		rows[i] = engine.Row{Token: t, Pos: int32(past + i), Seq: seq, Output: i == len(tokens)-1}
	}
	return rows
}

// Prefill computes tokens in chunks and returns a copy of the last logits. after
// is called after each chunk, with its range.
func Prefill(t testing.TB, e engine.Engine, seq int32, tokens []engine.Token, chunk int, after func(first, end int)) []float32 {
	t.Helper()
	var logits []float32
	for first := 0; first < len(tokens); first += chunk {
		end := min(first+chunk, len(tokens))
		if err := e.Decode(Rows(tokens[first:end], first, seq)); err != nil {
			t.Fatalf("Decode [%d,%d): %v", first, end, err)
		}
		if end == len(tokens) {
			l, err := e.Logits(end - first - 1)
			if err != nil {
				t.Fatal(err)
			}
			logits = append([]float32(nil), l...)
		}
		if after != nil {
			after(first, end)
		}
	}
	return logits
}

// Greedy continues a sequence that gave logits for n steps: the tokens, and all
// logits, the given ones included.
func Greedy(t testing.TB, e engine.Engine, seq int32, logits []float32, n int) ([]engine.Token, [][]float32) {
	t.Helper()
	var tokens []engine.Token
	all := [][]float32{logits}
	for range n {
		tok := Argmax(logits)
		tokens = append(tokens, tok)
		if err := e.Decode(Rows([]engine.Token{tok}, e.Tokens(seq), seq)); err != nil {
			t.Fatal(err)
		}
		l, err := e.Logits(0)
		if err != nil {
			t.Fatal(err)
		}
		logits = append([]float32(nil), l...)
		all = append(all, logits)
	}
	return tokens, all
}

// Argmax is the lowest token with the largest logit.
func Argmax(logits []float32) engine.Token {
	best := 0
	for i, l := range logits {
		if l > logits[best] {
			best = i
		}
	}
	return engine.Token(best)
}

// SameBits compares logits bit for bit and says where they first differ.
func SameBits(a, b [][]float32) error {
	if len(a) != len(b) {
		return fmt.Errorf("%d rows and %d", len(a), len(b))
	}
	for i := range a {
		if len(a[i]) != len(b[i]) {
			return fmt.Errorf("row %d has %d and %d logits", i, len(a[i]), len(b[i]))
		}
		for j := range a[i] {
			if math.Float32bits(a[i][j]) != math.Float32bits(b[i][j]) {
				return fmt.Errorf("row %d, logit %d: %v and %v", i, j, a[i][j], b[i][j])
			}
		}
	}
	return nil
}

// Page is an exported page.
type Page struct {
	First, End int
	Payload    []byte
}

// Exported is the whole state of a sequence as it travels.
type Exported struct {
	Tokens   int
	Pages    []Page
	Snapshot []byte // empty when pages are everything
	Parts    []state.ComponentRef
}

// ExportPage exports one page into new memory.
func ExportPage(t testing.TB, e engine.Engine, seq int32, first, end int) Page {
	t.Helper()
	p := Page{First: first, End: end, Payload: make([]byte, e.PageBytes(end-first))}
	if n, err := e.ExportPage(seq, first, end, p.Payload); err != nil || n != len(p.Payload) {
		t.Fatalf("ExportPage [%d,%d): %d of %d bytes, %v", first, end, n, len(p.Payload), err)
	}
	return p
}

// ExportSnapshot exports the snapshot, if the model has one, into new memory.
func ExportSnapshot(t testing.TB, e engine.Engine, seq int32) ([]byte, []state.ComponentRef) {
	t.Helper()
	size, err := e.SnapshotBytes(seq)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	n, parts, err := e.ExportSnapshot(seq, b)
	if err != nil || n != size {
		t.Fatalf("ExportSnapshot: %d of %d bytes, %v", n, size, err)
	}
	return b, parts
}

// PrefillAndExport computes tokens in chunks and exports each as a page when it
// is there, then the snapshot.
func PrefillAndExport(t testing.TB, e engine.Engine, seq int32, tokens []engine.Token, chunk int) (Exported, []float32) {
	t.Helper()
	x := Exported{Tokens: len(tokens)}
	logits := Prefill(t, e, seq, tokens, chunk, func(first, end int) {
		if e.Paged() {
			x.Pages = append(x.Pages, ExportPage(t, e, seq, first, end))
		}
	})
	x.Snapshot, x.Parts = ExportSnapshot(t, e, seq)
	return x, logits
}

// Import imports and commits x. The first error ends it.
func Import(e engine.Engine, seq int32, x Exported) error {
	imp, err := e.BeginImport(seq, x.Tokens)
	if err != nil {
		return err
	}
	for _, p := range x.Pages {
		if err := imp.Page(p.First, p.End, p.Payload); err != nil {
			return err
		}
	}
	if len(x.Snapshot) > 0 {
		if err := imp.Snapshot(x.Snapshot); err != nil {
			return err
		}
	}
	return imp.Commit()
}

// Canonical is the canonical state of a sequence.
func Canonical(t testing.TB, e engine.Engine, seq int32) []byte {
	t.Helper()
	b, err := e.Canonical(seq)
	if err != nil {
		t.Fatalf("Canonical(%d): %v", seq, err)
	}
	return b
}
