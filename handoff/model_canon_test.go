package handoff

const (
	toDestinationMessages = 1<<mReserve | 1<<mCancelD
	toSourceMessages      = 1<<mPrefill | 1<<mRun | 1<<mCancelS | 1<<mRenew | 1<<mRelay
	toGatewayMessages     = 1<<messages - 1 - toDestinationMessages - toSourceMessages
)

// canonical forgets what can no longer make a difference, so that worlds which
// behave alike from here on are equal. A released machine answers every fact
// with NoOp (TestINV7 checks that), so messages to it need not be kept.
func (w *world) canonical() {
	if w.req.state == RequestDone {
		w.req = Request{state: RequestDone, handoff: w.req.handoff, finishedBy: w.req.finishedBy}
	}
	over := w.gwDead || w.req.state == RequestDone || w.cut
	if over {
		w.forwarded, w.renewals, w.status = 0, 0, 0
	}
	for a := range w.att {
		t := &w.att[a]
		if t.srcDead {
			t.src = Source{}
			t.jobs, t.stop, t.srcFreed = [modelParts]job{}, false, 0
		}
		if t.src.state == SourceReleased {
			t.src = Source{state: SourceReleased, outcome: t.src.outcome, policy: t.src.policy, parts: t.src.parts, readers: t.src.readers}
		}
		if t.dst.state == DestinationReleased {
			t.dst = Destination{state: DestinationReleased, outcome: t.dst.outcome, policy: t.dst.policy, parts: t.dst.parts}
		}
		if t.srcDead || t.src.state == SourceReleased {
			t.srcQ = queue{}
			for p := range t.link {
				t.link[p].srcQ = queue{}
			}
			t.sent &^= toSourceMessages
			t.jobs, t.stop, t.reuse, t.srcTold = [modelParts]job{}, false, false, false
			t.overtaken &^= 1
		}
		if t.dstDead {
			t.dst = Destination{}
			t.dstFreed, t.published = 0, 0
		}
		if t.dstDead || t.dst.state == DestinationReleased {
			t.dstQ = queue{}
			for p := range t.link {
				t.link[p].dstQ = queue{}
			}
			t.sent &^= toDestinationMessages
			t.published, t.dstTold = 0, false
			t.overtaken &^= 2
		}
		if over {
			// Late reports only draw cancels; which outcome they carry is the same.
			t.endedS, t.endedD = min(t.endedS, 1), min(t.endedD, 1)
			t.neverS, t.neverD, t.releasedS, t.srcFin = false, false, 0, false
			if t.src.state == SourceReleased {
				t.src.outcome = OutcomeFailed
			}
			if t.dst.state == DestinationReleased {
				t.dst.outcome = OutcomeFailed
			}
		}
		if w.gwDead || w.cut {
			t.sent &^= toGatewayMessages
			t.gwTold = 0
		}
		if w.cut {
			t.sent = 0
		}
		for p := range t.link {
			l := &t.link[p]
			srcOver := l.src == endClosed && l.srcQ.n == 0 || t.src.state == SourceReleased && l.src == endNone
			dstOver := l.dst == endClosed && l.dstQ.n == 0 || t.dst.state == DestinationReleased && l.dst == endNone
			if srcOver {
				l.srcAborted, l.srcForced, l.final, l.acked = false, false, false, false
			}
			if dstOver {
				l.dstAborted, l.dstForced = false, false
			}
			if srcOver && dstOver && l.ticket != ticketLive && t.dst.state == DestinationReleased {
				*l = link{src: l.src, dst: l.dst}
			}
		}
	}
}
