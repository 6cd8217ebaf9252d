package report

import "github.com/tandem-llm/tandem/engine/timed"

const phases = 9

// phases returns the lengths in the order of Handoffs' fields.
func (h *Handoff) phases() [phases]timed.Time {
	return [phases]timed.Time{h.Reserve, h.Queue, h.Prefill, h.Export, h.Wire, h.Import, h.Commit, h.Overlapped, h.Tail}
}

// phases returns the fields in the order of Handoff's lengths.
func (h *Handoffs) phases() [phases]*Latency {
	return [phases]*Latency{&h.Reserve, &h.Queue, &h.Prefill, &h.Export, &h.Wire, &h.Import, &h.Commit, &h.Overlapped, &h.Tail}
}

// handoffs collects the handoffs of measured requests.
type handoffs struct {
	n, bytes, skipped int64
	input             int64 // prompt tokens of handed-off requests
	phases            [phases]dist
}

func (h *handoffs) add(q *Request) {
	h.n++
	h.bytes += q.Handoff.Bytes
	h.skipped += int64(q.Handoff.SkippedTokens)
	h.input += int64(q.Input)
	for i, t := range q.Handoff.phases() {
		d := &h.phases[i]
		if d.hist.counts == nil {
			d.hist = newHistogram(coarseBits)
		}
		d.keep(uint64(t))
	}
}

func (h *handoffs) result() Handoffs {
	out := Handoffs{N: h.n, Bytes: h.bytes, SkippedTokens: h.skipped}
	for i, to := range out.phases() {
		*to, _ = h.phases[i].latency(nil, false)
	}
	const overlapped, tail = 7, 8
	hidden, seen := h.phases[overlapped].sum.float(), h.phases[tail].sum.float()
	out.Hidden = ratio(hidden, hidden+seen)
	return out
}
