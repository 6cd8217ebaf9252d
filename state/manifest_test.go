package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func wholeManifest(tb testing.TB) Manifest {
	return deliver(tb, testInventory(tb), 0, 1, 0, 8, testTokens).manifest
}

func TestManifestRoundTrip(t *testing.T) {
	lim := DefaultLimits()
	rapid.Check(t, func(t *rapid.T) {
		m := drawManifest(t)
		b, err := m.Encode(testKey(), &lim)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeManifest(b, testKey(), &lim)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&m, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// drawManifest draws a manifest that is consistent with itself; nothing is nil and empty at once,
// because decoding makes empty things nil.
func drawManifest(t *rapid.T) Manifest {
	u32 := func(name string) uint32 { return rapid.Uint32().Draw(t, name) }
	m := Manifest{Schema: SchemaVersion, Identity: drawIdentity(t), Binding: drawBinding(t)}
	m.Parts = uint16(rapid.IntRange(1, 64).Draw(t, "parts"))
	m.Part = uint16(rapid.IntRange(0, int(m.Parts)-1).Draw(t, "part"))
	m.Position = uint32(rapid.IntRange(1, 200).Draw(t, "position"))
	m.History = rapid.SliceOfN(rapid.Int32Min(0), int(m.Position)+1, int(m.Position)+1).Draw(t, "history")
	for i := range rapid.IntRange(0, 5).Draw(t, "units") {
		u := UnitRef{Index: uint32(i), Unit: UnitPage, Component: AttentionKV, Layers: drawRange(t, "layers"),
			Length: rapid.Uint64Range(3, 1<<30).Draw(t, "length"), Digest: drawDigest(t, "digest")}
		u.Tokens.First = rapid.Uint32Max(m.Position-1).Draw(t, "first")
		u.Tokens.End = rapid.Uint32Range(u.Tokens.First+1, m.Position).Draw(t, "end")
		if rapid.IntRange(0, 3).Draw(t, "snapshot") == 0 {
			u.Unit, u.Component = UnitSnapshot, KindNone
			first := rapid.Uint64Range(1, u.Length-1).Draw(t, "tile")
			m.Components = append(m.Components,
				ComponentRef{Conv, u.Index, 0, first, drawRange(t, "layers")},
				ComponentRef{Recurrent, u.Index, first, u.Length - first, drawRange(t, "layers")})
		}
		m.Units = append(m.Units, u)
	}
	m.First = First{Index: rapid.Uint32Max(m.Position-1).Draw(t, "index"), Logprob: rapid.Float32().Draw(t, "logprob")}
	for range rapid.IntRange(0, 3).Draw(t, "top") {
		m.First.Top = append(m.First.Top, TopToken{rapid.Int32().Draw(t, "top.token"), rapid.Float32().Draw(t, "top.logprob")})
	}
	m.Usage = Usage{Prompt: m.Position - m.First.Index, Cached: rapid.Uint32Max(m.Position).Draw(t, "cached"), Computed: u32("computed")}
	m.Generation = Generation{
		MaxTokens: rapid.Uint32Min(m.First.Index+1).Draw(t, "max"), MinTokens: u32("min"),
		IgnoreEOS: rapid.Bool().Draw(t, "eos"), Logprobs: rapid.Bool().Draw(t, "logprobs"),
		TopLogprobs: rapid.Uint32Max(64).Draw(t, "top_logprobs"),
		Params:      nonEmpty(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "params")),
	}
	for range rapid.IntRange(0, 3).Draw(t, "stops") {
		m.Generation.Stop = append(m.Generation.Stop, rapid.StringN(1, 10, 40).Draw(t, "stop"))
	}
	m.Sampler = nonEmpty(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "sampler"))
	if m.MTP.Active = rapid.Bool().Draw(t, "mtp"); !m.MTP.Active {
		m.MTP.Reason = rapid.StringN(1, 10, 40).Draw(t, "reason")
	}
	return m
}

func nonEmpty(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}

// Every field of the manifest, however deep, is in the encoding.
func TestManifestHasEveryField(t *testing.T) {
	base, m := wholeManifest(t), wholeManifest(t)
	want := base.appendUnsealed(nil)
	check := func(path string, v reflect.Value) {
		old := reflect.New(v.Type()).Elem()
		old.Set(v)
		mutate(t, path, v)
		if bytes.Equal(want, m.appendUnsealed(nil)) && path != "Schema" {
			t.Errorf("%s: not in the encoding", path)
		}
		v.Set(old)
	}
	leaves("", reflect.ValueOf(&m).Elem(), check)
	leaves("Units", reflect.ValueOf(&m.Units[0]).Elem(), check)
	leaves("Components", reflect.ValueOf(&m.Components[0]).Elem(), check)
	leaves("First.Top", reflect.ValueOf(&m.First.Top[0]).Elem(), check)
	leaves("Generation.Stop", reflect.ValueOf(&m.Generation.Stop[0]).Elem(), check)
}

// A header cannot gain a field that its encoding or the keyed digest forgets.
func TestHeaderHasEveryField(t *testing.T) {
	base := testHeader(t)
	h := base
	want, wantDigest := make([]byte, HeaderSize), headerDigest(&base)
	base.Encode(want)
	leaves("", reflect.ValueOf(&h).Elem(), func(path string, v reflect.Value) {
		old := reflect.New(v.Type()).Elem()
		old.Set(v)
		mutate(t, path, v)
		got := make([]byte, HeaderSize)
		h.Encode(got)
		if bytes.Equal(want, got) {
			t.Errorf("%s: not in the encoding", path)
		}
		if wantDigest == headerDigest(&h) && path != "Checksum" {
			t.Errorf("%s: not in the keyed digest", path)
		}
		v.Set(old)
	})
}

func headerDigest(h *UnitHeader) Digest {
	d := NewDigester(testKey())
	d.Start(h)
	return d.Sum()
}

// The manifest's tags, to take apart and put together again.
type tagged struct {
	t tag
	v []byte
}

func splitTags(b []byte) (out []tagged) {
	for b = b[manifestHeaderSize:]; len(b) > 0; {
		n := binary.LittleEndian.Uint32(b[4:])
		out = append(out, tagged{tag(binary.LittleEndian.Uint16(b)), b[tlvHeaderSize : tlvHeaderSize+n]})
		b = b[tlvHeaderSize+n:]
	}
	return out
}

func joinTags(ts []tagged) []byte {
	b := binary.LittleEndian.AppendUint32(nil, manifestMagic)
	b = append(b, byte(SchemaVersion), 0, 0, 0, 0, 0, 0, 0)
	for _, x := range ts {
		b = appendTag(b, x.t, func(b []byte) []byte { return append(b, x.v...) })
	}
	binary.LittleEndian.PutUint32(b[8:], uint32(len(b)-manifestHeaderSize))
	return seal(b, testKey())
}

// A newer writer's optional tag is skipped, wherever it stands; a required one is refused.
func TestManifestIsAdditive(t *testing.T) {
	lim := DefaultLimits()
	m := wholeManifest(t)
	ts := splitTags(m.appendUnsealed(nil))
	ts = append(ts, tagged{tagOptional | 13, []byte("new")}, tagged{tagOptional | 999, nil})
	got, err := DecodeManifest(joinTags(ts), testKey(), &lim)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&m, got); diff != "" {
		t.Error(diff)
	}
	ts[len(ts)-1].t = 999
	_, err = DecodeManifest(joinTags(ts), testKey(), &lim)
	wantRefusal(t, err, ErrUnknownTag, "tag 999")
}

