package state

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/handoff"
)

// The fixture is a small hybrid model with a sliding window: every unit and component kind that is
// not speculation.

func testIdentity() Identity {
	return Identity{
		Schema: SchemaVersion, Weights: Digest{1, 2, 3}, Tokenizer: Digest{4, 5, 6},
		Architecture: "hybrid", Layers: 6,
		Rope: Rope{Scaling: RopeYarn, FreqBase: 10000, FreqScale: 0.5, ExtFactor: 1, AttnFactor: 1,
			BetaFast: 32, BetaSlow: 1, OrigContext: 4096},
		KVTypeK: F16, KVTypeV: BF16, FlashAttention: true, SWAFull: false,
		EngineBuild: "engine 0.5.0 abcdef", EngineState: 3, Endian: LittleEndian,
	}
}

func testBinding() Binding {
	return Binding{
		Handoff: handoff.ID{1, 2, 3, 4, 5, 6, 0x70, 8, 0x80, 10, 11, 12, 13, 14, 15, 16},
		Request: "request-1", Tenant: "tenant-1",
		Source:      Peer{Worker: "prefill-0", Incarnation: 7},
		Destination: Peer{Worker: "decode-0", Incarnation: 9},
		Deadline:    90 * time.Second,
	}
}

func testGeometry() *Geometry {
	attention := Layer{KVHeads: 2, KeyDim: 4, ValueDim: 4}
	full, window := attention, attention
	full.Mixer, window.Mixer = MixAttention, MixWindow
	mamba := Layer{Mixer: MixMamba2, Inner: 8, StateDim: 4, Groups: 1, ConvWidth: 4}
	return &Geometry{
		Layers:  []Layer{mamba, full, {}, window, mamba, window},
		KVTypeK: F16, KVTypeV: BF16, ConvType: F32, SSMType: F32, WindowMin: 3, WindowMax: 8,
	}
}

// testInventory has framing, as an engine would add it.
func testInventory(tb testing.TB) Inventory {
	tb.Helper()
	inv, err := testGeometry().Inventory()
	if err != nil {
		tb.Fatal(err)
	}
	for i := range inv {
		inv[i].FrameFixed = 10 + uint64(i)
		if inv[i].PerToken > 0 {
			inv[i].FramePerToken = 12
		}
	}
	return inv
}

func denseInventory(tb testing.TB) Inventory {
	tb.Helper()
	g := testGeometry()
	g.Layers = []Layer{g.Layers[1], g.Layers[1]}
	inv, err := g.Inventory()
	if err != nil {
		tb.Fatal(err)
	}
	return inv
}

func testKey() DigestKey { return DeriveKey([]byte("a ticket of thirty-two bytes...."), testBinding()) }

// unit is a sealed unit with its payload.
type unit struct {
	h       UnitHeader
	payload []byte
}

// delivery is everything that one part sends.
type delivery struct {
	units    []unit
	manifest Manifest
}

// encode seals the manifest without checking it, so that tests can make wrong ones.
func (d *delivery) encode() []byte { return seal(d.manifest.appendUnsealed(nil), testKey()) }

// reseal recomputes checksum and digest of unit i after a test changed header or payload, so that
// the change is consistent and must be caught by something else.
func (d *delivery) reseal(i int) {
	u := &d.units[i]
	u.h.Length = uint64(len(u.payload))
	u.h.Checksum = UpdateChecksum(0, u.payload)
	dg := NewDigester(testKey())
	dg.Start(&u.h)
	dg.Write(u.payload)
	if int(u.h.Index) < len(d.manifest.Units) {
		d.manifest.Units[u.h.Index] = u.h.ref(dg.Sum())
	}
}

const testTokens = 20

func fill(n uint64, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, n))
	b := make([]byte, n+8)
	for i := 0; i < int(n); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b[:n:n]
}

func testManifest(parts int) Manifest {
	m := Manifest{
		Binding: testBinding(), Parts: uint16(parts), Position: testTokens,
		First: First{Index: 2, Logprob: -0.5, Top: []TopToken{{Token: 3, Logprob: -0.5}, {Token: 9, Logprob: -1.5}}},
		Generation: Generation{MaxTokens: 100, MinTokens: 1, Stop: []string{"###", "\n\n"}, IgnoreEOS: true,
			Logprobs: true, TopLogprobs: 2, Params: []byte("params")},
		Sampler: []byte("sampler"), Usage: Usage{Prompt: testTokens - 2, Cached: 4, Computed: testTokens - 4},
		MTP: MTP{Reason: "the model has no such block"},
	}
	for i := range testTokens + 1 {
		m.History = append(m.History, int32(i*7))
	}
	return m
}

// deliver seals one part of a handoff with pages that end at cuts.
func deliver(tb testing.TB, inv Inventory, part, parts int, skip uint32, cuts ...uint32) *delivery {
	tb.Helper()
	s := NewSealer(SealerConfig{
		Handoff: testBinding().Handoff, Identity: testIdentity(), Inventory: inv, Part: uint16(part),
		Codec: CodecRaw, Key: testKey(), Limits: DefaultLimits(),
	})
	d := &delivery{}
	first := skip
	for i, end := range cuts {
		tokens := Range{first, end}
		p := fill(inv.Find(AttentionKV).Bytes(tokens.Len()), uint64(i))
		h, err := s.Page(AttentionKV, tokens, !inv.Snapshot() && i == len(cuts)-1, p)
		if err != nil {
			tb.Fatal(err)
		}
		d.units = append(d.units, unit{h, p})
		first = end
	}
	if inv.Snapshot() {
		refs, n := snapshotRefs(inv, 5)
		p := fill(n, 99)
		h, err := s.Snapshot(testTokens, true, p, refs)
		if err != nil {
			tb.Fatal(err)
		}
		d.units = append(d.units, unit{h, p})
	}
	m := testManifest(parts)
	if _, err := s.Manifest(&m); err != nil {
		tb.Fatal(err)
	}
	d.manifest = m
	return d
}

// snapshotRefs lays out a snapshot whose window holds window tokens.
func snapshotRefs(inv Inventory, window uint32) (refs []ComponentRef, length uint64) {
	for i := range inv {
		c := &inv[i]
		if !c.inSnapshot() {
			continue
		}
		n := c.Bytes(0)
		if c.Kind == WindowKV {
			n = c.Bytes(window)
		}
		refs = append(refs, ComponentRef{Kind: c.Kind, Offset: length, Length: n, Layers: c.Layers})
		length += n
	}
	return refs, length
}

func testExpect(parts ...Inventory) Expect {
	return Expect{
		Identity: testIdentity(), Binding: testBinding(), Parts: parts, Codec: CodecRaw,
		Tokens: testTokens, Key: testKey(), Limits: DefaultLimits(),
	}
}

func newAssembly(tb testing.TB, exp Expect) *Assembly {
	tb.Helper()
	a, err := NewAssembly(exp)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}
