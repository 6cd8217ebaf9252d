package profile

import (
	"bytes"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/engine/llama"
	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/state"
)

// scripted is an engine on a virtual clock, whose times are known.
type scripted struct {
	engine.Engine // panics for what a profile does not need
	law           timed.Fitted
	noise         func() float64
	clock         time.Duration
	held          [16]int
	paged         bool
	odd           func(n int) float64 // a chunk of n takes so many times longer
}

func (s *scripted) chunkMS(t, past float64) float64 {
	return s.law.StepMS + s.law.TokenMS*t + s.law.PastMS*past + s.law.PairMS*(past*t+t*t/2)
}

const pageByte, snapshotBytes = 1000, 500_000

func (s *scripted) Info() engine.Info {
	return engine.Info{
		Slots: 16, Cells: 1 << 17, ContextTokens: 1 << 14, BatchTokens: 512,
		Inventory: state.Inventory{
			{Kind: state.AttentionKV, PerToken: pageByte}, {Kind: state.Recurrent, Fixed: snapshotBytes},
			{Kind: state.MTPKV, PerToken: 7, Inactive: "not in this test"},
		},
	}
}

func (s *scripted) spend(ms float64) {
	s.clock += time.Duration(ms * s.noise() * 1e6)
}

func (s *scripted) Decode(rows []engine.Row) error {
	seqs := map[int32]int{}
	for _, r := range rows {
		if int(r.Pos) != s.held[r.Seq] {
			return engine.ErrBatch
		}
		s.held[r.Seq]++
		seqs[r.Seq]++
	}
	ms, context := 0.0, 0
	for seq := range seqs {
		context += s.held[seq] - 1
	}
	if len(seqs) == len(rows) { // no grid of these tests has a chunk of one token
		d := s.law.Decode[0]
		if context != s.cells() {
			return errors.New("cells of others are in use")
		}
		ms = d.StepMS + d.SequenceMS*float64(len(rows)) + (d.ContextMS+d.PairMS*float64(len(rows)))*float64(context)
	} else {
		ms = s.chunkMS(float64(len(rows)), float64(rows[0].Pos)) * s.odd(len(rows))
	}
	s.spend(ms)
	return nil
}

// cells is how many tokens are held before the batch, which has one more of each.
func (s *scripted) cells() int {
	n := 0
	for _, held := range s.held {
		n += max(0, held-1)
	}
	return n
}

func (s *scripted) Logits(int) ([]float32, error) { return nil, nil }
func (s *scripted) Vocab() engine.Vocab           { return words{} }
func (s *scripted) Tokens(seq int32) int          { return s.held[seq] }
func (s *scripted) Drop(seq int32) error          { s.held[seq] = 0; return nil }
func (s *scripted) Paged() bool                   { return s.paged }
func (s *scripted) PageBytes(n int) int           { return n * pageByte }
func (s *scripted) SnapshotBytes(int32) (int, error) {
	return snapshotBytes, nil
}

func (s *scripted) ExportPage(_ int32, first, end int, dst []byte) (int, error) {
	s.spend(0.5 + float64(len(dst))/1e6) // 1 GB/s
	return len(dst), nil
}

func (s *scripted) ExportSnapshot(_ int32, dst []byte) (int, []state.ComponentRef, error) {
	s.spend(0.5 + float64(len(dst))/1e6)
	return len(dst), nil, nil
}
func (s *scripted) ScanPage(_, _ int, p []byte) error { s.spend(float64(len(p)) / 2e6); return nil }
func (s *scripted) ScanSnapshot(_ int, p []byte) error {
	s.spend(float64(len(p)) / 2e6)
	return nil
}
func (s *scripted) BeginImport(int32, int) (engine.Import, error) { return importing{s: s}, nil }

type importing struct {
	engine.Import
	s *scripted
}

func (importing) Scanned()      {}
func (importing) Commit() error { return nil }
func (i importing) Page(_, _ int, p []byte) error {
	i.s.spend(0.25 + float64(len(p))/2e6)
	return nil
}
func (i importing) Snapshot(p []byte) error { i.s.spend(0.25 + float64(len(p))/2e6); return nil }

type words struct{ engine.Vocab }

func (words) Size() int                     { return 300 }
func (words) IsControl(t engine.Token) bool { return t < 3 }
func (words) IsEOG(t engine.Token) bool     { return t == 3 }

func newScripted(noise func() float64) *scripted {
	return &scripted{
		noise: noise, paged: true, odd: func(int) float64 { return 1 },
		law: timed.Fitted{
			StepMS: 3, TokenMS: 0.25, PastMS: 0.002, PairMS: 2e-5,
			Decode: []timed.DecodeFit{{StepMS: 2, SequenceMS: 0.75, ContextMS: 3e-4, PairMS: 1e-4}},
		},
	}
}

func exactly() float64 { return 1 }

// noisy is off by a tenth at random, and now and then ten times slower.
func noisy(seed uint64) func() float64 {
	rng := rand.New(rand.NewPCG(seed, 2))
	return func() float64 {
		if rng.IntN(12) == 0 {
			return 10
		}
		return 0.9 + 0.2*rng.Float64()
	}
}

