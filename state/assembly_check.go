package state

import (
	"bytes"
	"slices"
)

// admit is the check of a header alone.
func (a *Assembly) admit(h *UnitHeader) error {
	if err := h.Check(&a.exp.Limits); err != nil {
		return err
	}
	switch {
	case h.Handoff != a.exp.Binding.Handoff:
		return h.refuse(ErrBinding, "handoff", "", "")
	case h.Identity != a.identity:
		return h.refuse(ErrIdentity, "identity", "", "")
	case int(h.Part) >= len(a.parts):
		return h.refuse(ErrPart, "part", utoa(uint64(h.Part)), "below "+utoa(uint64(len(a.parts))))
	case h.Codec != a.exp.Codec:
		return h.refuse(ErrCodec, "codec", h.Codec.String(), a.exp.Codec.String())
	}
	p := &a.parts[h.Part]
	if _, ok := p.seen[h.Index]; ok {
		return h.refuse(ErrDuplicateUnit, "index", "", "")
	}
	if p.last >= 0 && int64(h.Index) > p.last || h.Final && int64(h.Index) < p.highest {
		return h.refuse(ErrFinal, "index", "", "")
	}
	ref := h.ref(Digest{})
	if err := a.admitRef(&ref, h.Part, p.inv); err != nil {
		return err
	}
	if h.Unit == UnitSnapshot {
		if p.snapshot {
			return h.refuse(ErrDuplicateSnapshot, "unit", "", "")
		}
	} else if err := admitPage(h, p); err != nil {
		return err
	}
	if p.manifest != nil {
		return matchUnit(h, p.manifest)
	}
	return nil
}

// admitPage checks what only a page's header tells, and that its tokens are new.
func admitPage(h *UnitHeader, p *assemblyPart) error {
	for i := range p.inv {
		c := &p.inv[i]
		if c.Kind != h.Component {
			continue
		}
		if h.DType != c.DType || h.DTypeV != c.DTypeV {
			return h.refuse(ErrDType, "dtype", h.DType.String()+"/"+h.DTypeV.String(), c.DType.String()+"/"+c.DTypeV.String())
		}
		if p.cover[i].overlaps(h.Tokens) {
			return h.refuse(ErrOverlap, "tokens", h.Tokens.String(), "")
		}
	}
	return nil
}

// admitRef checks what a unit's header and the manifest's line about it both tell: that the
// inventory has such a unit, and its layers, tokens and size.
func (a *Assembly) admitRef(u *UnitRef, part uint16, inv Inventory) error {
	fail := func(reason error, field, got, want string) error {
		return &Error{Reason: reason, What: u.Unit.String(), Part: int64(part), Unit: int64(u.Index), Field: field, Got: got, Want: want}
	}
	if u.Unit == UnitSnapshot {
		layers, tokens := inv.snapshotLayers(), Range{0, a.exp.Tokens}
		lo, hi := inv.SnapshotBytes(a.exp.Tokens)
		switch {
		case layers.Len() == 0:
			return fail(ErrUnexpectedUnit, "unit", u.Unit.String(), "pages only")
		case u.Layers != layers:
			return fail(ErrLayers, "layers", u.Layers.String(), layers.String())
		case u.Tokens != tokens:
			return fail(ErrTokens, "tokens", u.Tokens.String(), tokens.String())
		case u.Length < lo || u.Length > hi:
			return fail(ErrSize, "length", utoa(u.Length), utoa(lo)+" to "+utoa(hi))
		}
		return nil
	}
	c := inv.Find(u.Component)
	switch {
	case c == nil || !c.Active():
		return fail(ErrComponent, "component", u.Component.String(), "an active component")
	case u.Layers != c.Layers:
		return fail(ErrLayers, "layers", u.Layers.String(), c.Layers.String())
	case u.Tokens.First < a.exp.Skip || u.Tokens.End > a.exp.Tokens:
		return fail(ErrTokens, "tokens", u.Tokens.String(), "inside "+Range{a.exp.Skip, a.exp.Tokens}.String())
	}
	if want := c.Bytes(u.Tokens.Len()); u.Length != want {
		return fail(ErrSize, "length", utoa(u.Length), utoa(want))
	}
	return nil
}

// matchUnit compares a header with the manifest's line about it.
func matchUnit(h *UnitHeader, m *Manifest) error {
	if uint64(h.Index) >= uint64(len(m.Units)) {
		return h.refuse(ErrUnits, "index", utoa(uint64(h.Index)), "below "+utoa(uint64(len(m.Units))))
	}
	if h.Final != (int(h.Index) == len(m.Units)-1) {
		return h.refuse(ErrFinal, "index", "", "")
	}
	u := &m.Units[h.Index]
	if h.ref(u.Digest) != *u {
		return h.refuse(ErrUnits, "header", "", "")
	}
	return nil
}