// manifestTagRefusals edit the list of tags of a whole manifest.
var manifestTagRefusals = []struct {
	name  string
	want  error
	field string
	edit  func([]tagged) []tagged
}{
	{"first tag missing", ErrMissingTag, "identity", func(ts []tagged) []tagged { return ts[1:] }},
	{"tag missing in the middle", ErrMissingTag, "units", func(ts []tagged) []tagged { return append(ts[:3:3], ts[4:]...) }},
	{"last tag missing", ErrMissingTag, "mtp", func(ts []tagged) []tagged { return ts[:len(ts)-1] }},
	{"no tags", ErrMissingTag, "identity", func([]tagged) []tagged { return nil }},
	{"tag twice", ErrTagOrder, "position", func(ts []tagged) []tagged { ts[7] = ts[6]; return ts }},
	{"tags swapped", ErrMissingTag, "identity", func(ts []tagged) []tagged { ts[0], ts[1] = ts[1], ts[0]; return ts }},
	{"tag zero", ErrTagOrder, "tag 0", func(ts []tagged) []tagged { ts[0].t = 0; return ts }},
	{"optional tag repeats a required one", ErrTagOrder, "tag 12", func(ts []tagged) []tagged {
		return append(ts, tagged{tagOptional | tagMTP, nil})
	}},
	{"identity damaged", ErrMagic, "magic", func(ts []tagged) []tagged { ts[0].v[0]++; return ts }},
	{"binding damaged", ErrMagic, "magic", func(ts []tagged) []tagged { ts[1].v[0]++; return ts }},
	{"part too long", ErrTrailing, "part", func(ts []tagged) []tagged { ts[2].v = append(ts[2].v[:4:4], 0); return ts }},
	{"part too short", ErrTruncated, "part", func(ts []tagged) []tagged { ts[2].v = ts[2].v[:3]; return ts }},
	{"part of a unit", ErrTruncated, "units", func(ts []tagged) []tagged { ts[3].v = ts[3].v[1:]; return ts }},
	{"unit with reserved bits", ErrReserved, "units", func(ts []tagged) []tagged { ts[3].v[6] = 1; return ts }},
	{"component with reserved bits", ErrReserved, "components", func(ts []tagged) []tagged { ts[4].v[1] = 1; return ts }},
	{"part of a token", ErrTruncated, "history", func(ts []tagged) []tagged { ts[5].v = ts[5].v[1:]; return ts }},
	{"alternatives fewer than declared", ErrField, "first_token", func(ts []tagged) []tagged { ts[7].v[8] = 0xff; return ts }},
	{"alternatives more than declared", ErrField, "first_token", func(ts []tagged) []tagged { ts[7].v[8] = 1; return ts }},
	{"logprob NaN", ErrField, "first_token", func(ts []tagged) []tagged {
		binary.LittleEndian.PutUint32(ts[7].v[4:], math.Float32bits(float32(math.NaN())))
		return ts
	}},
	{"flag two", ErrField, "generation", func(ts []tagged) []tagged { ts[8].v[8] = 2; return ts }},
	{"stop strings over the limit", ErrLimit, "generation", func(ts []tagged) []tagged { ts[8].v[17] = 1; return ts }},
	{"stop string longer than the bytes", ErrLimit, "generation", func(ts []tagged) []tagged { ts[8].v[21] = 0xff; return ts }},
	{"speculation two", ErrField, "mtp", func(ts []tagged) []tagged { ts[11].v[0] = 2; return ts }},
	{"reason not UTF-8", ErrField, "mtp", func(ts []tagged) []tagged { ts[11].v[5] = 0xff; return ts }},
}

