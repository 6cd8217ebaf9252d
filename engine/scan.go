package engine

import "github.com/tandem-llm/tandem/state"

// ScanUnit is ScanPage or ScanSnapshot, as the unit's header says.
func ScanUnit(e Engine, h *state.UnitHeader, payload []byte) error {
	if h.Unit == state.UnitPage {
		return e.ScanPage(int(h.Tokens.First), int(h.Tokens.End), payload)
	}
	return e.ScanSnapshot(int(h.Tokens.End), payload)
}
