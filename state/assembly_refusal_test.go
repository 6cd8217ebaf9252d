package state

import (
	"errors"
	"slices"
	"testing"
)

// unitRefusals edit one unit of a hybrid handoff (0 and 1 are pages, 2 is the snapshot), with
// checksum and digest made to fit, and expect it to be refused when it comes.
var unitRefusals = []struct {
	name string
	unit int
	want error
	edit func(*unit)
}{
	{"another handoff", 0, ErrBinding, func(u *unit) { u.h.Handoff[15]++ }},
	{"another identity", 0, ErrIdentity, func(u *unit) { u.h.Identity[0]++ }},
	{"another part", 0, ErrPart, func(u *unit) { u.h.Part = 1 }},
	{"another codec", 0, ErrCodec, func(u *unit) { u.h.Codec = CodecLlamaSeq }},
	{"unknown codec", 0, ErrField, func(u *unit) { u.h.Codec = 77 }},
	{"a component the model lacks", 0, ErrComponent, func(u *unit) { u.h.Component = MTPKV }},
	{"a stage's layers", 0, ErrLayers, func(u *unit) { u.h.Layers.End-- }},
	{"another key type", 0, ErrDType, func(u *unit) { u.h.DType = BF16 }},
	{"another value type", 0, ErrDType, func(u *unit) { u.h.DTypeV = F16 }},
	{"tokens already here", 0, ErrTokens, func(u *unit) { u.h.Tokens = Range{1, 7} }},
	{"tokens beyond the prompt", 1, ErrTokens, func(u *unit) { u.h.Tokens.End++ }},
	{"page too short", 0, ErrSize, func(u *unit) { u.payload = u.payload[1:] }},
	{"page too long", 0, ErrSize, func(u *unit) { u.payload = append(u.payload, 0) }},
	{"page of other tokens", 0, ErrSize, func(u *unit) { u.h.Tokens.End-- }},
	{"snapshot too short", 2, ErrSize, func(u *unit) { u.payload = u.payload[:10] }},
	{"snapshot too long", 2, ErrSize, func(u *unit) { u.payload = append(u.payload, make([]byte, 400)...) }},
	{"snapshot of another position", 2, ErrTokens, func(u *unit) { u.h.Tokens.End-- }},
	{"snapshot of other layers", 2, ErrLayers, func(u *unit) { u.h.Layers.First++ }},
	{"snapshot before the last unit", 2, ErrFinal, func(u *unit) { u.h.Index = 0 }},
}

func TestUnitRefusals(t *testing.T) {
	for _, tt := range unitRefusals {
		t.Run(tt.name, func(t *testing.T) {
			inv := testInventory(t)
			exp := testExpect(inv)
			exp.Skip = 2
			d := deliver(t, inv, 0, 1, 2, 8, testTokens)
			if tt.want == ErrFinal {
				d.units[0].h.Index = 5
			}
			tt.edit(&d.units[tt.unit])
			d.reseal(tt.unit)
			a := newAssembly(t, exp)
			for i := range tt.unit {
				if err := a.Unit(&d.units[i].h, d.units[i].payload); err != nil {
					t.Fatal(err)
				}
			}
			u := &d.units[tt.unit]
			err := a.Unit(&u.h, u.payload)
			wantReason(t, err, tt.want)
			if a.Admit(&u.h) != err || a.Err() != err || a.Missing() != err {
				t.Error("the refusal does not stand")
			}
		})
	}
}

