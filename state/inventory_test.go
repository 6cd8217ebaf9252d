package state

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// nemotronSuper is the published geometry of Nemotron 3 Super: 40 Mamba-2, 40 expert and 8
// attention layers, and one prediction block of an attention and an expert layer.
func nemotronSuper() *Geometry {
	const pattern = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
	layers := func(pattern string) (out []Layer) {
		for _, c := range pattern {
			switch c {
			case 'M':
				out = append(out, Layer{Mixer: MixMamba2, Inner: 128 * 64, StateDim: 128, Groups: 8, ConvWidth: 4})
			case '*':
				out = append(out, Layer{Mixer: MixAttention, KVHeads: 2, KeyDim: 128, ValueDim: 128})
			default:
				out = append(out, Layer{})
			}
		}
		return out
	}
	return &Geometry{
		Layers: layers(pattern), KVTypeK: F16, KVTypeV: F16, ConvType: BF16, SSMType: F32,
		MTP: layers("*E"), Hidden: 4096,
	}
}

func TestNemotronArithmetic(t *testing.T) {
	const kib, mib, gib = 1 << 10, 1 << 20, 1 << 30
	inv, err := nemotronSuper().Inventory()
	if err != nil {
		t.Fatal(err)
	}
	trunk, mtp := Range{0, 88}, Range{88, 90}
	want := Inventory{
		{Kind: AttentionKV, Layers: trunk, Count: 8, DType: F16, DTypeV: F16, PerToken: 8192},
		{Kind: Conv, Layers: trunk, Count: 40, DType: BF16, Fixed: 10240 * 3 * 40 * 2},
		{Kind: Recurrent, Layers: trunk, Count: 40, DType: F32, Fixed: 160 * mib},
		{Kind: MTPKV, Layers: mtp, Count: 1, DType: F16, DTypeV: F16, PerToken: 1 * kib},
		{Kind: MTPHidden, Layers: mtp, Count: 1, DType: F32, Fixed: 4096 * 4},
	}
	if diff := cmp.Diff(want, inv); diff != "" {
		t.Fatal(diff)
	}
	kv := inv.Find(AttentionKV)
	if got := kv.Bytes(8 * kib); got != 64*mib {
		t.Errorf("attention KV of 8K tokens is %d bytes, want 64 MiB", got)
	}
	if got := kv.Bytes(128 * kib); got != gib {
		t.Errorf("attention KV of 128K tokens is %d bytes, want 1 GiB", got)
	}
	if got := float64(inv.Find(Conv).Fixed) / mib; got != 2.34375 {
		t.Errorf("convolution state in bf16 is %v MiB, want 2.34", got)
	}
	if got := inv.TokenBytes(); got != 9*kib {
		t.Errorf("a token adds %d bytes, want 8 KiB of attention and 1 KiB of speculation", got)
	}

	g := nemotronSuper()
	g.ConvType, g.MTPInactive = F32, "speculation is off"
	inv, err = g.Inventory()
	if err != nil {
		t.Fatal(err)
	}
	if got := float64(inv.Find(Conv).Fixed) / mib; got != 4.6875 {
		t.Errorf("convolution state in f32 is %v MiB, want 4.69", got)
	}
	if got := inv.TokenBytes(); got != 8*kib {
		t.Errorf("without speculation a token adds %d bytes, want 8 KiB", got)
	}
	if c := inv.Find(MTPKV); c.Active() || c.Inactive != "speculation is off" {
		t.Errorf("inactive speculation is %+v", c)
	}
	lo, hi := inv.SnapshotBytes(1000)
	if want := uint64(160*mib + 10240*3*40*4); lo != want || hi != want {
		t.Errorf("snapshot is %d to %d bytes, want %d", lo, hi, want)
	}
	if inv.FixedBytes() != lo {
		t.Errorf("fixed bytes are %d, want %d", inv.FixedBytes(), lo)
	}
}

func TestQuantizedRows(t *testing.T) {
	g := &Geometry{Layers: []Layer{{Mixer: MixAttention, KVHeads: 8, KeyDim: 128, ValueDim: 128}}, KVTypeK: Q8_0, KVTypeV: Q8_0}
	inv, err := g.Inventory()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := inv.TokenBytes(), uint64(2*1024/32*34); got != want {
		t.Errorf("a token of q8_0 is %d bytes, want %d", got, want)
	}
}

// Window components are bounded by the window, and full ones when the context keeps everything.
func TestWindowInventory(t *testing.T) {
	inv := testInventory(t)
	w := inv.Find(WindowKV)
	if w == nil || w.Count != 2 || w.PerToken != 2*2*(8+8) {
		t.Fatalf("window component is %+v", w)
	}
	for _, tt := range []struct{ tokens, lo, hi uint32 }{{1, 1, 1}, {3, 3, 3}, {5, 3, 5}, {8, 3, 8}, {1000, 3, 8}} {
		if lo, hi := w.held(tt.tokens); lo != tt.lo || hi != tt.hi {
			t.Errorf("after %d tokens the window holds %d to %d, want %d to %d", tt.tokens, lo, hi, tt.lo, tt.hi)
		}
		if !w.fits(tt.tokens, w.Bytes(tt.lo)) || !w.fits(tt.tokens, w.Bytes(tt.hi)) {
			t.Errorf("after %d tokens the bounds do not fit", tt.tokens)
		}
		if w.fits(tt.tokens, w.Bytes(tt.hi)+1) || w.fits(tt.tokens, w.Bytes(tt.lo)-1) || w.fits(tt.tokens, w.Bytes(tt.hi+1)) {
			t.Errorf("after %d tokens a length outside the bounds fits", tt.tokens)
		}
	}
	if w.fits(1000, w.Bytes(4)+1) {
		t.Error("a part of a token fits")
	}
	g := testGeometry()
	g.SWAFull = true
	full, err := g.Inventory()
	if err != nil {
		t.Fatal(err)
	}
	if full.Find(WindowKV) != nil || full.Find(AttentionKV).Count != 3 {
		t.Errorf("with every token kept the inventory is %+v", full)
	}
}