// manifest enters a decoded manifest.
func (a *Assembly) manifest(m *Manifest) error {
	if err := a.exp.Identity.Match(m.Identity); err != nil {
		return err
	}
	if err := a.exp.Binding.Match(m.Binding); err != nil {
		return err
	}
	if int(m.Parts) != len(a.parts) {
		return m.refuse(ErrPart, "parts", utoa(uint64(m.Parts)), utoa(uint64(len(a.parts))))
	}
	p := &a.parts[m.Part]
	if p.manifest != nil {
		return m.refuse(ErrDuplicateManifest, "", "", "")
	}
	if m.Position != a.exp.Tokens {
		return m.refuse(ErrPosition, "position", utoa(uint64(m.Position)), utoa(uint64(a.exp.Tokens)))
	}
	if err := a.manifestMTP(m, p.inv); err != nil {
		return err
	}
	if err := a.manifestUnits(m, p); err != nil {
		return err
	}
	if a.agreed == nil {
		a.agreed = m
	} else if field := m.disagrees(a.agreed); field != "" {
		return m.refuse(ErrParts, field, "", "")
	}
	p.manifest = m
	a.settle(p)
	return nil
}

// manifestMTP refuses speculation that is active on one side only: the state would be lost, or be
// missing.
func (a *Assembly) manifestMTP(m *Manifest, inv Inventory) error {
	c := inv.Find(MTPKV)
	if active := c != nil && c.Active(); active != m.MTP.Active {
		return m.refuse(ErrMTP, "mtp.active", "", "")
	}
	return nil
}

// manifestUnits checks that the listed units are whole by themselves (every token once, the
// snapshot once and as the inventory says) and that they are those that came.
func (a *Assembly) manifestUnits(m *Manifest, p *assemblyPart) error {
	cover := make([]coverage, len(p.inv))
	snapshot := false
	for i := range m.Units {
		u := &m.Units[i]
		if err := a.admitRef(u, m.Part, p.inv); err != nil {
			return err
		}
		if u.Unit == UnitSnapshot {
			if snapshot {
				return m.refuse(ErrDuplicateSnapshot, "units", "", "")
			}
			snapshot = true
		}
		for j := range p.inv {
			if u.Unit == UnitPage && p.inv[j].Kind == u.Component && !cover[j].add(u.Tokens) {
				return m.refuse(ErrOverlap, "units", u.Tokens.String(), "")
			}
		}
		if seen, ok := p.seen[u.Index]; ok {
			d := seen.Digest
			seen.Digest = u.Digest
			if seen != *u {
				return &Error{Reason: ErrUnits, What: "manifest", Part: int64(m.Part), Unit: int64(u.Index)}
			}
			if !d.Same(u.Digest) {
				return &Error{Reason: ErrDigest, What: "manifest", Part: int64(m.Part), Unit: int64(u.Index)}
			}
		}
	}
	if p.highest >= int64(len(m.Units)) {
		return m.refuse(ErrUnits, "units", utoa(uint64(len(m.Units))), "at least "+utoa(uint64(p.highest+1)))
	}
	last := int64(len(m.Units)) - 1
	if p.last >= 0 && p.last != last || p.last < 0 && p.highest >= 0 && p.highest == last {
		return m.refuse(ErrFinal, "units", "", "")
	}
	if err := a.missingState(int(m.Part), cover, snapshot); err != nil {
		return err
	}
	if err := checkSnapshot(p.inv, m.Position, m.Components); err != nil {
		return m.refuse(err.Reason, err.Field, err.Got, err.Want)
	}
	return nil
}

// missingState returns an error that names the first tokens or the snapshot that cover and snapshot
// lack, or nil.
func (a *Assembly) missingState(part int, cover []coverage, snapshot bool) error {
	inv := a.parts[part].inv
	for i := range inv {
		if !inv[i].Active() || !inv[i].Kind.Paged() {
			continue
		}
		if gap := cover[i].missing(Range{a.exp.Skip, a.exp.Tokens}); gap.Len() > 0 {
			return partError(ErrMissingPages, part, inv[i].Kind.String(), "without tokens "+gap.String(), Range{a.exp.Skip, a.exp.Tokens}.String())
		}
	}
	if inv.Snapshot() && !snapshot {
		return partError(ErrMissingSnapshot, part, "", "", "")
	}
	return nil
}

// disagrees names the first thing about the sequence in which two parts' manifests differ, or "".
func (m *Manifest) disagrees(o *Manifest) string {
	switch {
	case m.Position != o.Position:
		return "position"
	case !slices.Equal(m.History, o.History):
		return "history"
	case m.First.Index != o.First.Index || m.First.Logprob != o.First.Logprob || !slices.Equal(m.First.Top, o.First.Top):
		return "first_token"
	case !m.Generation.equal(&o.Generation):
		return "generation"
	case !bytes.Equal(m.Sampler, o.Sampler):
		return "sampler"
	case m.Usage != o.Usage:
		return "usage"
	case m.MTP != o.MTP:
		return "mtp"
	}
	return ""
}

func (g *Generation) equal(o *Generation) bool {
	return g.MaxTokens == o.MaxTokens && g.MinTokens == o.MinTokens && slices.Equal(g.Stop, o.Stop) &&
		g.IgnoreEOS == o.IgnoreEOS && g.Logprobs == o.Logprobs && g.TopLogprobs == o.TopLogprobs && bytes.Equal(g.Params, o.Params)
}
