package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/tandem-llm/tandem/bus"
)

const (
	// fenceTime is how long a finished request still answers late messages with
	// cancel: longer than any of its messages stays on the way.
	fenceTime = 5 * time.Minute
	// maxFenced bounds the finished requests that are kept for that.
	maxFenced = 1 << 16
	// leaveTime bounds the delivery of the last cancels at shutdown.
	leaveTime = 3 * time.Second
)

var errStopped = errors.New("gateway: stopped")

// Run serves until ctx ends, and then shuts down in good order: new requests are refused, those in
// flight may end for ShutdownGrace, the rest is cancelled, and workers are told. link is the bus;
// ln may be nil when somebody else serves Handler. Run closes ln and may be called once.
func (g *Gateway) Run(ctx context.Context, link Link, ln net.Listener) error {
	g.mu.Lock()
	if g.link != nil {
		g.mu.Unlock()
		return errors.New("gateway: Run was called twice")
	}
	g.link = link
	g.mu.Unlock()
	g.metrics.BusConnected(true)
	link.Heartbeat()
	link.Hello() // failures are seen as a lost bus

	beat, endBeat := context.WithCancel(context.WithoutCancel(ctx))
	beatEnded := make(chan struct{})
	go func() {
		defer close(beatEnded)
		g.beat(beat, link)
	}()

	server := &http.Server{
		Handler: g.handler, ReadHeaderTimeout: g.cfg.ReadTimeout, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
	served := make(chan error, 1)
	if ln != nil {
		go func() { served <- server.Serve(ln) }()
	}
	var failed error
	select {
	case <-ctx.Done():
	case err := <-served:
		failed = fmt.Errorf("gateway: serving HTTP: %w", err)
	}
	g.shutdown(server, ln != nil)
	endBeat()
	<-beatEnded
	g.publishLate(g.now() + lateReports)
	link.Goodbye()
	return failed
}

// shutdown ends all requests and everything that sends for them.
func (g *Gateway) shutdown(server *http.Server, serving bool) {
	g.mu.Lock()
	g.stopping = true
	g.mu.Unlock()
	g.gate.close()
	g.cfg.Log.Info("shutting down", "in_flight", len(g.openRequests()), "grace", g.cfg.ShutdownGrace)

	ctx, cancel := context.WithTimeout(context.Background(), g.cfg.ShutdownGrace)
	defer cancel()
	// The listener stays: who comes meanwhile is told that the server is going down, and when to try
	// again, instead of being refused a connection.
	server.SetKeepAlivesEnabled(false)
	g.await(ctx, func() bool { return len(g.openRequests()) == 0 && g.gate.idle() })
	for _, q := range g.openRequests() {
		q.abort(errShuttingDown())
	}
	if serving {
		// Answers of aborted requests are written now, under their own deadlines.
		last, cancelLast := context.WithTimeout(context.Background(), leaveTime)
		defer cancelLast()
		server.Shutdown(last)
		server.Close()
	}

	// Cancels that workers have not answered yet get a last chance.
	last, cancelLast := context.WithTimeout(context.Background(), leaveTime)
	defer cancelLast()
	g.await(last, func() bool { return g.sending() == 0 })
	g.mu.Lock()
	g.stop(errStopped) // under mu: nothing is spawned afterwards
	g.mu.Unlock()
	g.await(context.Background(), func() bool { return g.sending() == 0 })
}

func (g *Gateway) sending() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.senders
}

// await waits until something is so, or ctx ends. It is used at shutdown only, where a moment of
// delay is cheaper than a signal for each of these conditions.
func (g *Gateway) await(ctx context.Context, so func() bool) {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for !so() {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

func (g *Gateway) isStopping() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stopping
}

// beat sends heartbeats and sweeps what has a time limit.
func (g *Gateway) beat(ctx context.Context, link Link) {
	t := time.NewTicker(bus.Beat)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		link.Heartbeat() // a failure is seen as a lost bus
		g.sweep()
	}
}

// sweep expires silent workers, forgets finished requests, and fails requests that the bus was lost
// under for too long.
func (g *Gateway) sweep() {
	now := g.now()
	g.mu.Lock()
	for len(g.closed) > 0 && g.closed[0].until <= now {
		g.forget()
	}
	lost := g.busDown != 0 && now-g.busDown >= g.cfg.BusWait
	g.mu.Unlock()
	g.publishLate(now)
	g.changed(g.fleet.expire(now))
	if lost {
		for _, q := range g.openRequests() {
			q.abort(errBusDown())
		}
	}
}

// finished moves a request from the open ones to those that are only fenced. The request is locked.
func (g *Gateway) finished(q *request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.open, q)
	g.closed = append(g.closed, closing{q, g.now() + fenceTime})
	g.late = append(g.late, closing{q, g.now() + lateReports})
	if len(g.closed) > maxFenced {
		g.forget()
	}
}

// publishLate publishes the records that waited long enough for workers by now.
func (g *Gateway) publishLate(now time.Duration) {
	for {
		g.mu.Lock()
		if len(g.late) == 0 || g.late[0].until > now {
			g.mu.Unlock()
			return
		}
		q := g.late[0].request
		g.late[0] = closing{}
		g.late = g.late[1:]
		g.mu.Unlock()
		q.mu.Lock()
		q.publish(true)
		q.mu.Unlock()
	}
}

// forget drops the oldest finished request. mu is held.
func (g *Gateway) forget() {
	for _, a := range g.closed[0].request.attempts {
		delete(g.requests, a.id)
	}
	g.closed[0] = closing{}
	g.closed = g.closed[1:]
}
