package pair

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

// stream sends everything: pages, as they are computed where they are not yet, then the snapshot and
// the manifest. errEnded means that the stream ended before.
func (x *sending) stream() error {
	defer func() {
		if x.end.IsZero() {
			x.end = time.Now()
		}
	}()
	if x.Chunk > 0 {
		if err := x.compute(); err != nil {
			return err
		}
	}
	for n := x.kept + x.m.Units; n < x.pages(); n++ {
		if err := x.page(n, true); err != nil {
			return err
		}
	}
	if x.inv.Snapshot() {
		if err := x.at(BeforeSnapshot); err != nil {
			return err
		}
		if err := x.snapshot(); err != nil {
			return err
		}
	}
	if err := x.at(BeforeManifest); err != nil {
		return err
	}
	if err := x.manifest(); err != nil {
		return err
	}
	if x.Chunk == 0 {
		x.end = time.Now()
	}
	if x.Damage.At == nil {
		return nil
	}
	// The child says when it has everything; a refusal ends the stream.
	a, err := x.p.call(x.ctx, request{Await: awaitReceived, Within: 2 * time.Minute})
	if err != nil {
		return err
	}
	if a.Received == nil || a.Received.Err != nil {
		return errEnded
	}
	return x.at(BeforeCommit)
}

// compute prefills the prompt in Host's slot, and sends what is ready and has room after each chunk.
func (x *sending) compute() error {
	began := time.Now()
	moved := time.Duration(0)
	send := func(computed int) error {
		at := time.Now()
		defer func() { moved += time.Since(at) }()
		for n := x.kept + x.m.Units; n < x.pages() && x.pageEnd(n) <= computed; n++ {
			if err := x.page(n, false); errors.Is(err, errNoRoom) {
				return nil // the engine keeps it
			} else if err != nil {
				return err
			}
		}
		return nil
	}
	first, err := x.Host.Prefill(x.prompt, x.Chunk, send)
	if err != nil {
		return err
	}
	x.first, x.end = first, time.Now()
	x.m.Early = x.snd.Stats().Bytes
	x.m.Compute = x.end.Sub(began) - moved
	return nil
}

// errNoRoom: the stream has no room for a unit now.
var errNoRoom = errors.New("pair: no room on the stream")

// buffer returns a buffer of the wire, waiting for room if wait.
func (x *sending) buffer(size int, wait bool) (*wire.Buffer, error) {
	if buf, ok := x.snd.Buffer(size); ok {
		return buf, nil
	}
	if !wait {
		return nil, errNoRoom
	}
	began := time.Now()
	defer func() { x.m.Blocked += time.Since(began) }()
	for {
		select {
		case <-x.room:
			if buf, ok := x.snd.Buffer(size); ok {
				return buf, nil
			}
		case <-x.quiesced:
			return nil, errEnded
		case <-x.ctx.Done():
			return nil, x.ctx.Err()
		}
	}
}

// page sends the n-th page to leave.
func (x *sending) page(n int, wait bool) error {
	if err := x.at(BeforePage); err != nil {
		return err
	}
	i := at(x.Order, n)
	var first, end, size int
	if e := x.Sending.Export; e != nil {
		first, end, size = e.Pages[i].First, e.Pages[i].End, len(e.Pages[i].Payload)
	} else {
		first, end = i*x.PageTokens, x.pageEnd(i)
		size = x.Host.Engine.PageBytes(end - first)
	}
	last := n == x.pages()-1 && !x.inv.Snapshot()
	fill := func(b []byte) (int, error) {
		if e := x.Sending.Export; e != nil {
			return copy(b, e.Pages[i].Payload), nil
		}
		return x.Host.Engine.ExportPage(Slot, first, end, b)
	}
	seal := func(b []byte) (state.UnitHeader, error) {
		return x.sealer.Page(state.AttentionKV, state.Range{First: uint32(first), End: uint32(end)}, last, b)
	}
	if err := x.unit(i, size, wait, fill, seal); err != nil {
		return err
	}
	x.m.Units++
	if x.Damage.Again != nil && x.Damage.Again(i) {
		return x.unit(i, size, wait, fill, seal)
	}
	return nil
}

func (x *sending) snapshot() error {
	var refs []state.ComponentRef
	var size int
	var err error
	if e := x.Sending.Export; e != nil {
		size, refs = len(e.Snapshot), e.Refs
	} else if size, err = x.Host.Engine.SnapshotBytes(Slot); err != nil {
		return err
	}
	fill := func(b []byte) (n int, err error) {
		if e := x.Sending.Export; e != nil {
			return copy(b, e.Snapshot), nil
		}
		n, refs, err = x.Host.Engine.ExportSnapshot(Slot, b)
		return n, err
	}
	err = x.unit(Snapshot, size, true, fill, func(b []byte) (state.UnitHeader, error) {
		return x.sealer.Snapshot(uint32(len(x.prompt)), true, b, refs)
	})
	if err == nil {
		x.m.Units++
	}
	return err
}

