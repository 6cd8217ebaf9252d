package state

import (
	"bytes"
	"slices"
)

// Expect is what a destination knows before the first byte; everything that arrives is checked
// against it.
type Expect struct {
	// Identity is the destination's own.
	Identity Identity
	// Binding is the handoff's, the same that the ticket was made for.
	Binding Binding
	// Parts are the inventories of the source parts, by part number: one for a source that holds
	// the whole model, which is then the destination's own inventory.
	Parts []Inventory
	// Codec is the only payload codec accepted.
	Codec Codec
	// Tokens is N, the number of tokens that the state must cover. Skip of them, from the start, are
	// already here and must not arrive.
	Tokens, Skip uint32
	// Key verifies the keyed digests.
	Key DigestKey
	// Limits bound everything.
	Limits Limits
}

// Assembly validates what a destination receives for one handoff, without holding any payload: give
// it units and manifests in the order in which they arrive, and restore nothing for good before
// Complete. It is not safe for concurrent use. The first refusal is final: every later call returns
// the same error, because partial state is discarded, never resumed.
type Assembly struct {
	exp      Expect
	identity Digest
	digester *Digester
	parts    []assemblyPart
	// agreed is the first manifest that arrived; those of other parts must tell the same sequence.
	agreed *Manifest
	// open counts the parts that are not yet whole; the handoff is complete at 0.
	open  int
	bytes uint64
	units int
	err   error
}

// assemblyPart is what has arrived of one part.
type assemblyPart struct {
	inv Inventory
	// seen holds the units by index. Its size is bounded by Limits.Units.
	seen map[uint32]UnitRef
	// cover is, per component of inv, which tokens have arrived.
	cover []coverage
	// last is the index of the unit with the final flag, or −1; highest the largest index seen, or −1.
	last, highest int64
	snapshot      bool
	manifest      *Manifest
	whole         bool
}

// NewAssembly returns an assembly that has received nothing. It refuses an expectation that
// contradicts itself.
func NewAssembly(exp Expect) (*Assembly, error) {
	if n := len(exp.Parts); n == 0 || uint64(n) > uint64(exp.Limits.Parts) || n > 1<<16-1 {
		return nil, refuse(ErrPart, "expectation", "parts", utoa(uint64(n)), "1 to "+utoa(uint64(exp.Limits.Parts)))
	}
	if exp.Tokens == 0 || exp.Skip > exp.Tokens || uint64(exp.Tokens) >= uint64(exp.Limits.History) {
		return nil, refuse(ErrTokens, "expectation", "tokens", utoa(uint64(exp.Skip))+" skipped of "+utoa(uint64(exp.Tokens)), "below "+utoa(uint64(exp.Limits.History)))
	}
	a := &Assembly{exp: exp, identity: exp.Identity.Digest(), digester: NewDigester(exp.Key), open: len(exp.Parts)}
	for _, inv := range exp.Parts {
		if err := inv.Check(); err != nil {
			return nil, err
		}
		a.parts = append(a.parts, assemblyPart{
			inv: inv, seen: make(map[uint32]UnitRef), cover: make([]coverage, len(inv)), last: -1, highest: -1,
		})
	}
	return a, nil
}

// Admit reports whether a unit with this header would be accepted now, before its payload is read.
// It changes nothing, unless it refuses.
func (a *Assembly) Admit(h *UnitHeader) error {
	if a.err == nil {
		a.err = a.admit(h)
	}
	return a.err
}

// Unit checks a unit against everything known so far, payload included (checksum and keyed digest),
// and records it. The payload is not kept.
func (a *Assembly) Unit(h *UnitHeader, payload []byte) error {
	if err := a.Admit(h); err != nil {
		return err
	}
	if h.Length != uint64(len(payload)) {
		return a.fail(h.refuse(ErrSize, "payload", utoa(uint64(len(payload))), utoa(h.Length)))
	}
	sum := UpdateChecksum(0, payload)
	if sum != h.Checksum {
		return a.fail(h.refuse(ErrChecksum, "payload", "", ""))
	}
	a.digester.Start(h)
	a.digester.Write(payload)
	return a.record(h, a.digester.Sum())
}

// Streamed is Unit for a host that computed length, checksum and keyed digest while the payload
// streamed.
func (a *Assembly) Streamed(h *UnitHeader, length uint64, sum uint32, d Digest) error {
	if err := a.Admit(h); err != nil {
		return err
	}
	if length != h.Length {
		return a.fail(h.refuse(ErrSize, "payload", utoa(length), utoa(h.Length)))
	}
	if sum != h.Checksum {
		return a.fail(h.refuse(ErrChecksum, "payload", "", ""))
	}
	return a.record(h, d)
}

// Manifest decodes the sealed manifest of one part and checks it against itself, the expectation,
// the units that came, and the manifests of other parts. It may come before, between or after the
// part's units.
func (a *Assembly) Manifest(encoded []byte) error {
	if a.err != nil {
		return a.err
	}
	m, err := DecodeManifest(encoded, a.exp.Key, &a.exp.Limits)
	if err != nil {
		return a.fail(err)
	}
	if err := a.manifest(m); err != nil {
		return a.fail(err)
	}
	return nil
}

// Complete reports whether everything arrived and matched: every part's manifest and units, and all
// tokens.
func (a *Assembly) Complete() bool { return a.err == nil && a.open == 0 }

// Err returns the refusal, or nil.
func (a *Assembly) Err() error { return a.err }

// Received returns how many units and payload bytes were accepted.
func (a *Assembly) Received() (units int, payload uint64) { return a.units, a.bytes }

