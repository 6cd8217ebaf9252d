package handoff

// do makes one event happen. It must be enabled.
func (r *runner) do(e event) {
	w := r.w
	t := &w.att[e.a]
	l := &t.link[e.p]
	switch e.kind {
	case evAdmit:
		w.admitted, w.placing = true, true
		r.toRequest(0, RequestFact{Kind: FactAdmitted, Deadline: requestDeadline, Patience: attemptPatience,
			Retries: w.cfg.retries, MaxTokens: int(w.cfg.tokens), Retry: w.cfg.onfail})
	case evPlace:
		a := w.n
		w.n, w.placing = w.n+1, false
		policy := w.cfg.policy
		if a > 0 {
			policy = w.cfg.retry
		}
		if policy == SourceFirst && w.req.AvoidsSourceFirst() {
			policy = DestinationFirst
		}
		w.att[a].policy = policy
		f := RequestFact{Kind: FactPlaced, Handoff: attemptID(a), Policy: policy, Rebind: w.reusable}
		r.toRequest(0, f)
	case evPlaceFails:
		w.placing = false
		r.toRequest(0, RequestFact{Kind: FactFailed, Phase: PhasePlace})
	case evBook:
		for b := BookPrefill; b <= BookRun; b++ {
			if w.unmade&(1<<b) != 0 {
				w.unmade &^= 1 << b
				r.toRequest(0, RequestFact{Kind: FactBooked, Handoff: w.req.handoff, Booking: b})
			}
		}
	case evBookFails:
		w.unmade = 0
		r.toRequest(0, RequestFact{Kind: FactFailed, Handoff: w.req.handoff, Side: RoleSource, Phase: PhaseBook})
	case evWake:
		w.renewals++
		at, _ := w.req.Deadline()
		r.toRequest(at, RequestFact{Kind: FactDeadlineReached})
	case evPatience:
		r.toRequest(w.req.until, RequestFact{Kind: FactDeadlineReached})
	case evDeadline:
		r.toRequest(w.req.deadline, RequestFact{Kind: FactDeadlineReached})
	case evClientGone:
		r.toRequest(0, RequestFact{Kind: FactClientGone})
	case evDeliver:
		r.deliver(e.a, e.m)

	case evCompute:
		t.jobs[e.p], t.lease = jobDone, true
		t.srcCount = t.srcFrom + 1
		t.send(mTokensS)
		t.srcQ.push(FactPrefillPinned, e.p)
	case evFinishFirst:
		for p := range w.cfg.parts {
			t.jobs[p] = jobDone
		}
		t.srcCount, t.srcFin = t.srcFrom+1, true
		t.send(mTokensS)
		t.srcQ.push(FactFinishedAtSource, 0)
	case evReject:
		for p := range w.cfg.parts {
			t.jobs[p] = jobRetired
		}
		t.srcQ.push(FactPrefillRejected, 0)
	case evDecodeLocal:
		t.srcCount++
		t.send(mTokensS)
		if t.srcCount == w.cfg.tokens {
			t.jobs[0], t.srcFin = jobDone, true
			t.srcQ.push(FactFinishedAtSource, 0)
		}
	case evRetire:
		t.jobs[e.p] = jobRetired
		t.srcQ.push(FactStepRetired, e.p)
	case evSourceHears:
		k, p := t.srcQ.pop()
		r.toSource(e.a, 0, r.sourceFact(k, p))
	case evSourceStream:
		k, _ := l.srcQ.pop()
		if r.toSource(e.a, 0, SourceFact{Kind: k, Part: e.p}) == NoOp && k == FactStreamOpened {
			l.srcAborted = true // refused here: the host closes it
		}
	case evSourceExpires:
		at, _ := t.src.Deadline()
		r.toSource(e.a, at, SourceFact{Kind: FactLeaseExpired})
	case evSourceAlone:
		t.coordLostTold |= 1
		r.toSource(e.a, 0, SourceFact{Kind: FactCoordinatorLost})
	case evSourceMourns:
		t.srcTold = true
		r.toSource(e.a, 0, SourceFact{Kind: FactPeerLost})

	case evReserve:
		t.queued, t.reserved = false, true
		t.dstQ.push(FactReserved, 0)
	case evRefuse, evRefuseNever:
		t.queued, t.neverD = false, e.kind == evRefuseNever
		t.dstQ.push(FactReserveRefused, 0)
	case evActivate:
		t.activating, t.reserved, t.active = false, false, true
		t.published++
		if t.published > 1 {
			r.fail(4, "blocks published twice")
		}
		t.dstCount = max(t.dstCount, t.srcCount)
		t.dstQ.push(FactActivationApplied, 0)
	case evActivateFails:
		t.activating = false
		t.dstQ.push(FactActivationFailed, 0)
	case evStep:
		if !t.dst.MayStep() || !t.active {
			r.fail(1, "a step reads a sequence that is not Active")
		}
		t.stepping = true
	case evStepEnds:
		t.stepping = false
		t.dstCount++
		t.send(mTokensD)
		if t.retires {
			t.retires = false
			t.dstQ.push(FactStepRetired, 0)
		} else if t.dstCount == w.cfg.tokens {
			t.dstQ.push(FactDecodeFinished, 0)
		}
	case evStepFails:
		t.stepping = false
		t.dstQ.push(FactDecodeFailed, 0)
	case evDestHears:
		k, p := t.dstQ.pop()
		r.toDestination(e.a, 0, DestinationFact{Kind: k, Part: p, Never: t.neverD && k == FactReserveRefused})
	case evDestStream:
		k, _ := l.dstQ.pop()
		if r.toDestination(e.a, 0, DestinationFact{Kind: k, Part: e.p}) == NoOp && k == FactStreamOpened {
			l.dstAborted = true
		}
	case evDestExpires:
		at, _ := t.dst.Deadline()
		r.toDestination(e.a, at, DestinationFact{Kind: FactReservationExpired})
	case evDestAlone:
		t.coordLostTold |= 2
		r.toDestination(e.a, 0, DestinationFact{Kind: FactCoordinatorLost})
	case evDestMourns:
		t.dstTold = true
		r.toDestination(e.a, 0, DestinationFact{Kind: FactPeerLost, Part: All})

	case evGatewayMourns:
		t.gwTold |= 1 << (e.m - message(RoleSource))
		r.toRequest(0, RequestFact{Kind: FactWorkerLost, Handoff: attemptID(e.a), Side: Role(e.m)})
	case evKillSource:
		for a := range w.n { // attempts whose source lives share one worker
			if !w.att[a].srcDead {
				r.killSource(a)
			}
		}
	case evKillDest:
		r.killDest(e.a)
	case evKillGateway:
		w.gwDead = true
		w.req, w.booked, w.unmade, w.placing = Request{}, 0, 0, false
	case evCut:
		w.cut = true
		for a := range w.att {
			for p := range w.cfg.parts {
				r.breakLink(&w.att[a], &w.att[a].link[p])
			}
		}
	default:
		r.doLink(e, t, l)
	}
}

