package timed

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

func roof(t testing.TB, name, hw string, o Options) *Model {
	t.Helper()
	m, err := New(model(t, name), hardware(t, hw), o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestOperationsOfTheDesign compares with the table the roofline was written
// from: operations per token, and per token and token of context.
func TestOperationsOfTheDesign(t *testing.T) {
	o := Options{TP: 1, KVBits: 16, WeightBits: 16, RecurrentBits: 32, ConvBits: 16}
	for _, c := range []struct {
		name                      string
		body, flop, pair, ssmFLOP float64
	}{
		{"llama-3-8b", 6.98e9, 13.96e9, 524288, 0},
		{"llama-3-70b", 68.45e9, 136.9e9, 2621440, 0},
		{"nemotron-3-super-120b-a12b", 11.70e9, 23.4e9, 131072, 0.25e9},
	} {
		m := model(t, c.name)
		l := newLoad(m.Blocks, m.Hidden, &o)
		near(t, c.name+": weights of a token", l.active, c.body, 1e-3)
		near(t, c.name+": FLOP per token", l.token, c.flop+c.ssmFLOP, 1e-3)
		if l.pair != c.pair {
			t.Errorf("%s: %g FLOP per token and token of context, want %g", c.name, l.pair, c.pair)
		}
	}
}

// TestPublishedMeasurements compares with llama-bench on real machines.
func TestPublishedMeasurements(t *testing.T) {
	// 39.59 GiB for 70.55e9 weights.
	q4 := Options{WeightBits: 4.82}
	big := roof(t, "llama-3.1-70b", "m3-ultra", q4)
	prompt := func(m *Model, tokens, chunk int) float64 {
		var total Time
		for past := 0; past < tokens; past += chunk {
			total += m.Step(&Batch{Chunks: []Chunk{{New: chunk, Past: past}}})
		}
		return float64(tokens) / total.Seconds()
	}
	// Llama-3.3-70B Q4_K_M on an M3 Ultra: geerlingguy/beowulf-ai-cluster, issue 17.
	near(t, "pp512", prompt(big, 512, 512), 162.30, 0.01)
	near(t, "pp4096", prompt(big, 4096, 512), 156.67, 0.01)
	near(t, "tg128", 128/big.Stretch(1, 0, 128).Seconds(), 14.41, 0.02)
	// Llama-3.2-3B Q4_K_M on an M1 Ultra: geerlingguy/ai-benchmarks, issue 48.
	near(t, "pp512 of 3B", prompt(roof(t, "llama-3.2-3b", "m1-ultra", q4), 512, 512), 2142.59, 0.02)
}

// TestMeasurementsOfServers compares with servers, whose scheduling, sampling and
// latencies of collectives the roofline leaves out. Tolerances say how far it is off
// (docs/timing.md).
func TestMeasurementsOfServers(t *testing.T) {
	// Llama-3.3-70B, FP8 on two H100: docs.nvidia.com/nim/benchmarking/llm/1.0.0/performance.
	two := roof(t, "llama-3.1-70b", "h100-sxm", Options{TP: 2, WeightBits: 8, Compute: "fp8"})
	ttft := func(tokens int) float64 { return two.Step(&Batch{Chunks: []Chunk{{New: tokens}}}).Seconds() * 1e3 }
	near(t, "TTFT of 5000 tokens in ms", ttft(5000), 406.77, 0.07)
	near(t, "TTFT of 500 tokens in ms", ttft(500), 47.77, 0.14)
	near(t, "ITL of one request in ms", two.Step(&Batch{Decodes: 1, Context: 5250}).Seconds()*1e3, 18.58, 0.30)
	// Llama-3.1-8B on an A100 with 40 GB: johnmusgrave.com/p/vllm-throughput-latency-sweep-on.
	a100 := *hardware(t, "a100-80gb")
	a100.GBps, a100.MemoryGB = 1555, 40
	small, err := New(model(t, "llama-3.1-8b"), &a100, Options{})
	if err != nil {
		t.Fatal(err)
	}
	near(t, "decode of one request in tokens/s", 1/small.Step(&Batch{Decodes: 1, Context: 1088}).Seconds(), 75, 0.10)
}

// TestRooflineByHand computes steps of Llama 3 8B on an H100 from the formula.
func TestRooflineByHand(t *testing.T) {
	const (
		body   = 6.98e9
		head   = 128256 * 4096.
		peak   = 989e12
		bw     = 3.35e12 * 0.8
		prompt = 0.45 * peak
		decode = 0.30 * peak
	)
	m := roof(t, "llama-3-8b", "h100-sxm", Options{})
	weights := 2 * (body + head)
	for _, c := range []struct {
		name string
		b    Batch
		want float64 // seconds
	}{
		{"one decode", Batch{Decodes: 1, Context: 1000}, (weights + 131072*1001) / bw},
		{"256 decodes", Batch{Decodes: 256, Context: 256000}, (weights + 131072*256256) / bw},
		{"many decodes without context", Batch{Decodes: 1000}, 1000 * (2*(body+head) + 524288/2) / decode},
		{"a prompt", Batch{Chunks: []Chunk{{New: 8192}}}, (2*body*8192 + 524288*8192*8192/2 + 2*head) / prompt},
		{"its end", Batch{Chunks: []Chunk{{New: 2048, Past: 6144}}}, (2*body*2048 + 524288*(6144*2048+2048*2048/2) + 2*head) / prompt},
		{"a short one", Batch{Chunks: []Chunk{{New: 8, Past: 1000}}}, (weights + 131072*1008) / bw},
		{"both", Batch{Decodes: 100, Context: 1e5, Chunks: []Chunk{{New: 1000}}},
			(2*body*1000+524288*1000*1000/2+2*head)/prompt + (100*2*(body+head)+524288*(1e5+50))/decode},
	} {
		near(t, c.name, m.Step(&c.b).Seconds(), c.want, 1e-3)
	}

	// Four ways: a quarter of the work each, and two all-reduces a layer.
	four := roof(t, "llama-3-8b", "h100-sxm", Options{TP: 4, AllReduceUS: 5, LayerUS: 2, StepUS: 100})
	rest := 64*5e-6 + 32*2e-6 + 100e-6
	ring := func(tokens float64) float64 { return 64 * tokens * 4096 * 2 * 2 * 3 / 4 / 450e9 }
	near(t, "four ways, decode", four.Step(&Batch{Decodes: 64, Context: 64000}).Seconds(),
		(weights+131072*64064)/4/bw+ring(64)+rest, 1e-3)
	near(t, "four ways, prompt", four.Step(&Batch{Chunks: []Chunk{{New: 4096}}}).Seconds(),
		(2*body*4096+524288*4096*4096/2)/4/prompt+ring(4096)+rest, 1e-3)
	// More ways than heads: keys and values are kept twice.
	sixteen := roof(t, "llama-3-8b", "h100-sxm", Options{TP: 16})
	near(t, "sixteen ways, more context", (sixteen.Step(&Batch{Decodes: 64, Context: 2e6}) - sixteen.Step(&Batch{Decodes: 64, Context: 1e6})).Seconds(),
		131072*1e6/8/bw, 1e-3)

	near(t, "capacity", float64(m.Capacity(0.9)), (0.9*85.899e9-16.06e9)/131072, 2e-3)
	near(t, "weights", float64(m.WeightBytes()), 16.06e9, 1e-3)
	if small := roof(t, "llama-3.1-405b", "h100-sxm", Options{}); small.Capacity(1) != 0 {
		t.Error("405B fits on one H100")
	}
	near(t, "an export", m.Export(1e9).Seconds(), 1e9/bw, 1e-6)
}

func TestExpertsTouched(t *testing.T) {
	for _, c := range []struct {
		n, k, tokens int
	}{{8, 2, 1}, {8, 2, 3}, {256, 8, 1}, {256, 8, 64}, {512, 22, 10}, {512, 22, 2000}} {
		part := touched(c.n, c.k)
		got := float64(c.n) * part[min(c.tokens, len(part)-1)]
		want := float64(c.n) * (1 - math.Pow(float64(c.n-c.k)/float64(c.n), float64(c.tokens)))
		near(t, fmt.Sprintf("%d of %d experts by %d tokens", c.k, c.n, c.tokens), got, want, 1e-5)
	}
	if got := touched(4, 4); got[1] != 1 {
		t.Errorf("all experts: %v", got)
	}
	// One token of Mixtral reads two experts of eight, and many read all.
	m := roof(t, "mixtral-8x7b", "h100-sxm", Options{MBU: 1, TP: 2})
	one, many := m.Step(&Batch{Decodes: 1}), m.Step(&Batch{Decodes: 50})
	near(t, "weights of one token", one.Seconds(), 2*12.75e9/2/3.35e12, 0.01)
	near(t, "weights of many", many.Seconds(), 2*46.57e9/2/3.35e12, 0.01)
}

func TestWindowsStopGrowing(t *testing.T) {
	m := roof(t, "gemma-3-27b", "h100-sxm", Options{})
	slope := func(context int64) float64 {
		return (m.Step(&Batch{Decodes: 4, Context: context + 1000}) - m.Step(&Batch{Decodes: 4, Context: context})).Seconds() / 1000
	}
	near(t, "bytes a token while windows fill", slope(1000)*3.35e12*0.8, 62*8192, 1e-3)
	near(t, "bytes a token once they are full", slope(4*1024)*3.35e12*0.8, 10*8192, 1e-3)
	// A long prompt sees 1024 tokens in 52 layers of 62.
	l := newLoad(model(t, "gemma-3-27b").Blocks, 5376, &Options{TP: 1, KVBits: 16, WeightBits: 16})
	flop, _ := l.prompt(Chunk{New: 10000, Past: 90000})
	pairs := 10000 * 95000.
	near(t, "operations of a prompt's end", flop, 10000*l.token+4*32*128*(10*pairs+52*10000*1024), 1e-9)
}

func TestLatentAttentionTakesTheCheaperWay(t *testing.T) {
	m := model(t, "deepseek-v3")
	l := newLoad(m.Blocks, m.Hidden, &Options{TP: 1, KVBits: 16, WeightBits: 16})
	work := func(c Chunk) float64 {
		flop, _ := l.prompt(c)
		return flop - float64(c.New)*l.token
	}
	const absorbed, plain, expand = 61 * 2 * 128 * (576 + 512), 61 * 2 * 128 * (192 + 128), 61 * 2 * 512 * 128 * 256
	near(t, "a few tokens on a long past", work(Chunk{New: 4, Past: 1e5}), absorbed*(4e5+8), 1e-9)
	near(t, "many tokens on a long past", work(Chunk{New: 4096, Past: 1e5}), plain*(4096e5+4096*4096/2)+expand*1e5, 1e-9)
	// Every way keeps the whole row.
	one := roof(t, "deepseek-v3", "h200-sxm", Options{TP: 8, WeightBits: 8})
	grow := one.Step(&Batch{Decodes: 8, Context: 2e5}) - one.Step(&Batch{Decodes: 8, Context: 1e5})
	near(t, "context", grow.Seconds(), 1e5*61*576*2/(4.8e12*0.8), 1e-3)
}

func TestMambaReadsAndWritesItsState(t *testing.T) {
	o := Options{MBU: 1, KVBits: 16}
	m := roof(t, "nemotron-3-super-120b-a12b", "b200-sxm", o)
	state := float64(m.Geometry().Recurrent + m.Geometry().Conv)
	// Enough tokens that every expert is read anyway.
	few, more := m.Step(&Batch{Decodes: 600}), m.Step(&Batch{Decodes: 700})
	near(t, "a hundred more sequences", (more - few).Seconds(), 100*(2*state+8192)/7.7e12, 1e-3)
}

// anyOptions draws a model on hardware, in all ways it can run.
func anyRoofline(t *rapid.T) *Model {
	model := rapid.SampledFrom(Models()).Draw(t, "model")
	hw := rapid.SampledFrom(Hardwares()).Draw(t, "hardware")
	m, err := New(&model, &hw, Options{
		Common:     Common{MaxDecodes: 8},
		TP:         rapid.SampledFrom([]int{1, 2, 8, 64}).Draw(t, "tp"),
		WeightBits: rapid.SampledFrom([]float64{4.85, 8, 16}).Draw(t, "weight bits"),
		KVBits:     rapid.SampledFrom([]float64{0, 8.5}).Draw(t, "kv bits"),
		LinkGBps:   100,
		StepUS:     rapid.Float64Range(0, 5000).Draw(t, "step"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestRooflineStretchIsTheSumOfItsSteps holds the closed forms against real
// curves, whose pieces meet where windows fill and where memory passes compute.
func TestRooflineStretchIsTheSumOfItsSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := anyRoofline(t)
		d := rapid.SampledFrom([]int{1, 2, 8, 9, 300, 5000}).Draw(t, "decodes")
		c := int64(d) * rapid.Int64Range(0, 2000).Draw(t, "context each")
		n := rapid.IntRange(0, 1500).Draw(t, "steps")
		want := steps(m, d, c, n)
		if got := m.Stretch(d, c, n); got != want {
			t.Fatalf("Stretch is %d, its steps add up to %d", got, want)
		}
		if got := m.StepsWithin(d, c, want, 1<<30); got != n {
			t.Fatalf("%d steps fit into the time of %d", got, n)
		}
	})
}

// TestCurveFollowsTheFormula holds curves against the formula they come from: the
// same batch as a mixed one without chunks. Rounding slopes to whole picoseconds
// costs at most half of one per token of context.
func TestCurveFollowsTheFormula(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := anyRoofline(t)
		b := Batch{Decodes: rapid.IntRange(1, 3000).Draw(t, "decodes")}
		b.Context = int64(b.Decodes) * rapid.Int64Range(0, 200000).Draw(t, "context each")
		got, want := m.Step(&b), m.law.mixed(&b)
		if off := math.Abs(float64(got) - want); off > 1+0.5*float64(b.Context) {
			t.Fatalf("%d decodes with %d tokens take %d, the formula says %g", b.Decodes, b.Context, got, want)
		}
		more := b
		more.Chunks = []Chunk{{New: 1}}
		if m.Step(&more) < got-Time(1+b.Context/2) {
			t.Fatalf("a chunk makes the step shorter: %d and %d", got, m.Step(&more))
		}
	})
}

func TestMTPCostsPassesAndKeepsState(t *testing.T) {
	s := &Speculation{Kind: MTP, Draft: 3, Accept: []float64{0.8}}
	m := roof(t, "deepseek-v3", "h200-sxm", Options{TP: 8, WeightBits: 8, Compute: "fp8", DecodeMFU: 1, Common: Common{Speculation: s}})
	// 256 tokens touch all experts, so that verifying reads no more weights: what is
	// added is three passes of the MTP layer (11.5e9 weights) and of the head.
	plain := m.Step(&Batch{Decodes: 256, Context: 25600})
	drafted := m.Step(&Batch{Decodes: 256, Context: 25600, Drafts: 3 * 256})
	passes := 3 * ((11.5e9+129280*7168)/8 + 25600*1152) / (4.8e12 * 0.8)
	ring := 3 * 256 * 124 * 7168 * 2 * 2 * 7 / 8 / 450e9
	written := 3 * 256 * (61 + 1) * 1152 / (4.8e12 * 0.8)
	near(t, "what drafting adds", (drafted - plain).Seconds(), passes+written+ring, 0.01)
	if m.Geometry().MTPPerToken != 1152 {
		t.Errorf("%d bytes a token of MTP state", m.Geometry().MTPPerToken)
	}
	if m.Speculation() != s {
		t.Error("the model does not know its speculation")
	}
	if _, err := New(model(t, "llama-3-8b"), hardware(t, "h100-sxm"), Options{Common: Common{Speculation: s}}); err == nil {
		t.Error("a model without MTP layers drafts with them")
	}
	suffix := roof(t, "llama-3-8b", "h100-sxm", Options{Common: Common{Speculation: &Speculation{Kind: Suffix, Draft: 3, Accept: []float64{0.8}}}})
	if a, b := suffix.Step(&Batch{Decodes: 8, Context: 8000}), suffix.Step(&Batch{Decodes: 8, Context: 8000, Drafts: 24}); b < a || b > a+a/20 {
		t.Errorf("a memory-bound step takes %v, verifying 24 tokens more %v", a, b)
	}
}

func TestRooflineRefusesWhatItCannotKnow(t *testing.T) {
	llama, h100 := model(t, "llama-3-8b"), hardware(t, "h100-sxm")
	for name, o := range map[string]Options{
		"fp4 on H100":        {Compute: "fp4"},
		"an unknown compute": {Compute: "int3"},
		"-1 ways":            {TP: -1},
		"no efficiency":      {MBU: -0.5},
		"half a bit":         {WeightBits: 0.25},
		"NaN":                {StepUS: math.NaN()},
	} {
		if _, err := New(llama, h100, o); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if _, err := New(llama, hardware(t, "rtx-4090"), Options{TP: 2}); err == nil {
		t.Error("two cards without a link were accepted")
	}
	if _, err := New(llama, h100, Options{Compute: "fp8"}); err != nil {
		t.Error(err)
	}
	for name, b := range map[string]Block{
		"two mixers":       {Count: 1, Mamba: &Mamba{1, 1, 1, 1, 1}, Attention: &Attention{Heads: 1, KVHeads: 1, HeadDim: 1}},
		"nothing":          {Count: 1},
		"no layers":        {Dense: &Dense{Width: 1}},
		"too many experts": {Count: 1, MoE: &MoE{Experts: 4, TopK: 5, Width: 1}},
		"a huge head":      {Count: 1, Attention: &Attention{Heads: 1 << 40, KVHeads: 1, HeadDim: 1}},
	} {
		s := ModelSpec{Name: "x", Hidden: 1, Vocab: 1, Blocks: []Block{b}}
		if _, err := New(&s, h100, Options{}); err == nil {
			t.Errorf("a model with %s was accepted", name)
		}
	}
}

func TestStepsDoNotAllocate(t *testing.T) {
	m := roof(t, "deepseek-v3", "h100-sxm", Options{TP: 8})
	pure := Batch{Decodes: 64, Context: 64000}
	mixed := Batch{Decodes: 64, Context: 64000, Chunks: []Chunk{{New: 512, Past: 1024}}}
	if n := testing.AllocsPerRun(100, func() {
		m.Step(&pure)
		m.Step(&mixed)
		m.Stretch(64, 64000, 500)
		m.StepsWithin(64, 64000, Second, 500)
		m.StretchITL(64, 64000, 500, func(Time, int) {})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkStep(b *testing.B) {
	m := roof(b, "gemma-3-27b", "h100-sxm", Options{})
	pure := Batch{Decodes: 64, Context: 64000}
	mixed := Batch{Decodes: 64, Context: 64000, Chunks: []Chunk{{New: 512, Past: 1024}}}
	b.Run("decode", func(b *testing.B) {
		for b.Loop() {
			m.Step(&pure)
		}
	})
	b.Run("mixed", func(b *testing.B) {
		for b.Loop() {
			m.Step(&mixed)
		}
	})
	b.Run("stretch", func(b *testing.B) {
		for b.Loop() {
			m.Stretch(64, 60000, 500)
		}
	})
	b.Run("within", func(b *testing.B) {
		for b.Loop() {
			m.StepsWithin(64, 60000, 7*Second/3, 500)
		}
	})
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			roof(b, "gemma-3-27b", "h100-sxm", Options{})
		}
	})
}
