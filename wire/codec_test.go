package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/state"
)

// samples are one encoding of every message.
func samples() map[msgKind][]byte {
	id := newID()
	return map[msgKind][]byte{
		msgHello:     hello{1, 1, "worker-1", 7, 9, LaneTLS, Endpoint{"a:1", "b:2", 4}, "@c"}.encode(),
		msgRefused:   refusal{ErrTicket, "no"}.encode(msgRefused),
		msgOpen:      open{id, false, 1, 2, [proofSize]byte{3, 4}, 512}.encode(),
		msgCredit:    credit{1, 2, 3}.encode(),
		msgManifest:  manifest{3, 4, []byte("body")}.encode(),
		msgCommit:    commit{id, OutcomeActive}.encode(msgCommit),
		msgCommitAck: commit{id, OutcomeReleased}.encode(msgCommitAck),
		msgCancel:    refusal{ErrCancelled, "why"}.encode(msgCancel),
		msgAlive:     frameMsg(msgAlive, flagOptional, nil),
	}
}

// decodeAny runs the decoder of a message, and encodes the result again.
func decodeAny(kind msgKind, p []byte) ([]byte, error) {
	switch kind {
	case msgHello:
		h, err := decodeHello(p)
		return h.encode(), err
	case msgRefused, msgCancel:
		r, err := decodeRefusal(p, kind)
		return r.encode(kind), err
	case msgOpen:
		o, err := decodeOpen(p)
		return o.encode(), err
	case msgCredit:
		c, err := decodeCredit(p)
		return c.encode(), err
	case msgManifest:
		m, err := decodeManifest(p)
		return m.encode(), err
	case msgCommit, msgCommitAck:
		c, err := decodeCommit(p, kind)
		return c.encode(kind), err
	}
	return frameMsg(kind, flagOptional, p), nil
}

func TestMessages(t *testing.T) {
	for kind, b := range samples() {
		got, p, err := readMsg(iotest.OneByteReader(bytes.NewReader(b)), 100)
		if err != nil || got != kind {
			t.Errorf("message %d: read as %d, %v", kind, got, err)
			continue
		}
		again, err := decodeAny(kind, p)
		if err != nil {
			t.Errorf("message %d: %v", kind, err)
		}
		if d := cmp.Diff(b, again); d != "" {
			t.Errorf("message %d changes on its way:\n%s", kind, d)
		}
		if kind == msgAlive {
			continue
		}
		// Additive: what follows the known fields is ignored, a missing field is not.
		if kind != msgManifest {
			if x, err := decodeAny(kind, append(bytes.Clone(p), 1, 2, 3)); err != nil || !bytes.Equal(x, b) {
				t.Errorf("message %d with more fields: %v", kind, err)
			}
		}
		least := len(p)
		if kind == msgManifest {
			least = 12
		}
		for n := range least {
			if _, err := decodeAny(kind, p[:n]); !errors.Is(err, ErrProtocol) {
				t.Errorf("message %d cut to %d bytes: %v", kind, n, err)
			}
		}
	}
}