func (s *scripted) run(t *testing.T, c Config) (*Report, error) {
	t.Helper()
	c.Now = func() time.Duration { return s.clock }
	if c.New == nil {
		c.New = []int{8, 32, 128, 512}
	}
	return Run(t.Context(), s, c)
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance*math.Abs(want)) {
		t.Errorf("%s is %g, want %g within %g%%", what, got, want, 100*tolerance)
	}
}

func TestProfileFindsTheCoefficientsOfAnEngine(t *testing.T) {
	for _, c := range []struct {
		name      string
		noise     func() float64
		runs      int
		tolerance float64
	}{{"exact", exactly, 2, 1e-4}, {"noisy", noisy(1), 11, 0.12}} {
		t.Run(c.name, func(t *testing.T) {
			s := newScripted(c.noise)
			r, err := s.run(t, Config{Runs: c.runs})
			if err != nil {
				t.Fatal(err)
			}
			f, want := r.Timing.Fitted, s.law
			near(t, "a step of a prompt", f.StepMS, want.StepMS, 2*c.tolerance)
			near(t, "a token", f.TokenMS, want.TokenMS, c.tolerance)
			near(t, "a pair", f.PairMS, want.PairMS, 2*c.tolerance)
			near(t, "a decode step", f.Decode[0].StepMS, want.Decode[0].StepMS, 2*c.tolerance)
			near(t, "a sequence", f.Decode[0].SequenceMS, want.Decode[0].SequenceMS, c.tolerance)
			near(t, "a token of context", f.Decode[0].ContextMS, want.Decode[0].ContextMS, 2*c.tolerance)
			near(t, "a sequence and a token", f.Decode[0].PairMS, want.Decode[0].PairMS, c.tolerance)
			near(t, "an export", r.Timing.Moves.ExportBytesPerSecond, 1e9, 2*c.tolerance)
			near(t, "an import", r.Timing.Moves.ImportBytesPerSecond, 1e9, 2*c.tolerance)
			near(t, "an import's fixed part", r.Timing.Moves.ImportMS, 0.25, 4*c.tolerance)
			if g := r.Timing.Geometry; g != (timed.Geometry{AttentionPerToken: pageByte, Recurrent: snapshotBytes}) {
				t.Errorf("size of state: %+v", g)
			}

			// What is written is what replay reads.
			var file bytes.Buffer
			if err := r.Timing.Write(&file); err != nil {
				t.Fatal(err)
			}
			m, err := timed.Load(&file)
			if err != nil {
				t.Fatal(err)
			}
			d := want.Decode[0]
			near(t, "a step of the model", m.Step(&timed.Batch{Decodes: 10, Context: 20000}).Seconds()*1e3,
				d.StepMS+10*d.SequenceMS+20000*(d.ContextMS+10*d.PairMS), c.tolerance)

			var table bytes.Buffer
			if err := r.WriteTable(&table); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"prefill 8 on 0", "decode 16 of", "export snapshot of 500000 bytes", "prefill: error", "ms per token of context"} {
				if !strings.Contains(table.String(), want) {
					t.Errorf("the table does not say %q:\n%s", want, table.String())
				}
			}
			for seq, held := range s.held {
				if held != 0 {
					t.Errorf("sequence %d still holds %d tokens", seq, held)
				}
			}
		})
	}
}

