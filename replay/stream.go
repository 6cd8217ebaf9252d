package replay

import (
	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/replay/fleet"
	"github.com/tandem-llm/tandem/replay/link"
	"github.com/tandem-llm/tandem/sched"
)

// pageTokens is what a live worker imports at a time by default (worker.Config).
const pageTokens = 512

// wire is half a round trip between the workers of an attempt.
func (h *host) wire(a *attempt) timed.Time { return timed.Of(a.link.RTT) / 2 }

// linkOf is the link between the workers of an attempt.
func (h *host) linkOf(a *attempt) fleet.Link {
	from, to := &h.workers[a.worker[handoff.RoleSource]], &h.workers[a.worker[handoff.RoleDestination]]
	return h.cfg.Link(from.pool.cfg.Name, to.pool.cfg.Name)
}

// path is what the bytes of an attempt go over.
func (h *host) path(a *attempt) [3]link.Resource {
	from, to := &h.workers[a.worker[handoff.RoleSource]], &h.workers[a.worker[handoff.RoleDestination]]
	k := trunk{from: from.number, to: to.number}
	if a.link.Trunk {
		k = trunk{pools: true, from: from.pool.first, to: to.pool.first}
	}
	r, ok := h.trunks[k]
	if !ok {
		r = h.net.Resource(h.linkRate(from.pool.cfg.Name, to.pool.cfg.Name, a.link.Gbps))
		h.trunks[k] = r
		h.trunkList = append(h.trunkList, trunkRate{k, r})
	}
	return [3]link.Resource{from.nicOut, r, to.nicIn}
}

// bytes is what travels in a handoff of a task's prompt: all but the blocks that the
// destination has, whole blocks, and the snapshot.
func (h *host) bytes(t *task, a *attempt) int64 {
	return h.pageBytes(a, t.prompt, t.prompt) + h.snapshot(a, t.prompt)
}

// pageBytes is the bytes of the pages of a prompt's first tokens that travel.
func (h *host) pageBytes(a *attempt, tokens, prompt int) int64 {
	p := h.workers[a.worker[handoff.RoleDestination]].pool
	return int64(max(0, wholeBlocks(tokens, prompt, p.block)-a.skip)) * p.perToken
}

// wholeBlocks rounds tokens down to whole blocks, and the prompt up.
func wholeBlocks(tokens, prompt, block int) int {
	if tokens >= prompt {
		return (prompt + block - 1) / block * block
	}
	return tokens / block * block
}

func (h *host) snapshot(a *attempt, tokens int) int64 {
	return h.workers[a.worker[handoff.RoleDestination]].pool.state.Snapshot(int64(tokens))
}

// openStream dials the destination; source-first it only offers.
func (h *host) openStream(t *task) {
	a := h.attempts.at(t.attempt)
	if a.policy == handoff.SourceFirst {
		return
	}
	h.touch(t)
	h.send(h.now+h.wire(a), event{kind: evDialled, side: handoff.RoleDestination, subject: t.attempt})
}

// transport handles what the data plane tells the worker on one side of an attempt,
// whose task is t, or nil when it has ended.
func (h *host) transport(w *worker, a *attempt, t *task, e *event) {
	switch e.kind {
	case evDialled:
		if t == nil || !h.accept(t, a, e.side) {
			h.send(h.now+h.wire(a), event{kind: evStreamLost, side: other(e.side), subject: e.subject})
			return
		}
		h.send(h.now+h.wire(a), event{kind: evAccepted, side: other(e.side), subject: e.subject})
	case evAccepted:
		if t == nil || a.closed {
			return
		}
		if e.side == handoff.RoleDestination {
			h.destination(t, handoff.DestinationFact{Kind: handoff.FactStreamOpened, Incarnation: a.incarnation[handoff.RoleSource]})
			return
		}
		a.granted = true
		if h.source(t, handoff.SourceFact{Kind: handoff.FactStreamOpened, Incarnation: a.incarnation[handoff.RoleDestination]}) == handoff.Applied {
			h.source(t, handoff.SourceFact{Kind: handoff.FactLeaseRenewed, For: h.cfg.Worker.Lease})
			h.export(t, a)
		}
	case evStreamLost:
		h.streamLost(t, a, e.side)
	case evQuiet:
		if t != nil {
			h.later(t, fact{kind: handoff.FactTransferQuiesced})
		}
	case evExported:
		if !a.ended && t != nil {
			h.flow(a, e.subject, e.n, e.never)
		}
	case evSent:
		if t != nil {
			h.source(t, handoff.SourceFact{Kind: handoff.FactSendCompleted})
		}
	case evReceived:
		if t != nil && a.importing {
			a.importing = false
			a.m.whole = h.now
			h.destination(t, handoff.DestinationFact{Kind: handoff.FactReceiveCompleted})
		}
	case evAck:
		if t != nil {
			h.readerCompleted(t, a)
		}
	}
}

