package pair

import (
	"fmt"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/state"
)

// Page is one exported page: the attention state of the positions [First, End).
type Page struct {
	First, End int
	Payload    []byte
}

// Export is the whole state of one prefilled sequence, held in memory, so that one prefill serves
// many handoffs. It is read only.
type Export struct {
	// Prompt is the tokens that the state covers, First the token that was sampled after them.
	Prompt []engine.Token
	First  engine.Token
	// Pages are in ascending order and cover the prompt; none for families without attention.
	Pages []Page
	// Snapshot is the state that pages do not hold, with what lies where; empty for dense families.
	Snapshot []byte
	Refs     []state.ComponentRef
	// Identity and Inventory are those of the engine that it comes from.
	Identity  state.Identity
	Inventory state.Inventory
	// Vocab is the size of its vocabulary.
	Vocab int
}

// Bytes is the size of all payloads.
func (x *Export) Bytes() int64 {
	n := int64(len(x.Snapshot))
	for _, p := range x.Pages {
		n += int64(len(p.Payload))
	}
	return n
}

// Export exports the sequence in Slot, which Prefill computed, in pages of pageTokens. It disturbs
// nothing, and works until the next Continue.
func (h *Host) Export(prompt []engine.Token, pageTokens int) (*Export, error) {
	n := len(prompt)
	if h.Engine.Tokens(Slot) != n || n == 0 || pageTokens < 1 {
		return nil, fmt.Errorf("%w: an export of %d tokens in pages of %d from a sequence of %d", ErrCall, n, pageTokens, h.Engine.Tokens(Slot))
	}
	info := h.Engine.Info()
	x := &Export{Prompt: prompt, First: h.next, Identity: info.Identity, Inventory: info.Inventory, Vocab: h.Engine.Vocab().Size()}
	if h.Engine.Paged() {
		for first := 0; first < n; first += pageTokens {
			end := min(first+pageTokens, n)
			p := Page{First: first, End: end, Payload: make([]byte, h.Engine.PageBytes(end-first))}
			if _, err := h.Engine.ExportPage(Slot, first, end, p.Payload); err != nil {
				return nil, err
			}
			x.Pages = append(x.Pages, p)
		}
	}
	size, err := h.Engine.SnapshotBytes(Slot)
	if err != nil || size == 0 {
		return x, err
	}
	x.Snapshot = make([]byte, size)
	size, x.Refs, err = h.Engine.ExportSnapshot(Slot, x.Snapshot)
	x.Snapshot = x.Snapshot[:size]
	return x, err
}

// Restore puts an export into Slot of this process's own engine, pages in the given order (nil:
// ascending): no wire, no sealing, no other process. It is what a control run starts from.
func (h *Host) Restore(x *Export, order []int) error {
	imp, err := h.Engine.BeginImport(Slot, len(x.Prompt))
	if err != nil {
		return err
	}
	for i := range x.Pages {
		p := &x.Pages[at(order, i)]
		if err := imp.Page(p.First, p.End, p.Payload); err != nil {
			return err
		}
	}
	if len(x.Snapshot) > 0 {
		if err := imp.Snapshot(x.Snapshot); err != nil {
			return err
		}
	}
	if err := imp.Commit(); err != nil {
		return err
	}
	return h.Restart(x.Prompt, x.First)
}

// at is the i-th of an order; nil is ascending.
func at(order []int, i int) int {
	if order == nil {
		return i
	}
	return order[i]
}