// assemblyRefusals say what arrives in what way and what is refused in the end.
var assemblyRefusals = []struct {
	name string
	want error
	give func(t *testing.T, a *Assembly, d *delivery) error
}{
	{"unit twice", ErrDuplicateUnit, func(t *testing.T, a *Assembly, d *delivery) error {
		d.units[1] = d.units[0]
		return feed(a, d)
	}},
	{"tokens twice", ErrOverlap, func(t *testing.T, a *Assembly, d *delivery) error {
		again := d.units[0]
		again.h.Index = 7
		d.units[1] = again
		return feed(a, d)
	}},
	{"snapshot twice", ErrDuplicateSnapshot, func(t *testing.T, a *Assembly, d *delivery) error {
		again := d.units[2]
		again.h.Index, again.h.Final = 1, false
		d.units[2].h.Final = false
		d.units[1] = d.units[2]
		d.units[2] = again
		return feed(a, d)
	}},
	{"final unit, then one behind it", ErrFinal, func(t *testing.T, a *Assembly, d *delivery) error {
		d.units[0].h.Final = true
		return feed(a, d)
	}},
	{"two final units", ErrFinal, func(t *testing.T, a *Assembly, d *delivery) error {
		d.units[1].h.Final = true
		slices.Reverse(d.units)
		return feed(a, d)
	}},
	{"final unit before the manifest's last", ErrFinal, func(t *testing.T, a *Assembly, d *delivery) error {
		d.units[1].h.Final = true
		d.reseal(1)
		return errors.Join(a.Unit(&d.units[1].h, d.units[1].payload), a.Manifest(d.encode()))
	}},
	{"final flag missing", ErrFinal, func(t *testing.T, a *Assembly, d *delivery) error {
		d.units[2].h.Final = false
		d.reseal(2)
		return feed(a, d)
	}},
	{"final flag missing, manifest first", ErrFinal, func(t *testing.T, a *Assembly, d *delivery) error {
		m := d.encode()
		d.units[2].h.Final = false
		d.reseal(2)
		if err := a.Manifest(m); err != nil {
			t.Fatal(err)
		}
		return a.Unit(&d.units[2].h, d.units[2].payload)
	}},
	{"payload shorter than declared", ErrSize, func(t *testing.T, a *Assembly, d *delivery) error {
		return a.Unit(&d.units[0].h, d.units[0].payload[1:])
	}},
	{"streamed payload shorter than declared", ErrSize, func(t *testing.T, a *Assembly, d *delivery) error {
		u := &d.units[0]
		return a.Streamed(&u.h, u.h.Length-1, u.h.Checksum, d.manifest.Units[0].Digest)
	}},
	{"streamed payload damaged", ErrChecksum, func(t *testing.T, a *Assembly, d *delivery) error {
		u := &d.units[0]
		return a.Streamed(&u.h, u.h.Length, u.h.Checksum^1, d.manifest.Units[0].Digest)
	}},
	{"manifest twice", ErrDuplicateManifest, func(t *testing.T, a *Assembly, d *delivery) error {
		return errors.Join(a.Manifest(d.encode()), a.Manifest(d.encode()))
	}},
	{"manifest of another identity", ErrIdentity, func(t *testing.T, a *Assembly, d *delivery) error {
		d.manifest.Identity.KVTypeV = F16
		return feed(a, d)
	}},
	{"manifest of another tenant", ErrBinding, func(t *testing.T, a *Assembly, d *delivery) error {
		d.manifest.Binding.Tenant = "another"
		return feed(a, d)
	}},
	{"manifest of another life of the destination", ErrBinding, func(t *testing.T, a *Assembly, d *delivery) error {
		d.manifest.Binding.Destination.Incarnation++
		return feed(a, d)
	}},
	{"manifest of a split model", ErrPart, func(t *testing.T, a *Assembly, d *delivery) error {
		d.manifest.Parts = 2
		return feed(a, d)
	}},
	{"manifest damaged", ErrDigest, func(t *testing.T, a *Assembly, d *delivery) error {
		m := d.encode()
		m[100] ^= 1
		return a.Manifest(m)
	}},
	{"position one less", ErrPosition, func(t *testing.T, a *Assembly, d *delivery) error {
		m := &d.manifest
		m.Position--
		m.Usage.Prompt--
		m.History = m.History[1:]
		m.Units[1].Tokens.End--
		m.Units[2].Tokens.End--
		return a.Manifest(d.encode())
	}},
	{"position one more", ErrPosition, func(t *testing.T, a *Assembly, d *delivery) error {
		m := &d.manifest
		m.Position++
		m.Usage.Prompt++
		m.History = append(m.History, 1)
		return feed(a, d)
	}},
	{"speculation active on one side", ErrMTP, func(t *testing.T, a *Assembly, d *delivery) error {
		d.manifest.MTP = MTP{Active: true}
		return feed(a, d)
	}},
	{"manifest without the last page", ErrMissingPages, func(t *testing.T, a *Assembly, d *delivery) error {
		m := &d.manifest
		m.Units = append(m.Units[:1:1], m.Units[2])
		m.Units[1].Index = 1
		for i := range m.Components {
			m.Components[i].Unit = 1
		}
		return a.Manifest(d.encode())
	}},
	{"manifest without the snapshot", ErrMissingSnapshot, func(t *testing.T, a *Assembly, d *delivery) error {
		d.manifest.Units, d.manifest.Components = d.manifest.Units[:2], nil
		return a.Manifest(d.encode())
	}},
	{"manifest with pages that overlap", ErrOverlap, func(t *testing.T, a *Assembly, d *delivery) error {
		u := &d.manifest.Units[1]
		u.Tokens.First--
		u.Length = testInventory(t).Find(AttentionKV).Bytes(u.Tokens.Len())
		return a.Manifest(d.encode())
	}},
	{"manifest with two snapshots", ErrDuplicateSnapshot, func(t *testing.T, a *Assembly, d *delivery) error {
		m := &d.manifest
		again := m.Units[2]
		again.Index = 3
		m.Units = append(m.Units[:3:3], again)
		for _, r := range slices.Clone(m.Components) {
			r.Unit = 3
			m.Components = append(m.Components, r)
		}
		return a.Manifest(d.encode())
	}},
	{"manifest with a page of another size", ErrSize, func(t *testing.T, a *Assembly, d *delivery) error {
		d.manifest.Units[0].Length++
		return a.Manifest(d.encode())
	}},
	{"manifest with a page the model lacks", ErrComponent, func(t *testing.T, a *Assembly, d *delivery) error {
		d.manifest.Units[0].Component = MTPKV
		return a.Manifest(d.encode())
	}},
	{"manifest with other units", ErrUnits, func(t *testing.T, a *Assembly, d *delivery) error {
		return feed(a, recut(t, d))
	}},
	{"manifest with other units, before them", ErrUnits, func(t *testing.T, a *Assembly, d *delivery) error {
		recut(t, d)
		return errors.Join(a.Manifest(d.encode()), a.Unit(&d.units[0].h, d.units[0].payload))
	}},
	{"manifest with another digest", ErrDigest, func(t *testing.T, a *Assembly, d *delivery) error {
		d.manifest.Units[0].Digest[0]++
		return feed(a, d)
	}},
	{"manifest with fewer units than came", ErrUnits, func(t *testing.T, a *Assembly, d *delivery) error {
		d.units[0].h.Index = 9
		return errors.Join(a.Unit(&d.units[0].h, d.units[0].payload), a.Manifest(d.encode()))
	}},
	{"unit the manifest does not list", ErrUnits, func(t *testing.T, a *Assembly, d *delivery) error {
		d.units[0].h.Index = 9
		return errors.Join(a.Manifest(d.encode()), a.Unit(&d.units[0].h, d.units[0].payload))
	}},
	{"component missing", ErrComponents, func(t *testing.T, a *Assembly, d *delivery) error {
		m := &d.manifest
		refs, _ := snapshotRefs(testInventory(t), 8) // a longer window makes up for the bytes
		m.Components = refs[:2]
		for i := range m.Components {
			m.Components[i].Unit = 2
		}
		m.Units[2].Length = refs[2].Offset
		return a.Manifest(d.encode())
	}},
	{"components in another order", ErrComponents, func(t *testing.T, a *Assembly, d *delivery) error {
		m := &d.manifest
		m.Components[1].Kind, m.Components[2].Kind = m.Components[2].Kind, m.Components[1].Kind
		return feed(a, d)
	}},
	{"component the model lacks", ErrComponents, func(t *testing.T, a *Assembly, d *delivery) error {
		m := &d.manifest
		last := &m.Components[2]
		last.Length--
		m.Components = append(m.Components, ComponentRef{MTPHidden, 2, last.Offset + last.Length, 1, last.Layers})
		m.Components[2].Length++
		m.Components[3].Offset++
		m.Units[2].Length++
		return a.Manifest(d.encode())
	}},
	{"component of other layers", ErrLayers, func(t *testing.T, a *Assembly, d *delivery) error {
		d.manifest.Components[1].Layers.End--
		return feed(a, d)
	}},
	{"component of another size", ErrSize, func(t *testing.T, a *Assembly, d *delivery) error {
		d.manifest.Components[1].Length--
		d.manifest.Components[2].Offset--
		d.manifest.Components[2].Length++
		return feed(a, d)
	}},
}

