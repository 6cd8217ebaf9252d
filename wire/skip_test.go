package wire

import (
	"errors"
	"testing"
)

// A destination that pulls says what it has already, and a handoff without any unit is one.
func TestPullSkip(t *testing.T) {
	for _, skip := range []uint32{0, 512, maxTokens} {
		bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
			f := &flow{b: binding(a, b), src: newWatcher(), dst: newWatcher()}
			told := make(chan uint32, 1)
			ev := f.src.sender()
			ev.Open = func(skip uint32) error {
				told <- skip
				return nil
			}
			var err error
			if f.snd, err = a.Offer(f.b, ev); err != nil {
				t.Fatal(err)
			}
			if f.rcv, err = b.Pull(f.b, a.Endpoint(), f.snd.Ticket(), skip, f.dst.receiver()); err != nil {
				t.Fatal(err)
			}
			f.run(t)
			if got := <-told; got != skip {
				t.Errorf("the source was told %d tokens, expected %d", got, skip)
			}
		})
	}
}

func TestSkipRefused(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		bd := binding(a, b)
		if _, err := b.Pull(bd, a.Endpoint(), newTicket(), maxTokens+1, ReceiverEvents{}); !errors.Is(err, ErrConfig) {
			t.Errorf("more tokens than a sequence has: %v", err)
		}
	})
	for name, o := range map[string]open{
		"a source that skips":            {handoff: newID(), send: true, skip: 64},
		"more than a sequence may count": {handoff: newID(), skip: maxTokens + 1},
	} {
		if _, err := decodeOpen(o.encode()[msgHeaderSize:]); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