// Sequence returns a manifest once the handoff is complete, else nil: that of the part whose
// manifest came first. What it says about the sequence holds for all parts; its Part, Units and
// Components are its own part's.
func (a *Assembly) Sequence() *Manifest {
	if !a.Complete() {
		return nil
	}
	return a.agreed
}

// PartManifest returns the manifest of part i once the handoff is complete, else nil.
func (a *Assembly) PartManifest(i int) *Manifest {
	if !a.Complete() || i < 0 || i >= len(a.parts) {
		return nil
	}
	return a.parts[i].manifest
}

// Missing returns nil once the handoff is complete, the refusal if there is one, and otherwise an
// error that names the first thing that has not arrived: what to report when a deadline passes.
func (a *Assembly) Missing() error {
	if a.err != nil || a.open == 0 {
		return a.err
	}
	for i := range a.parts {
		p := &a.parts[i]
		if p.whole {
			continue
		}
		if err := a.missingState(i, p.cover, p.snapshot); err != nil {
			return err
		}
		if p.manifest == nil {
			return partError(ErrMissingManifest, i, "", "", "")
		}
		for j := range p.manifest.Units {
			if _, ok := p.seen[p.manifest.Units[j].Index]; !ok {
				return &Error{Reason: ErrMissingUnit, What: "unit", Part: int64(i), Unit: int64(j)}
			}
		}
	}
	return nil
}

func (a *Assembly) fail(err error) error {
	a.err = err
	return err
}

func partError(reason error, part int, field, got, want string) error {
	return &Error{Reason: reason, What: "handoff", Part: int64(part), Unit: -1, Field: field, Got: got, Want: want}
}

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
	if p.last >= 0 && (h.Final || int64(h.Index) > p.last) || h.Final && int64(h.Index) < p.highest {
		return h.refuse(ErrFinal, "index", "", "")
	}
	if h.Unit == UnitSnapshot {
		if err := a.admitSnapshot(h, p); err != nil {
			return err
		}
	} else if err := a.admitPage(h, p); err != nil {
		return err
	}
	if p.manifest != nil {
		return matchUnit(h, p.manifest)
	}
	return nil
}

func (a *Assembly) admitPage(h *UnitHeader, p *assemblyPart) error {
	c := p.inv.Find(h.Component)
	switch {
	case c == nil || !c.Active():
		return h.refuse(ErrComponent, "component", h.Component.String(), "an active component")
	case h.Layers != c.Layers:
		return h.refuse(ErrLayers, "layers", h.Layers.String(), c.Layers.String())
	case h.DType != c.DType || h.DTypeV != c.DTypeV:
		return h.refuse(ErrDType, "dtype", h.DType.String()+"/"+h.DTypeV.String(), c.DType.String()+"/"+c.DTypeV.String())
	case h.Tokens.First < a.exp.Skip || h.Tokens.End > a.exp.Tokens:
		return h.refuse(ErrTokens, "tokens", h.Tokens.String(), "inside "+Range{a.exp.Skip, a.exp.Tokens}.String())
	}
	if want := c.Bytes(h.Tokens.Len()); h.Length != want {
		return h.refuse(ErrSize, "length", utoa(h.Length), utoa(want))
	}
	for i := range p.inv {
		if &p.inv[i] == c && p.cover[i].overlaps(h.Tokens) {
			return h.refuse(ErrOverlap, "tokens", h.Tokens.String(), "")
		}
	}
	return nil
}

func (a *Assembly) admitSnapshot(h *UnitHeader, p *assemblyPart) error {
	if !p.inv.Snapshot() {
		return h.refuse(ErrUnexpectedUnit, "unit", h.Unit.String(), "pages only")
	}
	if p.snapshot {
		return h.refuse(ErrDuplicateSnapshot, "unit", "", "")
	}
	if want := p.inv.snapshotLayers(); h.Layers != want {
		return h.refuse(ErrLayers, "layers", h.Layers.String(), want.String())
	}
	if want := (Range{0, a.exp.Tokens}); h.Tokens != want {
		return h.refuse(ErrTokens, "tokens", h.Tokens.String(), want.String())
	}
	if lo, hi := p.inv.SnapshotBytes(a.exp.Tokens); h.Length < lo || h.Length > hi {
		return h.refuse(ErrSize, "length", utoa(h.Length), utoa(lo)+" to "+utoa(hi))
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

// record enters a unit whose header was admitted and whose payload was checked.
func (a *Assembly) record(h *UnitHeader, d Digest) error {
	p := &a.parts[h.Part]
	if p.manifest != nil && !p.manifest.Units[h.Index].Digest.Same(d) {
		return a.fail(h.refuse(ErrDigest, "payload", "", ""))
	}
	p.seen[h.Index] = h.ref(d)
	p.highest = max(p.highest, int64(h.Index))
	if h.Final {
		p.last = int64(h.Index)
	}
	if h.Unit == UnitSnapshot {
		p.snapshot = true
	}
	for i := range p.inv {
		if h.Unit == UnitPage && p.inv[i].Kind == h.Component {
			p.cover[i].add(h.Tokens)
		}
	}
	a.units++
	a.bytes += h.Length
	a.settle(p)
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

// settle closes a part that has become whole. Its manifest was shown to cover everything, and every
// unit that came to be one of the manifest's, so counting is enough.
func (a *Assembly) settle(p *assemblyPart) {
	if !p.whole && p.manifest != nil && len(p.seen) == len(p.manifest.Units) {
		p.whole = true
		a.open--
	}
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