func TestAssemblyRefusals(t *testing.T) {
	for _, tt := range assemblyRefusals {
		t.Run(tt.name, func(t *testing.T) {
			inv := testInventory(t)
			a := newAssembly(t, testExpect(inv))
			err := tt.give(t, a, deliver(t, inv, 0, 1, 0, 8, testTokens))
			wantReason(t, err, tt.want)
			if a.Complete() || a.Err() == nil {
				t.Error("complete after a refusal")
			}
		})
	}
	t.Run("snapshot of a dense model", func(t *testing.T) {
		a := newAssembly(t, testExpect(denseInventory(t)))
		d := deliver(t, testInventory(t), 0, 1, 0, 8, testTokens)
		wantReason(t, a.Unit(&d.units[2].h, d.units[2].payload), ErrUnexpectedUnit)
	})
}

// partRefusals edit the second part's manifest of a handoff of two parts.
var partRefusals = []struct {
	name, field string
	edit        func(*Manifest)
}{
	{"history", "history", func(m *Manifest) { m.History[3]++ }},
	{"first token", "first_token", func(m *Manifest) { m.First.Logprob++ }},
	{"alternatives", "first_token", func(m *Manifest) { m.First.Top[0].Token++ }},
	{"first index", "first_token", func(m *Manifest) { m.First.Index++; m.Usage.Prompt-- }},
	{"generation", "generation", func(m *Manifest) { m.Generation.MaxTokens++ }},
	{"stop strings", "generation", func(m *Manifest) { m.Generation.Stop = nil }},
	{"sampler", "sampler", func(m *Manifest) { m.Sampler[0]++ }},
	{"usage", "usage", func(m *Manifest) { m.Usage.Computed++ }},
	{"speculation", "mtp", func(m *Manifest) { m.MTP.Reason = "another reason" }},
}

