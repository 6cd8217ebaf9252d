package state

import "github.com/tandem-llm/tandem/handoff"

// SealerConfig is what a source needs to describe its units.
type SealerConfig struct {
	Handoff  handoff.ID
	Identity Identity
	// Inventory is this part's.
	Inventory Inventory
	// Part is this source's part number.
	Part  uint16
	Codec Codec
	Key   DigestKey
	// Limits are the source's own; a unit over them is refused here instead of at the destination.
	Limits Limits
}

// Sealer makes the headers of one part's units and remembers them for the manifest. It is not safe
// for concurrent use. It does not keep payloads.
type Sealer struct {
	cfg      SealerConfig
	identity Digest
	digester *Digester
	units    []UnitRef
	refs     []ComponentRef
	final    bool
	// overChecksum: digests cover payloads by their checksums.
	overChecksum bool
	// deferred: digests come later; pending is how many are missing.
	deferred bool
	pending  int
}

// NewSealer returns a sealer whose first unit has index 0.
func NewSealer(cfg SealerConfig) *Sealer {
	return &Sealer{cfg: cfg, identity: cfg.Identity.Digest(), digester: NewDigester(cfg.Key)}
}

// OverChecksum makes the digests of units sealed from now on cover the payload by its checksum only;
// see Digester.OverChecksum. Both sides of a link must agree on it.
func (s *Sealer) OverChecksum() { s.overChecksum = true }

// Defer leaves the digests of units sealed from now on to the caller, so that a payload can be sent
// while it is hashed: with a Digester of the same key, over the header that Page or Snapshot returned and
// the payload. Digest takes them, Pending counts those that are missing. Digests over checksums are
// not deferred.
func (s *Sealer) Defer() { s.deferred = true }

// Pending returns how many digests are missing.
func (s *Sealer) Pending() int { return s.pending }

// Digest takes the digest of a unit by its index. Each is taken once.
func (s *Sealer) Digest(index uint32, d Digest) error {
	if uint64(index) >= uint64(len(s.units)) || s.units[index].Digest != (Digest{}) {
		return refuse(ErrDigest, "sealer", "unit", utoa(uint64(index)), "a unit whose digest is missing")
	}
	s.units[index].Digest = d
	s.pending--
	return nil
}

// Units returns how many units were sealed.
func (s *Sealer) Units() int { return len(s.units) }

// Page makes the header of a page of the component kind over tokens, and computes the payload's
// checksum and keyed digest: one pass each over the payload, which must not change afterwards (after
// OverChecksum one pass in all).
// Final says that the part has no unit after it. It refuses a payload whose length is not what the
// inventory says, and anything after the final unit; a refused unit leaves the sealer unchanged.
func (s *Sealer) Page(kind Kind, tokens Range, final bool, payload []byte) (UnitHeader, error) {
	h := s.header(UnitPage, tokens, final, payload)
	h.Component = kind
	c := s.cfg.Inventory.Find(kind)
	if c == nil || !c.Active() {
		return UnitHeader{}, h.refuse(ErrComponent, "component", kind.String(), "an active component")
	}
	h.Layers, h.DType, h.DTypeV = c.Layers, c.DType, c.DTypeV
	if want := c.Bytes(tokens.Len()); h.Length != want {
		return UnitHeader{}, h.refuse(ErrSize, "length", utoa(h.Length), utoa(want))
	}
	return s.seal(h, payload)
}

// Snapshot makes the header of the snapshot after tokens tokens, as Page does. Refs say which
// component lies where; their Unit is filled in here.
func (s *Sealer) Snapshot(tokens uint32, final bool, payload []byte, refs []ComponentRef) (UnitHeader, error) {
	h := s.header(UnitSnapshot, Range{0, tokens}, final, payload)
	if len(s.refs) > 0 {
		return UnitHeader{}, h.refuse(ErrDuplicateSnapshot, "", "", "")
	}
	if h.Layers = s.cfg.Inventory.snapshotLayers(); h.Layers.Len() == 0 {
		return UnitHeader{}, h.refuse(ErrUnexpectedUnit, "", "", "")
	}
	if err := checkSnapshot(s.cfg.Inventory, tokens, refs); err != nil {
		return UnitHeader{}, h.refuse(err.Reason, err.Field, err.Got, err.Want)
	}
	h, err := s.seal(h, payload)
	if err != nil {
		return UnitHeader{}, err
	}
	for _, r := range refs {
		r.Unit = h.Index
		s.refs = append(s.refs, r)
	}
	return h, nil
}