func TestManifestTagRefusals(t *testing.T) {
	lim := DefaultLimits()
	for _, tt := range manifestTagRefusals {
		t.Run(tt.name, func(t *testing.T) {
			m := wholeManifest(t)
			_, err := DecodeManifest(joinTags(tt.edit(splitTags(m.appendUnsealed(nil)))), testKey(), &lim)
			wantRefusal(t, err, tt.want, tt.field)
		})
	}
}

// manifestFrameRefusals edit the sealed bytes; with reseal, the seal is made to fit.
var manifestFrameRefusals = []struct {
	name   string
	want   error
	field  string
	reseal bool
	edit   func([]byte) []byte
}{
	{"magic", ErrMagic, "magic", true, func(b []byte) []byte { b[0]++; return b }},
	{"schema", ErrSchema, "schema", true, func(b []byte) []byte { b[4]++; return b }},
	{"reserved", ErrReserved, "reserved", true, func(b []byte) []byte { b[6]++; return b }},
	{"body longer than the bytes", ErrTruncated, "body", true, func(b []byte) []byte { b[11] = 0xff; return b }},
	{"body shorter than the bytes", ErrTrailing, "seal", true, func(b []byte) []byte { b[8]--; return b }},
	{"seal missing", ErrTruncated, "seal", false, func(b []byte) []byte { return b[:len(b)-1] }},
	{"content changed", ErrDigest, "seal", false, func(b []byte) []byte { b[len(b)/2] ^= 1; return b }},
	{"seal changed", ErrDigest, "seal", false, func(b []byte) []byte { b[len(b)-1] ^= 1; return b }},
	{"value longer than the body", ErrTruncated, "identity", true, func(b []byte) []byte { b[manifestHeaderSize+7] = 0xff; return b }},
	{"tag with reserved bits", ErrReserved, "tag", true, func(b []byte) []byte { b[manifestHeaderSize+2] = 1; return b }},
	{"nothing", ErrTruncated, "magic", false, func([]byte) []byte { return nil }},
}