func TestInventoryQueries(t *testing.T) {
	hybrid, dense := testInventory(t), denseInventory(t)
	pure, err := (&Geometry{Layers: []Layer{{Mixer: MixMamba1, Inner: 8, StateDim: 4, ConvWidth: 4}}, ConvType: F32, SSMType: F32}).Inventory()
	if err != nil {
		t.Fatal(err)
	}
	if got := pure.Find(Conv).Fixed; got != 8*3*4 {
		t.Errorf("Mamba-1 convolution state is %d bytes, want its inner channels only: %d", got, 8*3*4)
	}
	for _, tt := range []struct {
		name            string
		inv             Inventory
		paged, snapshot bool
	}{{"hybrid", hybrid, true, true}, {"dense", dense, true, false}, {"recurrent", pure, false, true}} {
		if tt.inv.Paged() != tt.paged || tt.inv.Snapshot() != tt.snapshot {
			t.Errorf("%s: paged %v, snapshot %v", tt.name, tt.inv.Paged(), tt.inv.Snapshot())
		}
	}
}

var geometryRefusals = []struct {
	name string
	edit func(*Geometry)
}{
	{"no layers", func(g *Geometry) { g.Layers = nil }},
	{"layer numbers overflow", func(g *Geometry) { g.First = 1<<32 - 1 }},
	{"unknown mixer", func(g *Geometry) { g.Layers[0].Mixer = 99 }},
	{"no KV heads", func(g *Geometry) { g.Layers[1].KVHeads = 0 }},
	{"no KV type", func(g *Geometry) { g.KVTypeK = DTypeNone }},
	{"no value type", func(g *Geometry) { g.KVTypeV = DTypeNone }},
	{"part of a block", func(g *Geometry) { g.KVTypeK = Q8_0 }},
	{"absurd rows", func(g *Geometry) { g.Layers[1].KVHeads, g.Layers[1].KeyDim = 1<<32-1, 1<<32-1 }},
	{"no state", func(g *Geometry) { g.Layers[0].StateDim = 0 }},
	{"no inner channels", func(g *Geometry) { g.Layers[0].Inner = 0 }},
	{"no convolution", func(g *Geometry) { g.Layers[0].ConvWidth = 1 }},
	{"no convolution type", func(g *Geometry) { g.ConvType = DTypeNone }},
	{"no state type", func(g *Geometry) { g.SSMType = DTypeNone }},
	{"absurd state", func(g *Geometry) { g.Layers[0].Groups, g.Layers[0].StateDim = 1<<32-1, 1<<32-1 }},
	{"no window", func(g *Geometry) { g.WindowMin, g.WindowMax = 0, 0 }},
	{"window bounds inverted", func(g *Geometry) { g.WindowMin = 9 }},
	{"speculation without attention", func(g *Geometry) { g.MTP, g.Hidden = []Layer{{}}, 8 }},
	{"speculation without hidden row", func(g *Geometry) { g.MTP = []Layer{g.Layers[1]} }},
}

func TestGeometryRefusals(t *testing.T) {
	for _, tt := range geometryRefusals {
		t.Run(tt.name, func(t *testing.T) {
			g := testGeometry()
			tt.edit(g)
			inv, err := g.Inventory()
			if err == nil {
				t.Fatalf("accepted as %+v", inv)
			}
			wantReason(t, err, ErrGeometry)
		})
	}
}

var inventoryRefusals = []struct {
	name string
	edit func(Inventory)
}{
	{"no kind", func(inv Inventory) { inv[0].Kind = KindNone }},
	{"manifest kind", func(inv Inventory) { inv[0].Kind = History }},
	{"repeated", func(inv Inventory) { inv[1] = inv[0] }},
	{"no layers", func(inv Inventory) { inv[0].Layers.End = 0 }},
	{"no bytes", func(inv Inventory) { inv[0].PerToken = 0 }},
	{"fixed and per token", func(inv Inventory) { inv[1].Fixed = 1 }},
	{"fixed page", func(inv Inventory) { inv[0].PerToken, inv[0].Fixed = 0, 1 }},
	{"window elsewhere", func(inv Inventory) { inv[0].WindowMax = 1 }},
	{"unknown type", func(inv Inventory) { inv[0].DType = 77 }},
}

func TestInventoryRefusals(t *testing.T) {
	if err := testInventory(t).Check(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range inventoryRefusals {
		t.Run(tt.name, func(t *testing.T) {
			inv := testInventory(t)
			tt.edit(inv)
			wantReason(t, inv.Check(), ErrGeometry)
		})
	}
}

func TestSaturation(t *testing.T) {
	c := Component{Kind: AttentionKV, PerToken: 1 << 62, FrameFixed: 1}
	if got := c.Bytes(1 << 31); got != ^uint64(0) {
		t.Errorf("an overflowing size is %d, want the largest number", got)
	}
}

func TestDTypeNames(t *testing.T) {
	for d := F32; d <= Q8_0; d++ {
		if got, ok := ParseDType(d.String()); !ok || got != d {
			t.Errorf("ParseDType(%q) = %v, %v", d.String(), got, ok)
		}
	}
	if _, ok := ParseDType("none"); ok {
		t.Error("none is a type")
	}
}
