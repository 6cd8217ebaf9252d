package worker

import (
	"time"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/telemetry"
)

// gateway is the life of a gateway that this worker last heard of.
type gateway struct {
	incarnation uint64
	heard       time.Duration
	queue       []*buspb.Status // to be sent with the next flush
}

// gatewaySeen notes that a gateway lives. A new incarnation, or one that takes
// leave, no longer knows what an earlier one asked for: that is ended at once
// instead of after the grace period.
func (w *Worker) gatewaySeen(name string, incarnation uint64, leaving bool) {
	g := w.gateways[name]
	if g != nil && incarnation < g.incarnation {
		return // a late message of an earlier life
	}
	if g == nil || incarnation > g.incarnation {
		if g != nil {
			w.loseGateway(name, g.incarnation)
		}
		w.forget(name, incarnation)
		g = &gateway{incarnation: incarnation}
		w.gateways[name] = g
		w.event(telemetry.Event{Kind: telemetry.GatewaySeen, Worker: name})
	}
	g.heard = w.now()
	if leaving {
		w.loseGateway(name, incarnation)
		w.forget(name, incarnation+1)
		delete(w.gateways, name)
	}
}

// sweepGateways gives up gateways that were silent beyond the grace period.
func (w *Worker) sweepGateways() {
	now := w.now()
	for name, g := range w.gateways {
		if now-g.heard > w.cfg.GatewayGrace {
			w.loseGateway(name, g.incarnation)
			delete(w.gateways, name)
		}
	}
}

// loseGateway cancels what the worker owns for one life of a gateway, active
// sequences included. A gateway that was only out of reach, and comes back as the
// same, hears how its requests ended; otherwise forget follows.
func (w *Worker) loseGateway(name string, incarnation uint64) {
	lost := gatewayID{name: name, incarnation: incarnation}
	w.event(telemetry.Event{Kind: telemetry.GatewayLost, Worker: name})
	for _, t := range w.inOrder() {
		if t.gateway == lost {
			w.tell(t, handoff.FactCoordinatorLost, 0)
			w.settle()
		}
	}
}

// forget drops what lives of a gateway before incarnation did not acknowledge:
// nobody is left who knows of it.
func (w *Worker) forget(name string, incarnation uint64) {
	for id, t := range w.unacked {
		if t.gateway.name == name && t.gateway.incarnation < incarnation {
			delete(w.unacked, id)
		}
	}
}

// forgetOld drops what a gateway that does not come back did not acknowledge.
func (w *Worker) forgetOld() {
	for id, t := range w.unacked {
		if w.now()-t.out.waiting > tombstoneLife {
			delete(w.unacked, id)
		}
	}
}

// owes reports whether a gateway that is there has not acknowledged how one of its
// tasks ended.
func (w *Worker) owes() bool {
	for _, t := range w.unacked {
		if g := w.gateways[t.gateway.name]; g != nil && g.incarnation == t.gateway.incarnation {
			return true
		}
	}
	return false
}

// housekeeping is the period of everything that is not driven by an event:
// silent gateways, unacknowledged statuses, what is only counted now and then.
const housekeeping = 500 * time.Millisecond

func (w *Worker) keepHouse() {
	w.sweepGateways()
	w.forgetOld()
	w.resendOverdue()
	w.sampleWire()
	w.showCapacity() // answers grow without a change that is announced
	w.alarms.set(w.now()+housekeeping, w.keepHouse)
}