// unit exports, seals and sends one unit.
func (x *sending) unit(n, size int, wait bool, fill func([]byte) (int, error), seal func([]byte) (state.UnitHeader, error)) error {
	d := x.Damage
	buf, err := x.buffer(size, wait)
	if err != nil {
		return err
	}
	if x.snd.Local() {
		x.sealer.OverChecksum()
	}
	began := time.Now()
	got, err := fill(buf.Bytes)
	if err == nil && got != size {
		err = fmt.Errorf("%w: %d bytes of %d", engine.ErrBuffer, got, size)
	}
	if err != nil {
		buf.Discard()
		return err
	}
	if d.Payload != nil {
		d.Payload(n, buf.Bytes)
	}
	sealing := time.Now()
	x.m.Export += sealing.Sub(began)
	h, err := seal(buf.Bytes)
	if err != nil {
		buf.Discard()
		return err
	}
	x.m.Seal += time.Since(sealing)
	if d.Skip != nil && d.Skip(n) {
		buf.Discard()
		return nil
	}
	if d.Twice == nil || !d.Twice(n) {
		return x.send(n, h, buf)
	}
	kept := append([]byte(nil), buf.Bytes...)
	if err := x.send(n, h, buf); err != nil {
		return err
	}
	if buf, err = x.buffer(size, wait); err != nil {
		return err
	}
	copy(buf.Bytes, kept)
	return x.send(n, h, buf)
}

// send gives a sealed unit to the wire.
func (x *sending) send(n int, h state.UnitHeader, buf *wire.Buffer) error {
	if x.Damage.Sealed != nil {
		buf.Bytes = x.Damage.Sealed(n, &h, buf.Bytes)
	}
	err := x.queue(h, buf)
	if errors.Is(err, wire.ErrState) {
		return errEnded // its own event says why
	}
	return err
}

func (x *sending) queue(h state.UnitHeader, buf *wire.Buffer) error {
	if x.hasher == nil || x.snd.Local() {
		return x.snd.Send(h, buf)
	}
	x.hashes.missing.Add(1)
	err := x.snd.SendHashed(h, buf, x.hasher, func(d state.Digest) {
		defer x.hashes.missing.Done()
		x.hashes.mu.Lock()
		x.hashes.list = append(x.hashes.list, hash{h.Index, d})
		x.hashes.mu.Unlock()
	})
	if err != nil {
		x.hashes.missing.Done()
	}
	return err
}

// hashed gives the sealer the digests of everything that was queued.
func (x *sending) hashed() error {
	x.hashes.missing.Wait()
	for _, h := range x.hashes.list {
		if err := x.sealer.Digest(h.unit, h.digest); err != nil {
			return err
		}
	}
	return nil
}

// manifest seals and sends the manifest.
func (x *sending) manifest() error {
	d := x.Damage
	first := x.first
	if d.First != nil {
		first = d.First(first)
	}
	sampler, err := x.sampler(first)
	if err != nil {
		return err
	}
	n := uint32(len(x.prompt))
	m := &state.Manifest{
		Binding: x.b, Parts: 1, Position: n, History: append(append(make([]int32, 0, n+1), x.prompt...), first),
		Generation: state.Generation{MaxTokens: 1 << 20, IgnoreEOS: true}, Sampler: sampler,
		Usage: state.Usage{Prompt: n, Computed: n}, MTP: state.MTP{Reason: "not part of this handoff"},
	}
	if d.Manifest != nil {
		d.Manifest(m)
	}
	if err := x.hashed(); err != nil {
		return err
	}
	raw, err := x.sealer.Manifest(m)
	if err != nil {
		return err
	}
	if d.ManifestBytes != nil {
		raw = d.ManifestBytes(raw)
	}
	err = x.snd.Finish(raw)
	if errors.Is(err, wire.ErrState) {
		return errEnded
	}
	return err
}

// sampler is the state of the greedy sampler that has accepted first.
func (x *sending) sampler(first engine.Token) ([]byte, error) {
	vocab := 0
	if x.Sending.Export != nil {
		vocab = x.Sending.Export.Vocab
	} else {
		vocab = x.Host.Engine.Vocab().Size()
	}
	s, err := newSampler(vocab, x.prompt)
	if err == nil {
		err = s.Accept(first)
	}
	if err != nil {
		return nil, err
	}
	return s.MarshalBinary()
}
