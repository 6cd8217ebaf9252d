package gateway

import (
	"sync"
	"time"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/route"
)

// ackDelay collects acknowledgements, so that a stream of tokens does not cost a message each. Workers repeat
// what was not acknowledged for a second.
const ackDelay = 250 * time.Millisecond

// acks collects acknowledgements for each worker and posts them together. Losing one is harmless:
// the worker repeats the status, and the repetition is acknowledged again.
type acks struct {
	g *Gateway

	mu      sync.Mutex
	pending map[route.Target]map[ackKey]*buspb.Ack // guarded by mu; a target in it has a running timer
}

type ackKey struct {
	id   handoff.ID
	side buspb.Side
}

func newAcks(g *Gateway) *acks {
	return &acks{g: g, pending: make(map[route.Target]map[ackKey]*buspb.Ack)}
}

// add acknowledges all statuses up to seq and all tokens below next. Later values replace earlier
// ones of the same handoff and side.
func (a *acks) add(t route.Target, id handoff.ID, side buspb.Side, seq uint64, next uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.pending[t]
	if list == nil {
		list = make(map[ackKey]*buspb.Ack)
		a.pending[t] = list
		time.AfterFunc(ackDelay, func() { a.flush(t) })
	}
	ack := list[ackKey{id, side}]
	if ack == nil {
		ack = &buspb.Ack{Handoff: append([]byte(nil), id[:]...), Side: side}
		list[ackKey{id, side}] = ack
	}
	ack.Seq, ack.NextIndex = max(ack.Seq, seq), max(ack.NextIndex, next)
}

func (a *acks) flush(t route.Target) {
	a.mu.Lock()
	list := a.pending[t]
	delete(a.pending, t)
	a.mu.Unlock()
	cmd := &buspb.Acks{Acks: make([]*buspb.Ack, 0, len(list))}
	for _, ack := range list {
		cmd.Acks = append(cmd.Acks, ack)
	}
	a.g.mu.Lock()
	link := a.g.link
	a.g.mu.Unlock()
	if link == nil {
		return
	}
	// A lost acknowledgement is given again when the status is repeated.
	link.Post(t.Worker, &buspb.Command{
		WorkerIncarnation: t.Incarnation,
		Body:              &buspb.Command_Acks{Acks: cmd},
	})
}
