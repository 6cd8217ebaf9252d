package engine

import "github.com/tandem-llm/tandem/state"

// ScanUnit reads the payload of a unit that arrived, once: it returns the digest that the manifest
// must list for it, and the error with which e would refuse to import it. With overChecksum, for
// links that do not leave the host, the digest covers the payload by its checksum, which the caller
// has verified. d belongs to the calling goroutine, which need not be e's owner.
func ScanUnit(e Engine, d *state.Digester, h *state.UnitHeader, payload []byte, overChecksum bool) (state.Digest, error) {
	scan := func(visit func([]byte)) error {
		if h.Unit == state.UnitPage {
			return e.ScanPage(int(h.Tokens.First), int(h.Tokens.End), payload, visit)
		}
		return e.ScanSnapshot(int(h.Tokens.End), payload, visit)
	}
	if overChecksum {
		return d.OverChecksum(h), scan(nil)
	}
	d.Start(h)
	err := scan(func(piece []byte) { _, _ = d.Write(piece) })
	return d.Sum(), err
}
