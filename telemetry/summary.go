package telemetry

import "time"

// Summary is what a record comes to: the numbers that metrics observe and people ask for first. It
// is computed by [Handoff.Summarize] from the rest of the record; 0 means not known.
type Summary struct {
	Bytes     int64         `json:"bytes"` // payload that reached the wire
	Pages     int           `json:"pages"`
	Queue     time.Duration `json:"queue_ns"`        // slots on both sides, and stall
	Bandwidth float64       `json:"bytes_per_s"`     // of the wire while a unit was under way
	RTT       time.Duration `json:"rtt_ns"`          // of the link
	Overlap   Overlap       `json:"overlap"`         // with prefill
	Tail      time.Duration `json:"tail_ns"`         // first token sampled to the destination ready
	First     time.Duration `json:"first_token_ns"`  // first token sampled to first token at the gateway
	Second    time.Duration `json:"second_token_ns"` // first to second token at the gateway: the switch
	Commit    time.Duration `json:"commit_ns"`       // everything there and valid to decodable
	Covered   time.Duration `json:"covered_ns"`      // export, wire and import done before prefill ended
	Moving    time.Duration `json:"moving_ns"`       // export, wire and import in all
	Unhidden  int64         `json:"unsent_bytes"`    // bytes that were not sent when prefill ended
}

// Overlap is the share of a handoff's work that was hidden behind prefill, each 0 to 1.
type Overlap struct {
	Time  float64 `json:"time"`  // of export, seal, wire and import time
	Bytes float64 `json:"bytes"` // of bytes sent
}

// Summarize computes the summary and the durations that need both sides.
func (h *Handoff) Summarize() {
	s := &h.Source
	m := Summary{Bytes: s.Stream.Bytes, Pages: s.Pages, RTT: s.Stream.RTT, Queue: s.Slot + s.Stall.Busy}
	if g := &h.Gateway; g.Sampled && len(g.Tokens) > 0 {
		if s.Prompted > 0 {
			m.First = max(0, g.Tokens[0]-s.At-s.Prompted)
		}
		if len(g.Tokens) > 1 {
			m.Second = g.Tokens[1] - g.Tokens[0]
		}
	}
	if d := h.Destination; d != nil {
		m.Queue += d.Slot
		if d.Ready > 0 && d.Complete > 0 {
			m.Commit = d.Ready - d.Complete
		}
		m.Bytes = max(m.Bytes, d.Stream.Bytes)
		m.Pages = max(m.Pages, d.Pages)
		h.tail(&m)
		h.overlap(&m)
	}
	if s.Stream.Busy > 0 {
		m.Bandwidth = float64(s.Stream.Bytes) / s.Stream.Busy.Seconds()
	}
	h.Summary = m
}

// tail spans two clocks, which the gateway places on its own as late as the quickest message allows,
// so that most of that cancels. The source heard of the commit after it happened, which bounds it on
// a single clock. Without numbers of a worker, its own or the gateway's observations have to do.
func (h *Handoff) tail(m *Summary) {
	s, d, g := &h.Source, h.Destination, &h.Gateway
	if s.Prompted > 0 && d.Ready > 0 {
		m.Tail = max(0, d.At+d.Ready-s.At-s.Prompted)
		if s.Committed > 0 {
			m.Tail = min(m.Tail, s.Committed-s.Prompted)
		}
	} else if s.Prompted > 0 && s.Committed > 0 {
		m.Tail = s.Committed - s.Prompted
	} else if g.Committed > 0 && g.Sampled {
		m.Tail = max(0, g.Committed-g.Tokens[0])
	}
}

func (h *Handoff) overlap(m *Summary) {
	s, d := &h.Source, h.Destination
	if s.Prompted == 0 {
		return
	}
	end := s.At + s.Prompted - d.At // on the destination's clock
	m.Covered = s.Before.Export + s.Before.Wire + d.Import.until(end)
	m.Moving = s.Export.Busy + s.Seal.Busy + s.Stream.Busy + d.Import.Busy
	m.Unhidden = max(0, s.Stream.Bytes-s.Before.Sent)
	m.Overlap = Overlap{Time: ratio(float64(m.Covered), float64(m.Moving)), Bytes: ratio(float64(s.Before.Sent), float64(s.Stream.Bytes))}
}

func ratio(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return min(1, max(0, part/whole))
}

// stage returns how long a stage of this attempt took, and whether it happened.
func (h *Handoff) stage(name Stage) (time.Duration, bool) {
	s, d, g := &h.Source, h.Destination, &h.Gateway
	var none Part
	if d == nil {
		d = &none
	}
	of := func(took time.Duration, happened bool) (time.Duration, bool) { return max(0, took), happened }
	work := func(w Work) (time.Duration, bool) { return w.Busy, w.Count > 0 }
	switch name {
	case StageAdmission:
		return of(h.Request.Admitted, h.Attempt == 1)
	case StageReserve:
		return of(g.Reserved-g.Reserve, g.Reserved > 0)
	case StageSlot:
		return of(s.Slot+d.Slot, s.Slot > 0)
	case StagePrefill:
		return of(s.Prompted-s.Slot, s.Prompted > 0 && s.Compute.Count > 0) // else it was taken over
	case StageExport:
		return work(s.Export)
	case StageSeal:
		return work(s.Seal)
	case StageStall:
		return of(s.Stall.Busy, s.Export.Count > 0) // nothing waited: that is worth knowing
	case StageWire:
		return of(s.Stream.Busy, s.Stream.Units > 0)
	case StageVerify:
		return work(d.Verify)
	case StageWait:
		return work(d.Wait)
	case StageImport:
		return work(d.Import)
	case StageCommit:
		return of(h.Summary.Commit, d.Ready > 0 && d.Complete > 0)
	case StageTail:
		return of(h.Summary.Tail, h.Target == TargetCommitted)
	case StageFirst:
		return of(h.Summary.First, g.Sampled && s.Prompted > 0)
	case StageSwitch:
		return of(h.Summary.Second, g.Sampled && len(g.Tokens) > 1)
	case StageDecode:
		return work(d.Decode)
	}
	return 0, false
}
