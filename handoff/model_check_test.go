package handoff

// check verifies what must hold between any two events, from the hosts' point of
// view.
func (r *runner) check() {
	w := r.w
	for a := range w.att {
		r.checkDestinationMemory(&w.att[a])
		r.checkSourceMemory(&w.att[a])
	}
	if w.gwDead {
		return
	}
	booked := func(b Booking) bool { return w.booked&(1<<b) != 0 }
	switch w.req.state {
	case RequestNew, RequestAdmitted, RequestDone:
		if w.booked != 0 {
			r.fail(5, "bookings %b without an attempt", w.booked)
		}
	case RequestHandingOff, RequestDecoding:
		if booked(BookPrefill) {
			r.fail(5, "prefill load is booked after prefill completed")
		}
		if !booked(BookDecode) {
			r.fail(5, "decode load is not booked while a destination works")
		}
	case RequestReserving:
		if w.req.policy == SourceFirst && booked(BookPrefill) {
			r.fail(5, "prefill load is booked after prefill completed")
		}
		if !booked(BookDecode) {
			r.fail(5, "reserving without a decode booking")
		}
	case RequestPrefilling:
		if !booked(BookSource) && !w.req.goneSource {
			r.fail(5, "prefilling without a booking on the source")
		}
	case RequestRunning:
		if !booked(BookRun) {
			r.fail(5, "running without a booking")
		}
	}
	owners := 0
	for a := range w.n {
		if t := &w.att[a]; t.moved && w.req.handoff == attemptID(a) {
			owners++
		}
	}
	if w.req.state == RequestDecoding && owners != 1 {
		r.fail(9, "the destination owns the request without one commit")
	}
}

// checkDestinationMemory: reserved and active are exclusive, counted from the
// reservation to the release, and published only by an activation.
func (r *runner) checkDestinationMemory(t *attempt) {
	if t.dstDead {
		return
	}
	if t.queued && t.reserved || t.reserved && t.active {
		r.fail(3, "destination memory is counted twice")
	}
	switch t.dst.state {
	case DestinationNotRouted, DestinationReleased:
		if t.queued || t.reserved || t.active {
			r.fail(3, "destination memory is counted before or after the handoff")
		}
	case DestinationReserved, DestinationReceiving, DestinationActive, DestinationDraining:
		if !t.reserved && !t.active && t.dstQ.n == 0 {
			r.fail(3, "destination memory is not counted in %s", t.dst.state)
		}
	}
	if t.published > 0 && !t.active && t.dst.state < DestinationActive {
		r.fail(4, "blocks are a prefix hit before activation")
	}
	if t.dst.MayStep() {
		if !t.active {
			r.fail(1, "a sequence may be stepped that is not active")
		}
		for p := range r.w.cfg.parts {
			if !t.link[p].delivered {
				r.fail(8, "active with a part missing")
			}
		}
		if t.published != 1 {
			r.fail(4, "active blocks published %d times", t.published)
		}
	}
	for p := range t.link {
		if l := &t.link[p]; l.dstUses() && !t.reserved {
			r.fail(1, "bytes may be written without a reservation")
		}
	}
}

// checkSourceMemory: finished prefill memory is pinned from the instant it is
// finished to the release.
func (r *runner) checkSourceMemory(t *attempt) {
	if t.srcDead {
		return
	}
	switch t.src.state {
	case SourceNotStarted, SourceReleased:
		if t.srcHeld || t.lease {
			r.fail(3, "source memory is counted before or after the handoff")
		}
	case SourcePinned, SourceAwaitingReader:
		if !t.srcHeld || !t.lease {
			r.fail(2, "finished prefill memory is free to be reused in %s", t.src.state)
		}
	case SourceDraining:
		if !t.srcHeld {
			r.fail(3, "source memory in quarantine is not counted")
		}
	}
}