func TestFirstRunDoesNotCount(t *testing.T) {
	cold := 20.0
	s := newScripted(func() float64 { return cold })
	r, err := s.run(t, Config{Runs: 1, Say: func(line string) {
		switch {
		case strings.Contains(line, ": run 0 of 1"):
			cold = 1
		case strings.Contains(line, ": run 1 of 1"):
			cold = 20
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	near(t, "a token", r.Timing.Fitted.TokenMS, s.law.TokenMS, 1e-3)
	near(t, "a sequence", r.Timing.Fitted.Decode[0].SequenceMS, s.law.Decode[0].SequenceMS, 1e-3)
	near(t, "an import", r.Timing.Moves.ImportBytesPerSecond, 1e9, 1e-3)
}

func TestTableKeepsWhatNoLawDescribes(t *testing.T) {
	// Chunks of 8 are ten times slower than the law of all others says.
	s := newScripted(exactly)
	odd := func(n int) float64 {
		if n == 8 {
			return 10
		}
		return 1
	}
	s.odd = odd
	if _, err := s.run(t, Config{Runs: 1, MaxError: 0.01}); !errors.Is(err, ErrFit) || !strings.Contains(err.Error(), "--form=table") {
		t.Fatalf("an engine without a law was fitted: %v", err)
	}
	r, err := s.run(t, Config{Runs: 1, MaxError: 0.01, Form: Table})
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.Timing.Build()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []timed.Chunk{{New: 8, Past: 512}, {New: 128, Past: 1024}, {New: 512, Past: 3000}} {
		got := m.Step(&timed.Batch{Chunks: []timed.Chunk{c}}).Seconds() * 1e3
		// Pasts of the grid lie up to 680 tokens before those that were measured.
		near(t, "a chunk", got, s.chunkMS(float64(c.New), float64(c.Past))*odd(c.New), 0.03)
	}
	d := s.law.Decode[0]
	near(t, "a decode step", m.Step(&timed.Batch{Decodes: 8, Context: 8000}).Seconds()*1e3, d.StepMS+8*d.SequenceMS+8000*(d.ContextMS+8*d.PairMS), 1e-3)
}

func TestBadFitIsRefused(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	s := newScripted(func() float64 { return math.Exp(4 * rng.Float64()) })
	r, err := s.run(t, Config{Runs: 1})
	if !errors.Is(err, ErrFit) || !strings.Contains(err.Error(), "--max-error") || !strings.Contains(err.Error(), "--runs") {
		t.Fatalf("points without any order were fitted: %v", err)
	}
	if r == nil || r.Timing != nil || len(r.Fits) == 0 || len(r.Points) == 0 {
		t.Error("the report must show the points and the bad fit, and no model")
	}
	if _, err := newScripted(exactly).run(t, Config{Runs: 1, MaxError: 1e-3}); err != nil {
		t.Errorf("a perfect fit was refused: %v", err)
	}
}

func TestClockThatStandsIsRefused(t *testing.T) {
	s := newScripted(func() float64 { return 0 })
	if _, err := s.run(t, Config{Runs: 1}); !errors.Is(err, ErrFit) {
		t.Errorf("times of 0 were fitted: %v", err)
	}
}

func TestGridsThatDoNotFitAreRefused(t *testing.T) {
	for name, c := range map[string]Config{
		"a chunk larger than a batch": {New: []int{8, 1024}},
		"one size only":               {New: []int{8}},
		"a falling axis":              {Past: []int{100, 0}},
		"too many sequences":          {Batch: []int{1, 17}},
		"too long a past":             {Past: []int{0, 1 << 14}},
		"too much context":            {Context: []int{1, 16000}},
		"too many runs":               {Runs: 1 << 20},
		"an unknown form":             {Form: "poem"},
	} {
		s := newScripted(exactly)
		if _, err := s.run(t, c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
		if s.clock != 0 {
			t.Errorf("%s: something was measured", name)
		}
	}
}

func TestInterruptedProfileHasAReportAndNoModel(t *testing.T) {
	s := newScripted(exactly)
	ctx, stop := context.WithCancel(t.Context())
	r, err := Run(ctx, s, Config{
		New: []int{8, 32}, Runs: 2, Now: func() time.Duration { return s.clock },
		Say: func(line string) {
			if strings.HasPrefix(line, "decode: run 1") {
				stop()
			}
		},
	})
	if !errors.Is(err, context.Canceled) || r == nil || len(r.of(Prefill)) == 0 || r.Timing != nil {
		t.Errorf("%v, %+v", err, r)
	}
	for seq, held := range s.held {
		if held != 0 {
			t.Errorf("sequence %d still holds %d tokens", seq, held)
		}
	}
}

func TestLeastSquaresKeepsCoefficientsAboveZero(t *testing.T) {
	// y falls with x: the best line that does not is flat.
	c, err := leastSquares([][]float64{{1, 1}, {1, 2}, {1, 3}}, []float64{3, 2, 1})
	if err != nil || c[1] != 0 || c[0] <= 0 {
		t.Errorf("%v, %v", c, err)
	}
	// A column of nothing gets nothing.
	c, err = leastSquares([][]float64{{1, 0}, {1, 0}}, []float64{2, 2})
	if err != nil || math.Abs(c[0]-2) > 1e-12 || c[1] != 0 {
		t.Errorf("%v, %v", c, err)
	}
}

// TestProfileOfARealEngine looks at the shape of the report only: the machine may
// be busy.
func TestProfileOfARealEngine(t *testing.T) {
	lib, err := install.Find(install.Options{})
	if err != nil {
		t.Skip("llama.cpp is not installed: run `tandem engine install`")
	}
	for _, arch := range []tiny.Arch{tiny.NemotronHMoE, tiny.Mamba2} { // with pages and without
		file, err := tiny.Cached(arch)
		if err != nil {
			t.Fatal(err)
		}
		e, err := llama.Open(llama.Options{Lib: lib.Dir, Model: file, Slots: 2, Cells: 1024, BatchTokens: 64, UBatch: 64, Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(t.Context(), e, Config{
			New: []int{16, 64}, Past: []int{0, 64}, Batch: []int{1, 2}, Context: []int{16, 64}, Runs: 2, Steps: 2, MaxError: 1e6,
		})
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		count := map[string]int{}
		for _, p := range r.Points {
			count[p.Kind]++
			if p.MS.Median <= 0 || p.MS.N < 2 {
				t.Errorf("%s: %s took %v", arch, p.name(), p.MS)
			}
		}
		if count[Prefill] != 4 || count[Decode] != 4 || count[ExportSnapshot] != 1 || count[ImportSnapshot] != 1 {
			t.Errorf("%s: points %v", arch, count)
		}
		if r.Timing.Geometry.Recurrent == 0 {
			t.Errorf("%s: no recurrent state", arch)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}
