package state

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

// settle closes a part that has become whole. Its manifest was shown to cover everything, and every
// unit that came to be one of the manifest's, so counting is enough.
func (a *Assembly) settle(p *assemblyPart) {
	if !p.whole && p.manifest != nil && len(p.seen) == len(p.manifest.Units) {
		p.whole = true
		a.open--
	}
}
