package handoff

import "fmt"

// eventKind is one thing that can happen in the model. The names are the verbs
// of the scripts in testdata (see script_test.go).
type eventKind uint8

const (
	evNone          eventKind = iota
	evAdmit                   // the client's request arrives
	evPlace                   // placement decides on an attempt
	evPlaceFails              // no placement is possible
	evBook                    // the router books everything it was asked for
	evBookFails               // no worker to book
	evWake                    // the gateway's timer fires
	evPatience                // the gateway's timer fires when the attempt is due (renewals were late)
	evDeadline                // the gateway's timer fires when the request is due
	evClientGone              // the client disconnects
	evDeliver                 // a message arrives (again)
	evCompute                 // the prefill of a part completes: pinned
	evFinishFirst             // the completion ends on its first token
	evReject                  // the scheduler rejects the prefill
	evDecodeLocal             // a colocated source decodes one more token
	evRetire                  // the step of a stopped part retires
	evSourceHears             // the source is told its scheduler's oldest fact
	evConnect                 // the initiating side reaches the other
	evReopen                  // somebody presents the ticket again
	evArrive                  // everything of a part arrives, valid
	evArriveBad               // what arrives is invalid
	evSent                    // the source learns that everything was sent
	evBreak                   // the stream breaks
	evAck                     // the commit acknowledgement reaches the source
	evAckGone                 // the destination stops repeating it
	evSourceStream            // the source is told its transport's oldest fact
	evDestStream              // the destination is told its transport's oldest fact
	evSourceQuiet             // the source's transport quiesces
	evDestQuiet               // the destination's transport quiesces
	evReserve                 // the destination's scheduler reserves
	evRefuse                  // it refuses for now
	evRefuseNever             // it refuses for good
	evActivate                // it activates
	evActivateFails           // restoring fails
	evStep                    // a decode step starts
	evStepEnds                // it ends
	evStepFails               // the engine fails in it
	evDestHears               // the destination is told its scheduler's oldest fact
	evSourceExpires           // the source's timer fires
	evDestExpires             // the destination's timer fires
	evSourceAlone             // the source's worker gives the gateway up
	evDestAlone               // the destination's worker gives the gateway up
	evSourceMourns            // the source's worker hears that the destination died
	evDestMourns              // the destination's worker hears that the source died
	evGatewayMourns           // the gateway hears that a worker died (message: its side)
	evKillSource              // SIGKILL
	evKillDest
	evKillGateway
	evCut // the network dies for good
	eventKinds
)

var eventNames = [...]string{
	"", "admit", "place", "place-fails", "book", "book-fails", "wake", "patience", "deadline", "client-gone",
	"deliver", "compute", "finish-first", "reject", "decode-local", "retire", "source-hears", "connect", "reopen",
	"arrive", "arrive-bad", "sent", "break", "ack", "ack-gone", "source-stream", "dest-stream", "source-quiet",
	"dest-quiet", "reserve", "refuse", "refuse-never", "activate", "activate-fails", "step", "step-ends", "step-fails",
	"dest-hears", "source-expires", "dest-expires", "source-alone", "dest-alone", "source-mourns", "dest-mourns",
	"gateway-mourns", "kill-source", "kill-dest", "kill-gateway", "cut",
}

// event is one occurrence: of attempt a, at part p, with message m (or, for
// evGatewayMourns, the role).
type event struct {
	kind eventKind
	a, p uint8
	m    message
}

// String writes the event as a script line.
func (e event) String() string {
	s := eventNames[e.kind]
	switch e.kind {
	case evDeliver:
		s += " " + messageNames[e.m]
	case evGatewayMourns:
		s += " " + Role(e.m).String()
	}
	if e.p > 0 {
		s += fmt.Sprintf(" part=%d", e.p)
	}
	if e.a > 0 {
		s += fmt.Sprintf(" attempt=%d", e.a)
	}
	return s
}

// GoString is String: what rapid prints reproduces.
func (e event) GoString() string { return e.String() }