func (r *runner) doLink(e event, t *attempt, l *link) {
	switch e.kind {
	case evConnect:
		r.connect(e, t, l)
	case evReopen:
		before := *t
		if r.w.att[e.a].policy == DestinationFirst {
			if r.toDestination(e.a, 0, DestinationFact{Kind: FactStreamOpened, Part: e.p}) != NoOp {
				r.fail(7, "a second open was accepted")
			}
		} else if r.toSource(e.a, 0, SourceFact{Kind: FactStreamOpened, Part: e.p}) != NoOp {
			r.fail(7, "a second open was accepted")
		}
		if *t != before {
			r.fail(7, "a second open changed something")
		}
	case evArrive:
		if !l.credit || !t.reserved {
			r.fail(1, "bytes written without a reservation")
		}
		l.delivered = true
		l.dstQ.push(FactReceiveCompleted, e.p)
	case evArriveBad:
		l.broken = true // the host gives the stream up
		l.dstQ.push(FactReceiveFailed, e.p)
		if l.src == endOpen || l.src == endDialing {
			l.srcQ.push(FactStreamFailed, e.p)
		}
	case evSent:
		l.acked = true
		l.srcQ.push(FactSendCompleted, e.p)
	case evBreak:
		r.breakLink(t, l)
	case evAck:
		l.ackDone = true
		l.src, l.dst = endClosed, endClosed
		if t.src.state != SourceReleased {
			l.srcQ.push(FactReaderCompleted, e.p)
			l.srcQ.push(FactTransferQuiesced, e.p)
		}
		if t.dst.state != DestinationReleased {
			l.dstQ.push(FactTransferQuiesced, e.p)
		}
	case evAckGone:
		l.ackGone = true
		l.dst = endClosed
		if t.dst.state != DestinationReleased {
			l.dstQ.push(FactTransferQuiesced, e.p)
		}
	case evSourceQuiet:
		l.src = endClosed
		l.srcQ.push(FactTransferQuiesced, e.p)
	case evDestQuiet:
		l.dst = endClosed
		l.dstQ.push(FactTransferQuiesced, e.p)
	default:
		r.fail(0, "model: unknown event %v", e)
	}
}

