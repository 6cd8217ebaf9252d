package wire

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Hosts call methods that start goroutines, such as Unit.Release, while the node closes and after.
func TestSpawnWhileClosing(t *testing.T) {
	var n Node
	stop := make(chan struct{})
	busy := make(chan struct{})
	go func() {
		defer close(busy)
		for {
			select {
			case <-stop:
				return
			default:
				done := make(chan struct{})
				n.spawn(func() { close(done) })
				<-done
			}
		}
	}()
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
		n.crew.wait()
	}
	close(stop)
	<-busy
	n.crew.wait()
}

// full is a listener without descriptors left.
type full struct {
	net.Listener
	calls atomic.Int64
}

func (f *full) Accept() (net.Conn, error) {
	f.calls.Add(1)
	return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
}

// A process without descriptors left does not burn its processor until it has some again.
func TestAcceptWithoutDescriptors(t *testing.T) {
	f := &full{}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	tr := &netTransport{tcp: f, ctx: ctx, shakes: make(chan struct{}, maxHandshakes)}
	tr.acceptTCP(func(lane) {})
	if n := f.calls.Load(); n < 2 || n > 300 {
		t.Errorf("%d attempts in 300 ms", n)
	}
}