// enabled appends every event that can happen now.
func (w *world) enabled(dst []event) []event {
	if !w.admitted {
		return append(dst, event{kind: evAdmit})
	}
	if !w.gwDead && w.req.state != RequestDone {
		dst = w.gatewayEvents(dst)
	}
	for a := range max(w.n, 1) {
		t := &w.att[a]
		if !w.cut {
			for m := range messages {
				if t.has(m) && w.deliverable(t, m) {
					dst = append(dst, event{evDeliver, a, 0, m})
				}
			}
			if !w.cfg.nokill {
				if !t.srcDead {
					dst = append(dst, event{kind: evKillSource, a: a})
				}
				if !t.dstDead && t.has(mReserve) {
					dst = append(dst, event{kind: evKillDest, a: a})
				}
			}
			dst = w.mourning(dst, t, a)
		}
		if !t.srcDead {
			dst = w.sourceEvents(dst, t, a)
		}
		if !t.dstDead {
			dst = w.destinationEvents(dst, t, a)
		}
		for p := range w.cfg.parts {
			dst = w.linkEvents(dst, t, a, p)
		}
	}
	if !w.cut {
		dst = append(dst, event{kind: evCut})
		if !w.gwDead && !w.cfg.nokill {
			dst = append(dst, event{kind: evKillGateway})
		}
	}
	return dst
}

func (w *world) deliverable(t *attempt, m message) bool {
	switch {
	case m <= mCancelD:
		return !t.dstDead
	case m <= mRelay:
		return !t.srcDead
	}
	return !w.gwDead
}

func (w *world) gatewayEvents(dst []event) []event {
	if w.placing && !w.cut {
		dst = append(dst, event{kind: evPlace}, event{kind: evPlaceFails})
	}
	if w.unmade != 0 && !w.cut {
		dst = append(dst, event{kind: evBook})
		if !w.cfg.nofail {
			dst = append(dst, event{kind: evBookFails})
		}
	}
	at, _ := w.req.Deadline()
	if at < w.req.until && w.renewals == 0 && !w.cut {
		dst = append(dst, event{kind: evWake})
	}
	if w.req.until < w.req.deadline && !w.cut {
		dst = append(dst, event{kind: evPatience})
	}
	dst = append(dst, event{kind: evDeadline})
	if !w.cut {
		dst = append(dst, event{kind: evClientGone})
	}
	return dst
}

func (w *world) mourning(dst []event, t *attempt, a uint8) []event {
	if t.dstDead && !t.srcDead && !t.srcTold && t.src.state != SourceNotStarted && t.src.policy != Disabled {
		dst = append(dst, event{kind: evSourceMourns, a: a})
	}
	if t.srcDead && !t.dstDead && !t.dstTold && t.dst.state != DestinationNotRouted {
		dst = append(dst, event{kind: evDestMourns, a: a})
	}
	if !w.gwDead && t.srcDead && t.gwTold&1 == 0 {
		dst = append(dst, event{evGatewayMourns, a, 0, message(RoleSource)})
	}
	if !w.gwDead && t.dstDead && t.gwTold&2 == 0 {
		dst = append(dst, event{evGatewayMourns, a, 0, message(RoleDestination)})
	}
	if w.gwDead && !t.srcDead && t.coordLostTold&1 == 0 && t.src.state != SourceNotStarted {
		dst = append(dst, event{kind: evSourceAlone, a: a})
	}
	if w.gwDead && !t.dstDead && t.coordLostTold&2 == 0 && t.dst.state != DestinationNotRouted {
		dst = append(dst, event{kind: evDestAlone, a: a})
	}
	return dst
}