func TestPartsAgree(t *testing.T) {
	for _, tt := range partRefusals {
		t.Run(tt.name, func(t *testing.T) {
			inv := denseInventory(t)
			a := newAssembly(t, testExpect(inv, inv))
			if err := feed(a, deliver(t, inv, 0, 2, 0, testTokens)); err != nil {
				t.Fatal(err)
			}
			if a.Complete() || !errors.Is(a.Missing(), ErrMissingPages) {
				t.Fatalf("after one of two parts: complete %v, missing %v", a.Complete(), a.Missing())
			}
			d := deliver(t, inv, 1, 2, 0, testTokens)
			tt.edit(&d.manifest)
			wantRefusal(t, feed(a, d), ErrParts, tt.field)
		})
	}
}

// recut makes d's manifest describe the same tokens in other pages, and leaves its units alone.
func recut(t *testing.T, d *delivery) *delivery {
	d.manifest.Units = deliver(t, testInventory(t), 0, 1, 0, 9, testTokens).manifest.Units
	return d
}

var expectRefusals = []struct {
	name string
	want error
	edit func(*Expect)
}{
	{"no parts", ErrPart, func(e *Expect) { e.Parts = nil }},
	{"too many parts", ErrPart, func(e *Expect) { e.Parts = make([]Inventory, 65) }},
	{"no tokens", ErrTokens, func(e *Expect) { e.Tokens = 0 }},
	{"more skipped than there are", ErrTokens, func(e *Expect) { e.Skip = e.Tokens + 1 }},
	{"more than the history may hold", ErrTokens, func(e *Expect) { e.Tokens = e.Limits.History }},
	{"impossible inventory", ErrGeometry, func(e *Expect) { e.Parts[0][0].PerToken = 0 }},
}

func TestExpectRefusals(t *testing.T) {
	for _, tt := range expectRefusals {
		t.Run(tt.name, func(t *testing.T) {
			exp := testExpect(testInventory(t))
			tt.edit(&exp)
			_, err := NewAssembly(exp)
			wantReason(t, err, tt.want)
		})
	}
}