// connect lets the initiator reach the side that issued the ticket. That side's
// machine decides synchronously whether the stream is accepted.
func (r *runner) connect(e event, t *attempt, l *link) {
	if l.src == endDialing { // push
		ok := !t.dstDead && l.ticket == ticketLive &&
			r.toDestination(e.a, 0, DestinationFact{Kind: FactStreamOpened, Part: e.p}) == Applied
		if !ok {
			l.broken = true
			l.srcQ.push(FactStreamFailed, e.p)
			return
		}
		l.ticket, l.conn, l.src = ticketRedeemed, true, endOpen
		l.srcQ.push(FactStreamOpened, e.p)
		return
	}
	ok := !t.srcDead && l.ticket == ticketLive && l.src == endOffered
	if ok {
		l.src = endOpen
		if ok = r.toSource(e.a, 0, SourceFact{Kind: FactStreamOpened, Part: e.p}) == Applied; !ok && l.src == endOpen {
			l.src = endOffered
		}
	}
	if !ok {
		l.broken = true
		l.dstQ.push(FactReceiveFailed, e.p)
		return
	}
	l.ticket, l.conn, l.dst = ticketRedeemed, true, endOpen
	l.dstQ.push(FactStreamOpened, e.p)
}

// breakLink ends the connection; each end that is still open learns it.
func (r *runner) breakLink(t *attempt, l *link) {
	if l.broken {
		return
	}
	l.broken = true
	if (l.src == endDialing || l.src == endOpen) && !t.srcDead && t.src.state != SourceReleased {
		l.srcQ.push(FactStreamFailed, 0)
	}
	if (l.dst == endDialing || l.dst == endOpen) && !t.dstDead && t.dst.state != DestinationReleased {
		l.dstQ.push(FactReceiveFailed, 0)
	}
}

// deliver hands a message to its receiver.
func (r *runner) deliver(a uint8, m message) {
	w, t := r.w, &r.w.att[a]
	switch m {
	case mReserve:
		r.toDestination(a, 0, DestinationFact{Kind: FactRouted, Policy: t.policy, Parts: w.cfg.parts,
			PromptTokens: 1, Headroom: 1, Deadline: sourceDeadline, Quarantine: quarantineTime})
	case mCancelD:
		if t.dst.state == DestinationNotRouted {
			t.overtaken |= 2
		}
		r.toDestination(a, 0, DestinationFact{Kind: FactCancelled, Reason: ReasonAbandoned})
	case mPrefill, mRun:
		f := SourceFact{Kind: FactDispatched, Policy: t.policy, Parts: w.cfg.parts, Readers: 1,
			PromptTokens: 1, MaxTokens: int(w.cfg.tokens - t.srcFrom), Deadline: sourceDeadline, Quarantine: quarantineTime}
		if t.reuse {
			f.Reuse = attemptID(a - 1)
		}
		if m == mRun {
			f.Policy, f.Parts = Disabled, 1
		}
		r.toSource(a, 0, f)
		if f.Policy == DestinationFirst {
			r.toSource(a, 0, SourceFact{Kind: FactDestinationReady})
		}
	case mCancelS:
		if t.src.state == SourceNotStarted {
			t.overtaken |= 1
		}
		r.toSource(a, 0, SourceFact{Kind: FactCancelled, Reason: ReasonAbandoned, Reader: All})
	case mRenew:
		r.toSource(a, 0, SourceFact{Kind: FactLeaseRenewed, Seq: 1, For: renewFor})
	case mRelay:
		r.toSource(a, 0, SourceFact{Kind: FactReaderCompleted})
	default:
		r.deliverToGateway(a, m)
	}
}

// killSource ends the source's process: what it held is gone with it.
func (r *runner) killSource(a uint8) {
	t := &r.w.att[a]
	t.srcDead = true
	t.srcHeld, t.lease, t.srcQ = false, false, queue{}
	for p := range t.link {
		l := &t.link[p]
		r.breakLink(t, l)
		if l.src != endNone {
			l.src = endClosed
		}
		if l.ticket == ticketLive && r.w.att[a].policy == SourceFirst {
			l.ticket = ticketRevoked
		}
		l.srcQ = queue{}
	}
}

// killDest ends the destination's process.
func (r *runner) killDest(a uint8) {
	t := &r.w.att[a]
	t.dstDead = true
	t.queued, t.reserved, t.active, t.activating, t.stepping, t.dstQ = false, false, false, false, false, queue{}
	for p := range t.link {
		l := &t.link[p]
		r.breakLink(t, l)
		if l.dst != endNone {
			l.dst = endClosed
		}
		if l.ticket == ticketLive && r.w.att[a].policy == DestinationFirst {
			l.ticket = ticketRevoked
		}
		l.dstQ = queue{}
	}
}
