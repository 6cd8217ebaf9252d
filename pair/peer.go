package pair

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tandem-llm/tandem/engine/llama"
	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/state"
)

// leaveGrace is how long a child whose parent is gone may take to close what it has open.
const leaveGrace = 3 * time.Second

// Serve is the child's side: it answers requests from r on w until r ends, and then returns nil. The
// caller ends the process right after it: an engine that computes does not stop for anybody, so Serve
// does not wait for it longer than a moment. An error means that r or w is broken or that the parent
// speaks another protocol.
func Serve(ctx context.Context, r io.Reader, w io.Writer) error {
	p := &peer{
		out: bufio.NewWriter(w), box: make(chan func(), 256), requests: make(chan request),
		stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	go p.run()
	err := p.read(ctx, bufio.NewReader(r))
	close(p.stop)
	select {
	case <-p.stopped:
	case <-time.After(leaveGrace):
	}
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// peer is the child. Everything but read belongs to the goroutine that runs run.
type peer struct {
	out      *bufio.Writer
	requests chan request
	box      chan func() // what the wire has to say
	stop     chan struct{}
	stopped  chan struct{}

	id          *mesh.Identity
	incarnation uint64
	host        Host
	engine      *llama.Engine // nil: none open
	identity    state.Identity
	transport   Transport
	nodes       nodes

	handoff *receiving // the handoff of now, or of before
	waiting *waiting   // an await that is not answered yet
}

// waiting is a request that is answered later.
type waiting struct {
	request
	until time.Time
}

// read passes requests on until the parent is gone.
func (p *peer) read(ctx context.Context, in *bufio.Reader) error {
	for {
		var q request
		if err := readMessage(in, &q); err != nil {
			return err
		}
		select {
		case p.requests <- q:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.stopped:
			return io.ErrClosedPipe
		}
	}
}

// post lets the owner run f. It reports false when the process is ending.
func (p *peer) post(f func()) bool {
	select {
	case p.box <- f:
		return true
	case <-p.stop:
		return false
	}
}

func (p *peer) run() {
	defer close(p.stopped)
	defer func() { _ = p.close() }()
	late := time.NewTimer(time.Hour)
	defer late.Stop()
	for {
		if w := p.waiting; w != nil {
			late.Reset(time.Until(w.until))
		}
		select {
		case <-p.stop:
			return
		case f := <-p.box:
			f()
		case q := <-p.requests:
			if p.waiting != nil {
				return // a parent that does not wait for answers: not this protocol
			}
			if !p.handle(q) {
				return
			}
		case <-late.C:
		}
		if !p.serveWaiting() {
			return
		}
	}
}

// serveWaiting answers an await that is due.
func (p *peer) serveWaiting() bool {
	w := p.waiting
	if w == nil {
		return true
	}
	r := p.handoff
	done := r.ended() || w.Await == awaitOpened && r.opened || w.Await == awaitReceived && r.received
	a := &reply{ID: w.ID}
	switch {
	case done:
		a.Received = r.report()
	case time.Now().After(w.until):
		a.Err = remote(fmt.Errorf("%w: the handoff is not at %q after %v", ErrTimeout, w.Await, w.Within))
	default:
		return true
	}
	p.waiting = nil
	return writeMessage(p.out, a) == nil
}

// handle answers one request. It reports false when the answer cannot be written.
func (p *peer) handle(q request) bool {
	a := &reply{ID: q.ID}
	err := p.answer(q, a)
	if p.waiting != nil {
		return true
	}
	if err != nil {
		*a = reply{ID: q.ID, Err: remote(err)}
	}
	err = writeMessage(p.out, a)
	if err != nil && q.Continue > 0 { // too many steps for one answer
		err = writeMessage(p.out, &reply{ID: q.ID, Err: remote(err)})
	}
	return err == nil
}

func (p *peer) answer(q request, a *reply) error {
	if q.Hello == nil && p.id == nil {
		return fmt.Errorf("%w: the first request is hello", ErrCall)
	}
	switch needs := q.Hello == nil && q.Open == nil && !q.Stats && !q.Close; {
	case needs && p.engine == nil:
		return fmt.Errorf("%w: no engine is open", ErrCall)
	case q.Hello != nil:
		return p.hello(q.Hello)
	case q.Open != nil:
		return p.open(q.Open, a)
	case q.Place != nil:
		if err := p.clear(); err != nil {
			return err
		}
		return p.host.Place(*q.Place)
	case q.Expect != nil:
		if err := p.expect(q.Expect, a); err != nil || q.Expect.Pull == nil {
			return err
		}
		q.Await = awaitOpened
		p.waiting = &waiting{q, time.Now().Add(q.Within)}
	case q.Await != "":
		if p.handoff == nil || q.Await != awaitReceived && q.Await != awaitEnd {
			return fmt.Errorf("%w: there is no handoff to wait for", ErrCall)
		}
		p.waiting = &waiting{q, time.Now().Add(q.Within)}
	case q.Commit:
		return p.handoff.commit()
	case q.Abort != "":
		if p.handoff == nil {
			return fmt.Errorf("%w: there is no handoff to end", ErrCall)
		}
		p.handoff.abort(q.Abort)
	case q.Continue > 0:
		var err error
		a.Steps, err = p.host.Continue(q.Continue)
		return err
	case q.Prefill != nil:
		var err error
		a.First, err = p.host.Prefill(q.Prefill.Tokens, q.Prefill.Chunk, nil)
		return err
	case q.Keep > 0:
		if p.handoff != nil && !p.handoff.quiet {
			return fmt.Errorf("%w: the handoff before has not ended", ErrCall)
		}
		return p.host.KeepPrefix(q.Keep)
	case q.State:
		sum, err := p.host.State()
		a.State = &sum
		return err
	case q.Clear:
		return p.clear()
	case q.Stats:
		a.Stats = p.stats()
	case q.Close:
		return p.close()
	default:
		return fmt.Errorf("%w: a request that asks for nothing", ErrMessage)
	}
	return nil
}

func (p *peer) hello(h *helloRequest) error {
	id, err := mesh.Load(h.Mesh, nil)
	if err != nil {
		return err
	}
	p.id, p.incarnation = id, h.Incarnation
	return nil
}

// open replaces the engine and the data plane.
func (p *peer) open(o *openRequest, a *reply) error {
	began := time.Now()
	if err := p.close(); err != nil {
		return err
	}
	e, err := OpenEngine(o.Engine)
	if err != nil {
		return err
	}
	p.engine, p.host = e, Host{Engine: e}
	p.transport = o.Transport
	p.transport.size(e)
	if p.nodes, err = listen(p.id, p.incarnation, &p.transport); err != nil {
		return errors.Join(err, p.close())
	}
	i := e.Info()
	p.identity = i.Identity
	a.Info = &Info{
		Architecture: i.Architecture, Model: i.Model, Backend: i.Backend, Build: i.Build, KVType: i.KVType, Threads: i.Threads,
		Slots: i.Slots, Cells: i.Cells, BatchTokens: i.BatchTokens, Identity: i.Identity.Encode(), Transport: p.transport,
		Peer: state.Peer{Worker: p.id.Name(), Incarnation: p.incarnation}, PID: os.Getpid(), OpenTook: time.Since(began).Nanoseconds(),
	}
	return nil
}

// clear ends what is going on and empties every slot.
func (p *peer) clear() error {
	if p.handoff != nil {
		p.handoff.abort("cleared")
	}
	return p.host.Clear()
}

// close closes the engine and the data plane.
func (p *peer) close() error {
	if p.engine == nil {
		return nil
	}
	if p.handoff != nil {
		p.handoff.abort("closed")
		p.handoff = nil
	}
	err := errors.Join(p.closeNodes(), p.engine.Close())
	p.engine, p.host = nil, Host{}
	return err
}

// closeNodes closes the data plane.
func (p *peer) closeNodes() error {
	// Events of the wire may wait for this goroutine, and the node for them.
	done := make(chan error, 1)
	go func(ns nodes) { done <- ns.close() }(p.nodes)
	p.nodes = nil
	for {
		select {
		case f := <-p.box:
			f()
		case err := <-done:
			return err
		}
	}
}

// reopen opens the data plane anew as the process that it was.
func (p *peer) reopen() error {
	err := p.closeNodes()
	ns, opened := listen(p.id, p.incarnation, &p.transport)
	p.nodes = ns
	return errors.Join(err, opened)
}

func (p *peer) stats() *Stats {
	s := &Stats{}
	if p.engine != nil {
		for slot := range int32(p.engine.Info().Slots) {
			if p.engine.Tokens(slot) > 0 {
				s.Sequences++
			} else if imp, err := p.engine.BeginImport(slot, 1); err != nil {
				s.Importing++ // asked of the engine itself: it refuses a slot that is not empty
			} else {
				_ = imp.Discard()
			}
		}
	}
	p.nodes.count(s)
	return s
}