func (s *Sealer) header(unit UnitKind, tokens Range, final bool, payload []byte) UnitHeader {
	return UnitHeader{
		Handoff: s.cfg.Handoff, Identity: s.identity, Part: s.cfg.Part, Unit: unit, Codec: s.cfg.Codec,
		Final: final, Index: uint32(len(s.units)), Tokens: tokens, Length: uint64(len(payload)),
	}
}

func (s *Sealer) seal(h UnitHeader, payload []byte) (UnitHeader, error) {
	if s.final {
		return UnitHeader{}, h.refuse(ErrFinal, "", "a unit after the final one", "")
	}
	if err := h.Check(&s.cfg.Limits); err != nil {
		return UnitHeader{}, err
	}
	h.Checksum = UpdateChecksum(0, payload)
	var d Digest
	switch {
	case s.overChecksum:
		d = s.digester.OverChecksum(&h)
	case s.deferred:
		s.pending++
	default:
		s.digester.Start(&h)
		s.digester.Write(payload)
		d = s.digester.Sum()
	}
	s.units = append(s.units, h.ref(d))
	s.final = h.Final
	return h, nil
}

// Manifest fills in what the sealer knows (schema, identity, part number, units, components) and
// returns the sealed encoding. The rest of m is the caller's, Binding and Parts included.
func (s *Sealer) Manifest(m *Manifest) ([]byte, error) {
	m.Schema, m.Identity, m.Part = SchemaVersion, s.cfg.Identity, s.cfg.Part
	m.Units, m.Components = s.units, s.refs
	if len(s.units) > 0 && !s.final {
		return nil, m.refuse(ErrFinal, "units", "without a final unit", "")
	}
	if s.pending > 0 {
		return nil, m.refuse(ErrDigest, "units", utoa(uint64(s.pending))+" without digest", "every digest")
	}
	if m.Binding.Handoff != s.cfg.Handoff {
		return nil, m.refuse(ErrBinding, "handoff", "", "")
	}
	return m.Encode(s.cfg.Key, &s.cfg.Limits)
}

// ref returns the manifest's line about the unit.
func (h *UnitHeader) ref(d Digest) UnitRef {
	return UnitRef{h.Index, h.Unit, h.Component, h.Layers, h.Tokens, h.Length, d}
}

// checkSnapshot compares component references with the inventory: the same kinds in the same order,
// the same layers, possible lengths. Offsets are the manifest's own check.
func checkSnapshot(inv Inventory, tokens uint32, refs []ComponentRef) *Error {
	next := 0
	for i := range inv {
		c := &inv[i]
		if !c.inSnapshot() {
			continue
		}
		name := c.Kind.String()
		if next == len(refs) || refs[next].Kind != c.Kind {
			return refuse(ErrComponents, "snapshot", name, "absent or out of order", "in the inventory's order")
		}
		r := &refs[next]
		if r.Layers != c.Layers {
			return refuse(ErrLayers, "snapshot", name, r.Layers.String(), c.Layers.String())
		}
		if !c.fits(tokens, r.Length) {
			lo, hi := c.held(tokens)
			return refuse(ErrSize, "snapshot", name, utoa(r.Length), utoa(c.Bytes(lo))+" to "+utoa(c.Bytes(hi)))
		}
		next++
	}
	if next != len(refs) {
		return refuse(ErrComponents, "snapshot", refs[next].Kind.String(), "present", "absent")
	}
	return nil
}
