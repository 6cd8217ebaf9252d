package wire

import (
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