func TestReadMsgLimits(t *testing.T) {
	lie := func(kind msgKind, flags uint16, n uint32) []byte {
		b := frameMsg(kind, flags, nil)
		binary.LittleEndian.PutUint32(b[4:], n)
		return b
	}
	for _, tt := range []struct {
		name string
		in   []byte
		want error
	}{
		{"small message declared large", lie(msgCredit, 0, maxSmall+1), ErrLimit},
		{"manifest declared large", lie(msgManifest, 0, 100+13), ErrLimit},
		{"ping declared large", lie(msgPing, 0, maxPing+1), ErrLimit},
		{"unknown optional declared large", lie(900, flagOptional, maxSkip+1), ErrLimit},
		{"unknown required", lie(900, 0, 0), ErrProtocol},
		{"cut header", []byte{1, 2, 3}, io.ErrUnexpectedEOF},
		{"cut payload", lie(msgCredit, 0, 24), io.ErrUnexpectedEOF},
		{"cut optional", lie(900, flagOptional, 24), io.ErrUnexpectedEOF},
		{"nothing", nil, io.EOF},
	} {
		if _, _, err := readMsg(bytes.NewReader(tt.in), 100); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	in := append(frameMsg(901, flagOptional, []byte("skip me")), frameMsg(msgAlive, flagOptional, nil)...)
	if kind, _, err := readMsg(bytes.NewReader(in), 100); kind != msgAlive || err != nil {
		t.Errorf("after an unknown optional message: %d, %v", kind, err)
	}
}

// A declared length costs memory only as bytes arrive.
func TestReadGrowing(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := readGrowing(strings.NewReader("short"), 1<<30); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 {
		t.Errorf("%d bytes for a declared GiB", n)
	}
	want := payload(1, 300_000)
	got, err := readGrowing(bytes.NewReader(want), len(want))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestPrintable(t *testing.T) {
	if got := printable("a\nb\x00\x7fé" + strings.Repeat("x", 1000)); len(got) != maxDetail || !strings.HasPrefix(got, "a?b????x") {
		t.Errorf("%q", got)
	}
}

func TestFrames(t *testing.T) {
	good := []frame{
		{kind: frameHeader, unit: 1, length: state.HeaderSize, handoff: newID()},
		{kind: frameData, unit: 1 << 31, length: maxFrame, offset: maxUnit, handoff: newID()},
		{kind: frameEnd, unit: 3, handoff: newID()},
		{kind: frameReset},
	}
	for _, f := range good {
		var b [frameSize]byte
		f.encode(&b)
		got, err := decodeFrame(&b)
		if err != nil || got != f {
			t.Errorf("%+v became %+v, %v", f, got, err)
		}
		for _, i := range []int{1, 2, 3, 12, 13, 14, 15} {
			x := b
			x[i] = 1
			if _, err := decodeFrame(&x); !errors.Is(err, ErrProtocol) {
				t.Errorf("reserved byte %d set: %v", i, err)
			}
		}
	}
	for _, f := range []frame{
		{},
		{kind: 5},
		{kind: frameHeader, length: 1},
		{kind: frameHeader, length: state.HeaderSize, offset: 1},
		{kind: frameData},
		{kind: frameData, length: maxFrame + 1},
		{kind: frameData, length: 1, offset: maxUnit + 1},
		{kind: frameEnd, length: 1},
		{kind: frameReset, offset: 1},
	} {
		var b [frameSize]byte
		f.encode(&b)
		if _, err := decodeFrame(&b); !errors.Is(err, ErrProtocol) {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

func FuzzMessage(f *testing.F) {
	for _, b := range samples() {
		f.Add(b)
	}
	f.Add(frameMsg(900, flagOptional, []byte("x")))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for {
			kind, p, err := readMsg(r, 1<<20)
			if err != nil {
				return
			}
			again, err := decodeAny(kind, p)
			if err != nil {
				continue
			}
			k, q, err := readMsg(bytes.NewReader(again), 1<<20)
			if err != nil || k != kind {
				t.Fatalf("message %d, encoded again, is %d: %v", kind, k, err)
			}
			if x, err := decodeAny(k, q); err != nil || !bytes.Equal(x, again) {
				t.Fatalf("message %d is not stable: %v", kind, err)
			}
		}
	})
}

func FuzzFrame(f *testing.F) {
	for k := range 6 {
		var b [frameSize]byte
		(&frame{kind: frameKind(k), unit: 1, length: state.HeaderSize}).encode(&b)
		f.Add(b[:])
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		var b [frameSize]byte
		copy(b[:], p)
		fr, err := decodeFrame(&b)
		if err != nil {
			return
		}
		var again [frameSize]byte
		fr.encode(&again)
		if again != b {
			t.Fatalf("%x became %x", b, again)
		}
	})
}

func FuzzLaneHello(f *testing.F) {
	b := make([]byte, laneHelloSize)
	binary.LittleEndian.PutUint32(b, laneMagic)
	b[4] = 1
	f.Add(b)
	f.Fuzz(func(t *testing.T, p []byte) {
		if h, err := decodeLaneHello(p); err == nil && h.version != 1 {
			t.Fatalf("version %d", h.version)
		}
	})
}

// FuzzIntake gives a destination's intake any bytes: it must not panic, hang, or hold memory beyond the credit.
func FuzzIntake(f *testing.F) {
	id := newID()
	p := payload(0, 100)
	f.Add(append(rawHeader(id, 0, header(id, 0, p)), rawFrame(frame{kind: frameData, length: 100, handoff: id}, p)...))
	f.Add(rawFrame(frame{kind: frameEnd, handoff: id}, nil))
	shared := make([]byte, sharedSize)
	h := header(id, 0, make([]byte, 1<<10))
	h.Encode(shared[:state.HeaderSize])
	f.Add(rawFrame(frame{kind: frameShared, length: sharedSize, handoff: id}, shared))
	f.Add(rawFrame(frame{kind: frameBack, offset: 4096}, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		cfg, err := Config{Addr: "x", Incarnation: 1, PageBytes: 1 << 10, LargestUnit: 64 << 10, Window: 64 << 10}.fill()
		if err != nil {
			t.Fatal(err)
		}
		net := newMemNet()
		n := newNode(cfg, "destination", net.listen("destination"))
		bd := state.Binding{Handoff: id, Source: state.Peer{Worker: "source", Incarnation: 1}, Destination: state.Peer{Worker: "destination", Incarnation: 1}}
		r := newReceiver(n, bd, ReceiverEvents{})
		r.granted = true
		s := &session{n: n, flows: map[handoff.ID]*exchange{id: &r.exchange}, closed: true}
		pipe := newMemPipe(len(b) + 1)
		pipe.write(b)
		pipe.end(io.EOF, nil)
		lane := &memBulk{r: pipe, what: "local"}
		in := &intake{
			sess: s, conn: lane, pump: newPump(lane, false), theirs: newMapping(make([]byte, 64<<10)),
			own: newArena(make([]byte, 64<<10), 1<<20),
		}
		in.run()
		if r.Stats().Held > 64<<10 {
			t.Fatalf("%d bytes held", r.Stats().Held)
		}
		r.Abort("")
		n.Close()
	})
}
