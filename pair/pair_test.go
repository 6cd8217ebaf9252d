package pair

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

const peerEnv = "TANDEM_TEST_PAIR_PEER"

func TestMain(m *testing.M) {
	if os.Getenv(peerEnv) != "" {
		if err := Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// limit is the longest wait for something that must happen.
const limit = time.Minute

var both = []wire.LaneMode{wire.LaneTLS, wire.LaneQUIC}

func options(t *testing.T, arch tiny.Arch) EngineOptions {
	t.Helper()
	lib, err := install.Ensure(t.Context(), install.Options{})
	if err != nil {
		t.Fatal(err)
	}
	file, err := tiny.Cached(arch)
	if err != nil {
		t.Fatal(err)
	}
	return EngineOptions{Lib: lib.Dir, Model: file, Slots: 4, Cells: 4096, BatchTokens: 128, UBatch: 128, Threads: 1, KVType: state.F16}
}

func start(t *testing.T) *Pair {
	t.Helper()
	p, err := Start(t.Context(), Options{Command: []string{os.Args[0]}, Env: []string{peerEnv + "=1"}, Budget: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// open starts a pair of one family and an engine of this process.
func open(t *testing.T, arch tiny.Arch) (*Pair, *Host) {
	t.Helper()
	o := options(t, arch)
	p := start(t)
	if _, err := p.Open(t.Context(), o, Transport{Lanes: both, PageTokens: 128, Tokens: 2048}); err != nil {
		t.Fatal(err)
	}
	e, err := OpenEngine(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return p, &Host{Engine: e}
}

// local is the same prompt and answer without a handoff.
func local(t *testing.T, h *Host, n, steps int) (x *Export, sum StateSum, answer []Step) {
	t.Helper()
	if err := h.Clear(); err != nil {
		t.Fatal(err)
	}
	prompt := Prompt(h.Engine.Vocab(), n, 1)
	_, err := h.Prefill(prompt, 64, nil)
	if err == nil {
		x, err = h.Export(prompt, 100)
	}
	if err == nil {
		sum, err = h.State()
	}
	if err == nil {
		answer, err = h.Continue(steps)
	}
	if err != nil {
		t.Fatal(err)
	}
	return x, sum, answer
}

// idle checks that the child has let everything of a handoff go.
func idle(t *testing.T, p *Pair) {
	t.Helper()
	if err := p.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Idle(t.Context()); err != nil {
		t.Error(err)
	}
}

// A sequence goes on in the other process with the same bits: from a held export, straight out of the
// engine, and while it is being computed, over both lanes.
func TestContinuesInTheOtherProcess(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			p, h := open(t, arch)
			x, sum, want := local(t, h, 700, 8)
			check := func(name string, s Sending) {
				t.Helper()
				m, err := p.Send(t.Context(), s)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if m.First != x.First || m.Bytes != x.Bytes() || uint64(m.Bytes) != m.Received.Bytes || string(s.Lane) != m.Wire.Lane {
					t.Errorf("%s: %d bytes of %d over %q, first token equal: %v", name, m.Bytes, x.Bytes(), m.Wire.Lane, m.First == x.First)
				}
				if m.Open <= 0 || m.Received.Import <= 0 || m.Received.Hash <= 0 || m.Total <= 0 || m.Seal <= 0 || m.Tail <= 0 {
					t.Errorf("%s: not everything was timed: %+v", name, m)
				}
				got, err := p.State(t.Context())
				if err != nil || got != sum {
					t.Errorf("%s: the state that arrived is not the state that left (%v)", name, err)
				}
				steps, err := p.Continue(t.Context(), 8)
				if d := cmp.Diff(want, steps); err != nil || d != "" {
					t.Errorf("%s: the answer differs: %v\n%s", name, err, d)
				}
				idle(t, p)
			}
			for _, lane := range both {
				check(fmt.Sprint("held ", lane), Sending{Export: x, Lane: lane})
				check(fmt.Sprint("pulled ", lane), Sending{Export: x, Lane: lane, Pull: true})
				if err := h.Clear(); err != nil {
					t.Fatal(err)
				}
				// The pages of 100 tokens never end where chunks of 64 do.
				check(fmt.Sprint("while computed ", lane), Sending{Host: h, Prompt: x.Prompt, PageTokens: 100, Chunk: 64, Lane: lane})
				check(fmt.Sprint("out of the engine ", lane), Sending{Host: h, Prompt: x.Prompt, PageTokens: 100, Lane: lane})
				check(fmt.Sprint("pulled out of the engine ", lane), Sending{Host: h, Prompt: x.Prompt, PageTokens: 100, Lane: lane, Pull: true})
				if _, err := p.Send(t.Context(), Sending{Host: h, Prompt: x.Prompt, PageTokens: 100, Chunk: 64, Lane: lane, Pull: true}); !errors.Is(err, ErrCall) {
					t.Errorf("pulled while it is computed: %v", err)
				}
			}
			if len(x.Pages) > 0 {
				order := []int{6, 0, 3, 1, 5, 2, 4, 7}[:len(x.Pages)]
				if m, err := p.Send(t.Context(), Sending{Export: x, Order: order}); err != nil || m.Units < len(order) {
					t.Fatalf("out of order: %v", err)
				}
				if got, err := p.State(t.Context()); err != nil || got != sum {
					t.Errorf("out of order: another state arrived (%v)", err)
				}
				if err := h.Clear(); err != nil {
					t.Fatal(err)
				}
				if err := h.Restore(x, order); err != nil {
					t.Fatal(err)
				}
				want, err := h.Continue(8)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := p.Continue(t.Context(), 8); err != nil || cmp.Diff(want, got) != "" {
					t.Errorf("out of order: the same restore in one process answers otherwise (%v)", err)
				}
			}
			idle(t, p)
			if _, err := p.Send(t.Context(), Sending{Export: x}); err != nil {
				t.Fatal(err)
			}
			_, err := p.Prefill(t.Context(), x.Prompt, 64)
			if !errors.Is(err, engine.ErrBatch) && !errors.Is(err, engine.ErrSequence) {
				t.Errorf("a prefill into a full slot: %v", err)
			}
			idle(t, p)
			if first, err := p.Prefill(t.Context(), x.Prompt, 64); err != nil || first != x.First {
				t.Errorf("computed over there the first token is equal: %v, %v", first == x.First, err)
			}
		})
	}
}

// A layout is what it says, and the same one gives the same bits in both processes.
func TestLayouts(t *testing.T) {
	p, h := open(t, tiny.NemotronHMoE)
	x, _, _ := local(t, h, 300, 1)
	for _, l := range []Layout{{Padding: 64}, {Padding: 37}, {Neighbours: 2, NeighbourTokens: 90}, {Neighbours: 2, NeighbourTokens: 90, Busy: true, Padding: 5}} {
		if err := errors.Join(p.Place(t.Context(), l), h.Place(l), h.Restore(x, nil)); err != nil {
			t.Fatal(err)
		}
		if s, err := p.Stats(t.Context()); err != nil || s.Sequences != l.Sequences() {
			t.Errorf("%+v: %d sequences, %v", l, s.Sequences, err)
		}
		if _, err := p.Send(t.Context(), Sending{Export: x}); err != nil {
			t.Fatal(err)
		}
		want, err := h.Continue(8)
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.Continue(t.Context(), 8)
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%+v: %v\n%s", l, err, d)
		}
	}
	if err := p.Place(t.Context(), Layout{Neighbours: 4}); !errors.Is(err, ErrCall) {
		t.Errorf("more neighbours than slots: %v", err)
	}
	idle(t, p)
}

// errLost stands for either way to learn that the other side's connections are gone.
var errLost = errors.New("lost")

// What is wrong is refused by name, on the side that sees it, nothing stays behind, and the next handoff
// works.
func TestRefusals(t *testing.T) {
	p, h := open(t, tiny.NemotronHMoE)
	x, sum, _ := local(t, h, 300, 1)
	stop := func(kind BoundaryKind, page int, a Action) func(Boundary) Action {
		return func(b Boundary) Action {
			if b.Kind == kind && (kind != BeforePage || b.Page == page) {
				return a
			}
			return Go
		}
	}
	var used struct {
		b      state.Binding
		ticket []byte
	}
	reuse := func(b *state.Binding, ticket *[]byte) { *b, *ticket = used.b, used.ticket }
	for _, c := range []struct {
		name        string
		damage      Damage
		source      error
		destination error
		pull        bool
	}{
		{"claimed identity", Damage{Claim: func(id *state.Identity) { id.Weights[0] ^= 1 }}, nil, state.ErrIdentity, false},
		{"carried identity", Damage{Identity: func(id *state.Identity) { id.EngineBuild = "other" }}, wire.ErrCancelled, state.ErrIdentity, false},
		{"payload bit", Damage{Sealed: func(n int, _ *state.UnitHeader, b []byte) []byte {
			if n == 1 {
				b[len(b)-1] ^= 1
			}
			return b
		}}, wire.ErrChecksum, wire.ErrChecksum, false},
		{"page left out", Damage{Skip: func(n int) bool { return n == 1 }}, wire.ErrCancelled, engine.ErrOutOfOrder, false},
		{"page twice", Damage{Twice: func(n int) bool { return n == 1 }}, wire.ErrCancelled, state.ErrDuplicateUnit, false},
		{"page again", Damage{Again: func(n int) bool { return n == 1 }}, wire.ErrCancelled, state.ErrOverlap, false},
		{"manifest cut", Damage{ManifestBytes: func(b []byte) []byte { return b[:len(b)-9] }}, wire.ErrCancelled, state.ErrTruncated, false},
		{"wrong ticket", Damage{Come: func(_ *state.Binding, ticket *[]byte) { (*ticket)[3] ^= 1 }}, wire.ErrTicket, ErrAborted, false},
		{"cancelled by the source", Damage{At: stop(BeforePage, 1, CancelSource)}, nil, wire.ErrCancelled, false},
		{"cancelled by the destination", Damage{At: stop(BeforeSnapshot, 0, CancelPeer)}, wire.ErrCancelled, ErrAborted, false},
		{"connection lost", Damage{At: stop(BeforeManifest, 0, Disconnect)}, wire.ErrClosed, errLost, false},
		{"connection lost with everything there", Damage{At: stop(BeforeCommit, 0, Disconnect)}, wire.ErrClosed, ErrAborted, false},
		{"expired ticket", Damage{Expire: true}, wire.ErrTicketExpired, wire.ErrTicketExpired, false},
		{"used ticket", Damage{Reopen: true, Come: reuse}, wire.ErrTicketUsed, ErrAborted, false},
		{"pulled: claimed identity", Damage{Claim: func(id *state.Identity) { id.Weights[0] ^= 1 }}, nil, state.ErrIdentity, true},
		{"pulled: payload bit", Damage{Sealed: func(n int, _ *state.UnitHeader, b []byte) []byte {
			b[len(b)-1] ^= 1
			return b
		}}, wire.ErrChecksum, wire.ErrChecksum, true},
		{"pulled: wrong ticket", Damage{Come: func(_ *state.Binding, ticket *[]byte) { (*ticket)[3] ^= 1 }}, nil, wire.ErrTicket, true},
		{"pulled: used ticket", Damage{Reopen: true, Come: reuse}, nil, wire.ErrTicketUsed, true},
		{"pulled: used ticket of before, not forgotten", Damage{Come: reuse}, nil, wire.ErrDuplicate, true},
		{"pulled: expired ticket", Damage{Expire: true}, wire.ErrTicketExpired, wire.ErrTicketExpired, true},
		{"pulled: earlier source", Damage{Expected: func(b *state.Binding) { b.Source.Incarnation-- }}, wire.ErrStale, nil, true},
		{"pulled: cancelled by the source", Damage{At: stop(BeforePage, 0, CancelSource)}, nil, wire.ErrCancelled, true},
		{"pulled: cancelled by the destination", Damage{At: stop(BeforeCommit, 0, CancelPeer)}, wire.ErrCancelled, ErrAborted, true},
		{"pulled: connection lost", Damage{At: stop(BeforePage, 1, Disconnect)}, wire.ErrClosed, errLost, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.HasSuffix(c.name, "used ticket") {
				remember := Damage{Come: func(b *state.Binding, ticket *[]byte) { used.b, used.ticket = *b, slices.Clone(*ticket) }}
				if _, err := p.Send(t.Context(), Sending{Export: x, Damage: &remember, Pull: c.pull}); err != nil {
					t.Fatal(err)
				}
				idle(t, p)
			}
			s := Sending{Export: x, Damage: &c.damage, Pull: c.pull}
			if c.damage.Expire {
				s.Budget = 50 * time.Millisecond
			}
			_, err := p.Send(t.Context(), s)
			var both *HandoffError
			if !errors.As(err, &both) {
				t.Fatalf("%v", err)
			}
			if c.destination == errLost && errors.Is(both.Destination, wire.ErrClosed) {
				c.destination = wire.ErrClosed // it heard the goodbye before it saw the connection end
			}
			if c.destination == errLost {
				c.destination = wire.ErrPeerLost
			}
			if !errors.Is(both.Source, c.source) || !errors.Is(both.Destination, c.destination) {
				t.Errorf("source %v, want %v; destination %v, want %v", both.Source, c.source, both.Destination, c.destination)
			}
			if err := p.Idle(t.Context()); err != nil { // before anything is cleared
				t.Error(err)
			}
			if _, err := p.Send(t.Context(), Sending{Export: x, Pull: c.pull}); err != nil {
				t.Fatalf("the next handoff: %v", err)
			}
			if got, err := p.State(t.Context()); err != nil || got != sum {
				t.Errorf("the next handoff: another state (%v)", err)
			}
			idle(t, p)
		})
	}
}

// A child that is killed gives a typed error at once, also in the middle of a call.
func TestPeerDies(t *testing.T) {
	p, h := open(t, tiny.Llama)
	x, _, _ := local(t, h, 300, 1)
	kill := Damage{At: func(b Boundary) Action {
		if b.Page == 1 {
			if err := p.cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
			<-p.exited
		}
		return Go
	}}
	if _, err := p.Send(t.Context(), Sending{Export: x, Damage: &kill}); !errors.Is(err, ErrPeerGone) {
		t.Errorf("killed during a handoff: %v", err)
	}
	if _, err := p.Stats(t.Context()); !errors.Is(err, ErrPeerGone) {
		t.Errorf("after it: %v", err)
	}
	if _, err := Start(t.Context(), Options{Command: []string{"/nonexistent/tandem"}}); err == nil {
		t.Error("a program that is not there was started")
	}
	if _, err := Start(t.Context(), Options{Command: []string{os.Args[0], "-test.run=^$"}, Env: []string{peerEnv + "="}, Budget: limit}); !errors.Is(err, ErrPeerGone) {
		t.Errorf("a program that is no peer: %v", err)
	}
}

// A child does not outlive its parent, also when it computes.
func TestPeerLeavesWithItsParent(t *testing.T) {
	for _, busy := range []bool{false, true} {
		p := start(t)
		o := options(t, tiny.Llama)
		o.Cells = 1 << 16
		if _, err := p.Open(t.Context(), o, Transport{PageTokens: 128, Tokens: 2048}); err != nil {
			t.Fatal(err)
		}
		if busy {
			tokens := make([]engine.Token, 60_000)
			for i := range tokens {
				tokens[i] = 65
			}
			if err := writeMessage(p.out, &request{ID: 1 << 40, Within: time.Hour, Prefill: &prefillRequest{Tokens: tokens, Chunk: 128}}); err != nil {
				t.Fatal(err)
			}
		}
		_ = p.stdin.Close() // what the end of this process does
		select {
		case <-p.exited:
			if p.exit != nil {
				t.Errorf("busy %v: %v", busy, p.exit)
			}
		case <-time.After(limit):
			t.Errorf("busy %v: the child stays", busy)
		}
	}
}

// Messages are bounded, and what is not one is refused.
func TestMessages(t *testing.T) {
	long := binary.BigEndian.AppendUint32(nil, MaxMessage+1)
	for _, c := range []struct {
		name string
		in   []byte
		want error
	}{
		{"nothing", nil, io.EOF},
		{"half a length", long[:2], io.ErrUnexpectedEOF},
		{"too long", long, ErrMessage},
		{"empty", make([]byte, 4), ErrMessage},
		{"cut", append(binary.BigEndian.AppendUint32(nil, 9), "{}"...), io.ErrUnexpectedEOF},
		{"no JSON", append(binary.BigEndian.AppendUint32(nil, 2), "xx"...), ErrMessage},
	} {
		var q request
		if err := readMessage(bufio.NewReader(bytes.NewReader(c.in)), &q); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if err := writeMessage(bufio.NewWriter(io.Discard), &request{Abort: strings.Repeat("x", MaxMessage)}); err == nil {
		t.Error("a message over the limit was written")
	}
	var out bytes.Buffer
	if err := Serve(t.Context(), bytes.NewReader(long), &out); !errors.Is(err, ErrMessage) {
		t.Errorf("a parent of another protocol: %v", err)
	}
}

// Errors keep what they are on their way, and nothing else.
func TestRemoteErrors(t *testing.T) {
	err := fmt.Errorf("of a page: %w", &state.Error{Reason: state.ErrOverlap, What: "page", Part: -1, Unit: 3})
	r := remote(err)
	if !errors.Is(r, state.ErrOverlap) || errors.Is(r, state.ErrDigest) || !strings.Contains(r.Error(), "page") {
		t.Errorf("%v", r)
	}
	if r := remote(&wire.Error{Code: wire.ErrTicketUsed}); !errors.Is(r, wire.ErrTicketUsed) || errors.Is(r, wire.ErrTicket) {
		t.Errorf("%v", r)
	}
	if remote(nil) != nil {
		t.Error("no error became one")
	}
}