func (w *world) sourceEvents(dst []event, t *attempt, a uint8) []event {
	if t.srcQ.n > 0 {
		dst = append(dst, event{kind: evSourceHears, a: a})
	}
	for p := range t.src.parts {
		if t.jobs[p] != jobRunning {
			continue
		}
		if t.stop {
			dst = append(dst, event{kind: evRetire, a: a, p: p})
			continue
		}
		switch {
		case t.src.policy == Disabled:
			dst = append(dst, event{kind: evDecodeLocal, a: a})
		case t.srcFrom+1 < w.cfg.tokens:
			dst = append(dst, event{kind: evCompute, a: a, p: p})
		}
		if p == 0 && t.jobs[t.src.parts-1] == jobRunning && (t.srcFrom+1 == w.cfg.tokens && t.src.policy != Disabled || !w.cfg.nofail) {
			if t.srcCount == t.srcFrom {
				dst = append(dst, event{kind: evFinishFirst, a: a})
			}
			if !w.cfg.nofail {
				dst = append(dst, event{kind: evReject, a: a})
			}
		}
	}
	for p := range w.cfg.parts {
		l := &t.link[p]
		if l.srcQ.n > 0 {
			dst = append(dst, event{kind: evSourceStream, a: a, p: p})
		}
		if l.src != endNone && l.src != endClosed && (l.srcAborted || l.broken) && (!w.cfg.stuck || l.srcForced) {
			dst = append(dst, event{kind: evSourceQuiet, a: a, p: p})
		}
	}
	if _, armed := t.src.Deadline(); armed {
		dst = append(dst, event{kind: evSourceExpires, a: a})
	}
	return dst
}

func (w *world) destinationEvents(dst []event, t *attempt, a uint8) []event {
	if t.dstQ.n > 0 {
		dst = append(dst, event{kind: evDestHears, a: a})
	}
	if t.queued {
		dst = append(dst, event{kind: evReserve, a: a})
		if !w.cfg.nofail {
			dst = append(dst, event{kind: evRefuse, a: a}, event{kind: evRefuseNever, a: a})
		}
	}
	if t.activating {
		dst = append(dst, event{kind: evActivate, a: a})
		if !w.cfg.nofail {
			dst = append(dst, event{kind: evActivateFails, a: a})
		}
	}
	if t.stepping {
		dst = append(dst, event{kind: evStepEnds, a: a})
		if (!w.cfg.nofail || w.cfg.badstep) && !t.retires {
			dst = append(dst, event{kind: evStepFails, a: a})
		}
	} else if t.active && t.dst.MayStep() && t.dstCount < w.cfg.tokens {
		dst = append(dst, event{kind: evStep, a: a})
	}
	for p := range w.cfg.parts {
		l := &t.link[p]
		if l.dstQ.n > 0 {
			dst = append(dst, event{kind: evDestStream, a: a, p: p})
		}
		if (l.dst == endDialing || l.dst == endOpen) && (l.dstAborted || l.broken) && (!w.cfg.stuck || l.dstForced) {
			dst = append(dst, event{kind: evDestQuiet, a: a, p: p})
		}
		if l.ackOut && !l.ackDone && !l.ackGone && (l.broken || w.cut) {
			dst = append(dst, event{kind: evAckGone, a: a, p: p})
		}
	}
	if _, armed := t.dst.Deadline(); armed {
		dst = append(dst, event{kind: evDestExpires, a: a})
	}
	return dst
}

func (w *world) linkEvents(dst []event, t *attempt, a, p uint8) []event {
	l := &t.link[p]
	if w.cut {
		return dst
	}
	if !l.conn && !l.broken && (l.src == endDialing && !l.srcAborted || l.dst == endDialing && !l.dstAborted) {
		dst = append(dst, event{kind: evConnect, a: a, p: p})
	}
	if l.ticket == ticketRedeemed && l.conn && !t.dstDead && !t.srcDead {
		dst = append(dst, event{kind: evReopen, a: a, p: p})
	}
	if !l.conn || l.broken {
		return dst
	}
	up := l.src == endOpen && l.dst == endOpen && !l.srcAborted && !l.dstAborted && !t.srcDead && !t.dstDead
	if up && l.final && !l.delivered {
		dst = append(dst, event{kind: evArrive, a: a, p: p})
		if !w.cfg.nofail {
			dst = append(dst, event{kind: evArriveBad, a: a, p: p})
		}
	}
	if l.delivered && !l.acked && l.src == endOpen && !l.srcAborted && !t.srcDead {
		dst = append(dst, event{kind: evSent, a: a, p: p})
	}
	if l.ackOut && !l.ackDone && !l.ackGone && l.src == endOpen && !l.srcAborted && !t.srcDead && !t.dstDead {
		dst = append(dst, event{kind: evAck, a: a, p: p})
	}
	return append(dst, event{kind: evBreak, a: a, p: p})
}
