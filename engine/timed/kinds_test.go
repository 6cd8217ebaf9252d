package timed

import (
	"testing"
)

const ms = Millisecond

func preset(t *testing.T, name string) *Model {
	t.Helper()
	m, err := (&Spec{Preset: name}).Build()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestDynamoPolynomial(t *testing.T) {
	m := preset(t, "dynamo")
	full := int64(16384 * 64)
	for _, c := range []struct {
		b    Batch
		want float64 // ms
	}{
		{Batch{Chunks: []Chunk{{New: 1000}}}, 4.209989e-7*1e6 + 1.518344e-2*1000 + 16.50142},
		{Batch{Chunks: []Chunk{{New: 600, Past: 50}, {New: 400}}}, 4.209989e-7*1e6 + 1.518344e-2*1000 + 16.50142},
		{Batch{Chunks: []Chunk{{Past: 512}}}, 0}, // all of it cached
		{Batch{Decodes: 4, Context: 0}, 5.74},
		{Batch{Decodes: 4, Context: full / 2}, -25.74/4 + 54.01/2 + 5.74},
		{Batch{Decodes: 4, Context: full / 3}, -25.74/9 + 54.01/3 + 5.74},
		{Batch{Decodes: 4, Context: full}, -25.74 + 54.01 + 5.74},
		{Batch{Decodes: 4, Context: 2 * full}, -25.74 + 54.01 + 5.74},
		{Batch{Decodes: 4, Context: full / 2, Chunks: []Chunk{{New: 1000}}}, -25.74/4 + 54.01/2 + 5.74 + 4.209989e-7*1e6 + 1.518344e-2*1000 + 16.50142},
	} {
		near(t, "dynamo", m.Step(&c.b).Seconds()*1e3, max(c.want, 1e-9), 1e-5)
	}
}

func TestDistServeCoefficients(t *testing.T) {
	m := preset(t, "distserve-opt-13b")
	for _, c := range []struct {
		b    Batch
		want float64 // ms
	}{
		{Batch{Chunks: []Chunk{{New: 500}, {New: 300}}}, 18.10 + 0.10191*800 + 7.122e-6*(500*500+300*300)},
		{Batch{Decodes: 95, Context: 50000}, 19.93 + 6.27e-4*50000 + 0.0385*95},
		{Batch{Decodes: 96, Context: 50000}, 7.166 + 5.80e-4*50000 + 0.1583*96},
		{Batch{Decodes: 2000, Context: 50000}, 7.166 + 5.80e-4*50000 + 0.1583*2000},
		{Batch{Decodes: 10, Context: 1000, Chunks: []Chunk{{New: 100}}}, 19.93 + 6.27e-4*1000 + 0.385 + 0.10191*100 + 7.122e-6*100*100},
		// A chunk on top of 100 costs what the whole costs more than its first part.
		{Batch{Chunks: []Chunk{{New: 100, Past: 100}}}, 18.10 + 0.10191*100 + 7.122e-6*(200*200-100*100)},
	} {
		near(t, "distserve", m.Step(&c.b).Seconds()*1e3, c.want, 1e-7)
	}
	if got := m.Geometry().PerToken(); got != 819200 {
		t.Errorf("a token takes %d bytes", got)
	}
}

func TestFittedDecodesMayPassOverAllTokens(t *testing.T) {
	m, err := NewFitted(Fitted{Decode: []DecodeFit{{StepMS: 1, ContextMS: 0.001, PairMS: 0.002}}}, Common{MaxDecodes: 8})
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Step(&Batch{Decodes: 5, Context: 1000}); got != 12*ms {
		t.Errorf("a step takes %v", got)
	}
	if got := m.Step(&Batch{Decodes: 3, Drafts: 2, Context: 1000}); got != 12*ms {
		t.Errorf("a step with drafts takes %v", got)
	}
}

func TestTableInterpolates(t *testing.T) {
	m, err := NewTable(Table{
		New: []int{64, 256}, Past: []int{0, 1000}, PrefillMS: [][]float64{{10, 20}, {40, 80}},
		Batch: []int{1, 4}, Context: []int{100, 1100}, DecodeMS: [][]float64{{5, 7}, {8, 18}},
	}, Common{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		b    Batch
		want Time
	}{
		{"on a line", Batch{Decodes: 1, Context: 100}, 5 * ms},
		{"between contexts", Batch{Decodes: 1, Context: 600}, 6 * ms},
		{"between batches", Batch{Decodes: 2, Context: 2 * 100}, 6 * ms},
		{"between both", Batch{Decodes: 2, Context: 2 * 600}, 25 * ms / 3}, // 6 to 13, a third of the way
		{"below the grid", Batch{Decodes: 1, Context: 1}, 5 * ms},
		{"beyond contexts", Batch{Decodes: 1, Context: 2100}, 9 * ms},
		{"beyond batches", Batch{Decodes: 7, Context: 700}, 11 * ms},
		{"prefill on a line", Batch{Chunks: []Chunk{{New: 256, Past: 1000}}}, 80 * ms},
		{"prefill between", Batch{Chunks: []Chunk{{New: 160, Past: 500}}}, 37500 * Microsecond},
		{"prefill below", Batch{Chunks: []Chunk{{New: 8}}}, 10 * ms},
		{"prefill beyond", Batch{Chunks: []Chunk{{New: 448}}}, 70 * ms},
		// Two chunks of 128: as many tokens as one of 256, that see 64 fewer each.
		{"two chunks", Batch{Chunks: []Chunk{{New: 128, Past: 564}, {New: 128, Past: 564}}}, 60 * ms},
		{"mixed", Batch{Decodes: 1, Context: 100, Chunks: []Chunk{{New: 64}}}, 10 * ms}, // 5 of either are shared
		{"mixed and longer", Batch{Decodes: 1, Context: 2100, Chunks: []Chunk{{New: 256}}}, 44 * ms},
	} {
		got := m.Step(&c.b)
		if off := got - c.want; off > 100*Nanosecond || off < -100*Nanosecond {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	flat, err := NewTable(Table{
		New: []int{64}, Past: []int{0}, PrefillMS: [][]float64{{10}},
		Batch: []int{1, 2}, Context: []int{10, 20}, DecodeMS: [][]float64{{9, 5}, {8, 4}},
	}, Common{})
	if err != nil {
		t.Fatal(err)
	}
	if got := flat.Step(&Batch{Decodes: 10, Context: 1e6}); got != 4*ms {
		t.Errorf("a falling table goes on at %v, want its last value", got)
	}
	if got := flat.Step(&Batch{Chunks: []Chunk{{New: 1e6, Past: 1e6}}}); got != 10*ms {
		t.Errorf("a table of one value has %v elsewhere", got)
	}
}

func TestKindsRefuseNonsense(t *testing.T) {
	good := func() Table {
		return Table{
			New: []int{64, 256}, Past: []int{0, 1000}, PrefillMS: [][]float64{{10, 20}, {40, 80}},
			Batch: []int{1, 4}, Context: []int{100, 1100}, DecodeMS: [][]float64{{5, 7}, {8, 18}},
		}
	}
	for name, spoil := range map[string]func(*Table){
		"not ascending":   func(t *Table) { t.Batch = []int{4, 4} },
		"a missing row":   func(t *Table) { t.PrefillMS = t.PrefillMS[:1] },
		"a missing value": func(t *Table) { t.DecodeMS[1] = t.DecodeMS[1][:1] },
		"no time":         func(t *Table) { t.DecodeMS[1][0] = 0 },
		"no line":         func(t *Table) { t.Past, t.PrefillMS = nil, [][]float64{{}, {}} },
		"too steep":       func(t *Table) { t.DecodeMS[0][1] = 1e12 },
	} {
		tb := good()
		spoil(&tb)
		if _, err := NewTable(tb, Common{}); err == nil {
			t.Errorf("table with %s was accepted", name)
		}
	}
	for name, f := range map[string]Fitted{
		"no decodes":         {StepMS: 1},
		"a bound at the end": {Decode: []DecodeFit{{UpTo: 4, StepMS: 1}}},
		"no bound before":    {Decode: []DecodeFit{{StepMS: 1}, {StepMS: 1}}},
		"a negative slope":   {Decode: []DecodeFit{{StepMS: 1, ContextMS: -1e-6}}},
	} {
		if _, err := NewFitted(f, Common{}); err == nil {
			t.Errorf("coefficients with %s were accepted", name)
		}
	}
	if _, err := NewPolynomial(Polynomial{DecodeMS: [3]float64{1, -5, 0}, Tokens: 100}, Common{}); err != nil {
		t.Errorf("a falling polynomial has a least time: %v", err)
	}
	if _, err := NewPolynomial(Polynomial{DecodeMS: [3]float64{1, 0, 0}}, Common{}); err == nil {
		t.Error("a polynomial without memory was accepted")
	}
	if _, err := NewFixed(Fixed{DecodeMS: -1}, Common{}); err == nil {
		t.Error("a negative time was accepted")
	}
	if _, err := NewFixed(Fixed{DecodeMS: 1}, Common{MaxDecodes: 8193}); err == nil {
		t.Error("a table for more than 8192 sequences was made")
	}
	if _, err := NewFixed(Fixed{DecodeMS: 1}, Common{Moves: Moves{ExportMS: -1}}); err == nil {
		t.Error("a negative cost of exports was accepted")
	}
	if _, err := NewFixed(Fixed{DecodeMS: 1}, Common{Geometry: Geometry{Conv: -1}}); err == nil {
		t.Error("a negative size was accepted")
	}
}