// accept asks a machine whether the peer's stream is welcome.
func (h *host) accept(t *task, a *attempt, side handoff.Role) bool {
	if side == handoff.RoleDestination {
		return h.destination(t, handoff.DestinationFact{Kind: handoff.FactStreamOpened, Incarnation: a.incarnation[handoff.RoleSource]}) == handoff.Applied
	}
	if t.src.State() != handoff.SourcePinned { // only a pinned source has offered
		return false
	}
	a.granted = true
	if h.source(t, handoff.SourceFact{Kind: handoff.FactStreamOpened, Incarnation: a.incarnation[handoff.RoleDestination]}) != handoff.Applied || !h.touch(t) {
		return false
	}
	h.export(t, a)
	return true
}

// startReceive grants credit, and source-first dials the source.
func (h *host) startReceive(t *task) {
	a := h.attempts.at(t.attempt)
	if !h.touch(t) {
		h.later(t, fact{kind: handoff.FactReceiveFailed})
		return
	}
	if a.policy == handoff.SourceFirst {
		h.send(h.now+h.wire(a), event{kind: evDialled, side: handoff.RoleSource, subject: t.attempt})
	}
}

// sendFinal lets the snapshot follow the last page.
func (h *host) sendFinal(t *task) {
	a := h.attempts.at(t.attempt)
	a.final = true
	h.export(t, a)
}

// export takes what is computed and may travel out of the source's engine.
func (h *host) export(t *task, a *attempt) {
	if t.side != handoff.RoleSource || a.policy == handoff.Disabled || !a.granted || a.ended || a.m.finalAt != never {
		return
	}
	if !a.final && !h.cfg.StreamsPages() {
		return
	}
	tokens := min(t.computed, t.prompt)
	bytes := h.pageBytes(a, tokens, t.prompt) - h.pageBytes(a, a.exported, t.prompt)
	a.exported = tokens
	last := a.final && tokens == t.prompt
	if last {
		bytes += h.snapshot(a, t.prompt)
		a.m.finalAt = h.now
	}
	if bytes == 0 && !last {
		return
	}
	took := h.workers[t.worker].pool.cost.model.Export(bytes)
	if a.m.exportFirst == never {
		a.m.exportFirst = h.now
	}
	a.m.export += took
	a.exportEnd = max(a.exportEnd, h.now) + took
	if a.exportEnd == h.now {
		h.flow(a, t.attempt, bytes, last)
		return
	}
	h.send(a.exportEnd, event{kind: evExported, side: handoff.RoleSource, subject: t.attempt, n: bytes, never: last})
}

// flow puts exported bytes on the wire.
func (h *host) flow(a *attempt, attempt int32, bytes int64, last bool) {
	if !a.flowing {
		path := h.path(a)
		a.flow = h.net.Open(h.now, path[:], link.Loss(timed.Of(a.link.RTT), a.link.Loss, a.link.Segment))
		for int(a.flow) >= len(h.flows) {
			h.flows = append(h.flows, -1)
		}
		h.flows[a.flow], a.flowing = attempt, true
	}
	if a.m.wireFirst == never {
		a.m.wireFirst = h.now
	}
	a.m.bytes += bytes
	h.net.Add(h.now, a.flow, bytes)
	if last {
		h.net.End(h.now, a.flow)
	}
}