func TestManifestFrameRefusals(t *testing.T) {
	lim := DefaultLimits()
	for _, tt := range manifestFrameRefusals {
		t.Run(tt.name, func(t *testing.T) {
			m := wholeManifest(t)
			b := tt.edit(seal(m.appendUnsealed(nil), testKey()))
			if tt.reseal {
				b = seal(b[:len(b)-manifestSealSize], testKey())
			}
			_, err := DecodeManifest(b, testKey(), &lim)
			wantRefusal(t, err, tt.want, tt.field)
		})
	}
	t.Run("other key", func(t *testing.T) {
		m := wholeManifest(t)
		_, err := DecodeManifest(seal(m.appendUnsealed(nil), testKey()), DigestKey{1}, &lim)
		wantRefusal(t, err, ErrDigest, "seal")
	})
}

// manifestCheckRefusals edit a manifest so that it contradicts itself. Source and destination
// refuse it alike.
var manifestCheckRefusals = []struct {
	name string
	want error
	edit func(*Manifest)
}{
	{"no parts", ErrPart, func(m *Manifest) { m.Parts = 0 }},
	{"part beyond parts", ErrPart, func(m *Manifest) { m.Part = 1 }},
	{"parts over the limit", ErrPart, func(m *Manifest) { m.Parts = 65 }},
	{"unit numbers with a gap", ErrUnits, func(m *Manifest) { m.Units[1].Index = 2 }},
	{"unit numbers from one", ErrUnits, func(m *Manifest) { m.Units = m.Units[1:] }},
	{"unit of unknown kind", ErrUnits, func(m *Manifest) { m.Units[0].Unit = 3 }},
	{"page of a fixed component", ErrUnits, func(m *Manifest) { m.Units[0].Component = Conv }},
	{"unit without layers", ErrUnits, func(m *Manifest) { m.Units[0].Layers = Range{} }},
	{"unit without tokens", ErrUnits, func(m *Manifest) { m.Units[0].Tokens = Range{} }},
	{"unit without bytes", ErrUnits, func(m *Manifest) { m.Units[0].Length = 0 }},
	{"unit over the limit", ErrLimit, func(m *Manifest) { m.Units[0].Length = 1 << 40 }},
	{"unit beyond the position", ErrTokens, func(m *Manifest) { m.Units[0].Tokens.End = 1000 }},
	{"component of a page", ErrComponents, func(m *Manifest) { m.Components[0].Unit = 0 }},
	{"component that is paged", ErrComponents, func(m *Manifest) { m.Components[0].Kind = AttentionKV }},
	{"component of the manifest", ErrComponents, func(m *Manifest) { m.Components[0].Kind = Sampler }},
	{"component without layers", ErrComponents, func(m *Manifest) { m.Components[0].Layers = Range{} }},
	{"component without bytes", ErrComponents, func(m *Manifest) { m.Components[0].Length = 0 }},
	{"component moved", ErrComponents, func(m *Manifest) { m.Components[1].Offset++ }},
	{"component over the end", ErrComponents, func(m *Manifest) { m.Components[len(m.Components)-1].Length++ }},
	{"component of absurd length", ErrComponents, func(m *Manifest) { m.Components[1].Length = math.MaxUint64 }},
	{"component missing at the end", ErrComponents, func(m *Manifest) { m.Components = m.Components[:len(m.Components)-1] }},
	{"component too many", ErrComponents, func(m *Manifest) { m.Components = append(m.Components, m.Components[0]) }},
	{"history short", ErrPosition, func(m *Manifest) { m.History = m.History[1:] }},
	{"history long", ErrPosition, func(m *Manifest) { m.History = append(m.History, 1) }},
	{"position zero", ErrPosition, func(m *Manifest) { m.Units, m.Components, m.Position, m.History = nil, nil, 0, nil }},
	{"first token elsewhere", ErrPosition, func(m *Manifest) { m.First.Index++ }},
	{"prompt longer than the position", ErrPosition, func(m *Manifest) { m.Usage.Prompt++ }},
	{"no prompt", ErrPosition, func(m *Manifest) { m.Usage.Prompt, m.First.Index = 0, m.Position }},
	{"more cached than there is", ErrPosition, func(m *Manifest) { m.Usage.Cached = m.Position + 1 }},
	{"nothing left to generate", ErrPosition, func(m *Manifest) { m.Generation.MaxTokens = m.First.Index }},
	{"negative token", ErrField, func(m *Manifest) { m.History[3] = -1 }},
	{"empty stop string", ErrLimit, func(m *Manifest) { m.Generation.Stop[0] = "" }},
	{"stop string not UTF-8", ErrField, func(m *Manifest) { m.Generation.Stop[0] = "\xff" }},
	{"tenant not UTF-8", ErrField, func(m *Manifest) { m.Binding.Tenant = "\xff" }},
	{"long build name", ErrLimit, func(m *Manifest) { m.Identity.EngineBuild = string(make([]byte, 600)) }},
	{"logprob NaN", ErrField, func(m *Manifest) { m.First.Logprob = float32(math.NaN()) }},
	{"inactive without a reason", ErrField, func(m *Manifest) { m.MTP.Reason = "" }},
	{"active with a reason", ErrField, func(m *Manifest) { m.MTP.Active = true }},
	{"top logprobs over the limit", ErrLimit, func(m *Manifest) { m.Generation.TopLogprobs = 65 }},
}

