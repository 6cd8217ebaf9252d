package pair

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/sample"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

// receiving is a handoff on the child's side. It does what worker/destination.go does, with the
// caller in the place of the machine. Everything but the digester belongs to the owner.
type receiving struct {
	p     *peer
	b     state.Binding
	rcv   *wire.Receiver
	imp   engine.Import // nil before the start and after the end
	asm   *state.Assembly
	hold  bool
	quiet bool

	digester *state.Digester // of the stream's goroutine
	hash     time.Duration   // same, until quiet

	opened       bool // the stream is open
	received     bool // everything is here and valid
	active       bool
	err          error
	imported     time.Duration
	committing   time.Duration
	tail         time.Duration
	lastArrival  time.Time
	acknowledged bool
}

// ended reports whether nothing more can happen.
func (r *receiving) ended() bool { return r.quiet }

// expect makes ready for a handoff: with a ticket for the source, or by going to it.
func (p *peer) expect(q *expectRequest, a *reply) error {
	if p.handoff != nil && !p.handoff.quiet {
		return fmt.Errorf("%w: the handoff before has not ended", ErrCall)
	}
	lim := limits(&p.transport)
	b, err := state.DecodeBinding(q.Binding, &lim)
	if err != nil {
		return err
	}
	if q.Pull != nil && q.Pull.Reopen {
		if err := p.reopen(); err != nil {
			return err
		}
	}
	node := p.nodes[q.Lane]
	if node == nil {
		return fmt.Errorf("%w: lane %q was not opened", ErrCall, q.Lane)
	}
	theirs, err := state.DecodeIdentity(q.Identity, &lim)
	if err == nil {
		err = p.identity.Match(theirs)
	}
	if err != nil {
		return err
	}
	r := &receiving{p: p, b: b, hold: q.Hold}
	imp, err := p.host.begin(int(q.Tokens), int(q.Skip))
	if err != nil {
		return err
	}
	imp.Scanned()
	r.imp = imp
	events := wire.ReceiverEvents{
		// Hashed while they arrive, and looked through, on the stream's goroutine, so that the owner only
		// imports.
		Piece: func(h *state.UnitHeader, off int, piece []byte) {
			began := time.Now()
			r.digester.Piece(h, off, piece)
			r.hash += time.Since(began)
		},
		Unit: func(u *wire.Unit) {
			began := time.Now()
			digest := r.digester.Arrived(&u.Header, r.rcv.Local())
			err := engine.ScanUnit(p.engine, &u.Header, u.Payload)
			r.hash += time.Since(began)
			if !p.post(func() { r.unit(u, digest, err) }) {
				u.Release()
			}
		},
		Opened:    func() { p.post(func() { r.opened = true }) },
		Manifest:  func(m []byte) { p.post(func() { r.manifest(m) }) },
		Committed: func(wire.Outcome) { p.post(func() { r.acknowledged = true }) },
		Failed:    func(err error) { p.post(func() { r.fail(err) }) },
		Quiesced: func() {
			p.post(func() {
				r.endImport()
				r.quiet = true
			})
		},
	}
	var ticket []byte
	if q.Pull != nil {
		ticket = q.Pull.Ticket
		r.rcv, err = node.Pull(b, q.Pull.From, ticket, q.Skip, events)
	} else if r.rcv, err = node.Expect(b, events); err == nil {
		ticket = r.rcv.Ticket()
		a.Ticket, a.Endpoint = ticket, node.Endpoint()
	}
	if err != nil {
		_ = imp.Discard()
		return err
	}
	key := state.DeriveKey(ticket, b)
	r.digester = state.NewDigester(key) // before the grant: the stream reads it only after
	r.asm, err = state.NewAssembly(state.Expect{
		Identity: p.identity, Binding: b, Parts: []state.Inventory{p.engine.Info().Inventory},
		Codec: state.CodecLlamaSeq, Tokens: q.Tokens, Skip: q.Skip, Key: key, Limits: lim,
	})
	if err != nil {
		r.rcv.Abort("not expected")
		_ = imp.Discard()
		return err
	}
	p.handoff = r
	r.rcv.Grant()
	return nil
}

// unit puts one unit into the session; scanned is what was wrong with its payload, if anything.
func (r *receiving) unit(u *wire.Unit, digest state.Digest, scanned error) {
	defer u.Release()
	if r.imp == nil {
		return
	}
	began := time.Now()
	r.lastArrival = began
	h := &u.Header
	err := r.asm.Streamed(h, uint64(len(u.Payload)), h.Checksum, digest) // the wire verified the checksum
	if err == nil {
		err = scanned
	}
	if err == nil {
		if h.Unit == state.UnitPage {
			err = r.imp.Page(int(h.Tokens.First), int(h.Tokens.End), u.Payload)
		} else {
			err = r.imp.Snapshot(u.Payload)
		}
	}
	r.imported += time.Since(began)
	if err != nil {
		r.refuse(err)
	}
}

// manifest validates what was received as a whole, and commits unless the parent wants to say when.
func (r *receiving) manifest(raw []byte) {
	if r.imp == nil {
		return
	}
	err := r.asm.Manifest(raw)
	if err == nil {
		err = r.asm.Missing()
	}
	if err != nil {
		r.refuse(err)
		return
	}
	r.received = true
	if !r.hold {
		_ = r.commit()
	}
}

// commit turns the session into a sequence that decodes, and tells the source.
func (r *receiving) commit() error {
	if r == nil || r.imp == nil || !r.received {
		return fmt.Errorf("%w: there is nothing to commit", ErrCall)
	}
	m := r.asm.Sequence()
	began := time.Now()
	err := r.imp.Commit()
	r.imp = nil
	var s *sample.Sampler
	if err == nil {
		s, err = sample.Restore(m.Sampler, r.p.engine.Vocab().Size())
	}
	if err != nil {
		_ = r.p.engine.Drop(Slot)
		r.refuse(err)
		return err
	}
	r.p.host.resume(s, m.History[len(m.History)-1])
	r.active = true
	now := time.Now()
	r.committing, r.tail = now.Sub(began), now.Sub(r.lastArrival)
	return r.rcv.Commit(wire.OutcomeActive)
}

// refuse discards the session for what is wrong with it and ends the stream.
func (r *receiving) refuse(err error) {
	r.fail(err)
	r.rcv.Abort("refused")
}

// abort ends the handoff on the parent's wish.
func (r *receiving) abort(reason string) {
	if !r.active && !r.quiet {
		r.fail(ErrAborted)
	}
	r.rcv.Abort(reason)
}

// fail discards the session; the first reason counts.
func (r *receiving) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.endImport()
}

func (r *receiving) endImport() {
	if r.imp == nil {
		return
	}
	err := errors.Join(r.imp.Discard(), r.p.engine.Drop(Slot)) // which else keeps what it shares
	r.imp = nil
	if r.err == nil {
		r.err = err
	}
}

func (r *receiving) report() *Received {
	units, bytes := r.asm.Received()
	out := &Received{
		Active: r.active, Units: units, Bytes: bytes, Import: r.imported, Commit: r.committing, Tail: r.tail,
		Wire: r.rcv.Stats(), Err: remote(r.err),
	}
	if r.quiet {
		out.Hash = r.hash
	}
	return out
}