// transfers handles the flows that are through.
func (h *host) transfers() {
	h.done = h.net.Advance(h.now, h.done[:0])
	for _, f := range h.done {
		n := h.flows[f]
		h.flows[f] = -1
		a := h.attempts.at(n)
		a.flowing, a.ended = false, true
		arrived := h.now + h.wire(a)
		a.m.wireEnd = arrived
		h.send(arrived+h.wire(a), event{kind: evSent, side: handoff.RoleSource, subject: n})
		// Pages are imported as they arrive: of a transfer that the engine keeps up with
		// only the last one, and the snapshot, is left to import.
		d := h.workers[a.worker[handoff.RoleDestination]].pool
		m := d.cost.model
		prompt := h.requests.at(a.request).input + a.forced
		page := min(a.m.bytes, pageTokens*d.perToken+h.snapshot(a, prompt))
		a.m.imports = m.Import(a.m.bytes)
		at := max(arrived+m.Import(page), a.m.wireFirst+h.wire(a)+a.m.imports)
		convert := timed.Of(a.link.Convert)
		if h.ways(a, handoff.RoleSource) != h.ways(a, handoff.RoleDestination) {
			convert += m.Convert(a.m.bytes)
		}
		a.m.imports += convert
		a.importing = true
		h.send(at+convert, event{kind: evReceived, side: handoff.RoleDestination, subject: n})
	}
}

// abortStream ends a task's stream: its peer learns it, and the transport is quiet at
// once, or when the link says so.
func (h *host) abortStream(t *task) {
	a := h.attempts.at(t.attempt)
	h.closeStream(t, a)
	h.quiesce(t, a)
}

// quiesce reports that no transport touches a task's memory any more, when that is so.
func (h *host) quiesce(t *task, a *attempt) {
	if q := timed.Of(a.link.Quiesce); q > 0 && t.touched {
		h.send(h.now+q, event{kind: evQuiet, side: t.side, subject: t.attempt})
		return
	}
	h.later(t, fact{kind: handoff.FactTransferQuiesced})
}

// ways is the number of tensor-parallel ways on a side of an attempt.
func (h *host) ways(a *attempt, side handoff.Role) int {
	return h.workers[a.worker[side]].pool.cfg.Ways()
}

// closeStream stops what travels, and tells the peer if anything did.
func (h *host) closeStream(t *task, a *attempt) {
	if a.policy == handoff.Disabled || a.ended && !a.importing {
		return
	}
	a.ended, a.closed, a.importing = true, true, false
	if a.flowing {
		h.net.Close(h.now, a.flow)
		h.flows[a.flow], a.flowing = -1, false
	}
	h.send(h.now+h.wire(a), event{kind: evStreamLost, side: other(t.side), subject: t.attempt})
}

// streamLost tells a side that its stream is gone.
func (h *host) streamLost(t *task, a *attempt, side handoff.Role) {
	a.ended, a.closed, a.importing = true, true, false
	if t == nil {
		return
	}
	a.broken = true
	if side == handoff.RoleSource {
		if s := t.src.State(); !t.touched && s != handoff.SourcePinned && s != handoff.SourceAwaitingReader {
			return
		}
		h.later(t, fact{kind: handoff.FactStreamFailed})
		h.quiesce(t, a)
		return
	}
	if t.dst.State() == handoff.DestinationReserving || t.dst.State() == handoff.DestinationActive {
		return
	}
	h.later(t, fact{kind: handoff.FactReceiveFailed})
	h.quiesce(t, a)
}

// activate turns a reservation whose state is there into a sequence that decodes.
func (h *host) activate(t *task) {
	w := &h.workers[t.worker]
	a := h.attempts.at(t.attempt)
	t.sampled = true // before it may run
	t.computed = t.prompt
	if w.sched.Activate(h.now.Duration(), a.id) != sched.Accepted {
		t.sampled = false
		h.later(t, fact{kind: handoff.FactActivationFailed})
		return
	}
	a.m.activated = h.now
	h.sync(w)
	h.later(t, fact{kind: handoff.FactActivationApplied})
}