func TestManifestCheckRefusals(t *testing.T) {
	lim := DefaultLimits()
	for _, tt := range manifestCheckRefusals {
		t.Run(tt.name, func(t *testing.T) {
			m := wholeManifest(t)
			tt.edit(&m)
			_, err := m.Encode(testKey(), &lim)
			wantReason(t, err, tt.want)
			_, err = DecodeManifest(seal(m.appendUnsealed(nil), testKey()), testKey(), &lim)
			if !errors.Is(err, tt.want) && !errors.Is(err, ErrField) { // NaN does not even decode
				t.Fatalf("decoding: error is %v, want %v", err, tt.want)
			}
		})
	}
}

// manifestLimits lower one limit each below what the manifest holds.
var manifestLimits = []struct {
	name string
	edit func(*Limits)
}{
	{"bytes", func(l *Limits) { l.ManifestBytes = 500 }},
	{"units", func(l *Limits) { l.Units = 2 }},
	{"components", func(l *Limits) { l.Components = 1 }},
	{"history", func(l *Limits) { l.History = testTokens }},
	{"stop strings", func(l *Limits) { l.StopStrings = 1 }},
	{"stop bytes", func(l *Limits) { l.StopBytes = 2 }},
	{"sampler", func(l *Limits) { l.SamplerBytes = 1 }},
	{"params", func(l *Limits) { l.ParamsBytes = 1 }},
	{"top tokens", func(l *Limits) { l.TopTokens = 1 }},
	{"unit bytes", func(l *Limits) { l.UnitBytes = 10 }},
	{"names", func(l *Limits) { l.NameBytes = 8 }},
}

func TestManifestLimits(t *testing.T) {
	for _, tt := range manifestLimits {
		t.Run(tt.name, func(t *testing.T) {
			m := wholeManifest(t)
			lim := DefaultLimits()
			b, err := m.Encode(testKey(), &lim)
			if err != nil {
				t.Fatal(err)
			}
			tt.edit(&lim)
			_, err = DecodeManifest(b, testKey(), &lim)
			wantReason(t, err, ErrLimit)
			_, err = m.Encode(testKey(), &lim)
			wantReason(t, err, ErrLimit)
		})
	}
}

func BenchmarkManifest(b *testing.B) {
	m := wholeManifest(b)
	lim := DefaultLimits()
	m.Position, m.Usage = 8000, Usage{Prompt: 8000 - m.First.Index, Computed: 8000}
	m.History = make([]int32, 8001)
	enc, err := m.Encode(testKey(), &lim)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(enc)))
	for b.Loop() {
		if _, err := DecodeManifest(enc, testKey(), &lim); err != nil {
			b.Fatal(err)
		}
	}
}
