package gateway

import (
	"sync"

	"github.com/tandem-llm/tandem/api/openai"
)

// outbox is the bounded buffer between the samples of one HTTP request, which must never wait, and
// the connection, which may be slow. When it is full the client is too slow, and put says so.
type outbox struct {
	wake  chan struct{} // has capacity 1; a token in it means: look again
	limit int           // bytes

	mu    sync.Mutex
	parts []openai.Delta // guarded by mu
	size  int            // bytes of parts; guarded by mu
	ends  []ending       // guarded by mu; at most one for each sample
}

// ending is the end of one sample.
type ending struct {
	index  int
	finish string        // a finish reason, or empty when err is set
	err    *openai.Error // what the client is told
	tokens int           // completion tokens
	prompt promptUsage
}

// promptUsage is what a worker said about a sample's prompt.
type promptUsage struct {
	prompt, cached int
}

func newOutbox(limit int) *outbox {
	return &outbox{wake: make(chan struct{}, 1), limit: limit}
}

// put appends a part and reports whether there was room for it.
func (o *outbox) put(d openai.Delta) bool {
	o.mu.Lock()
	// What a log probability takes is bounded; its exact size does not matter.
	size := len(d.Text) + 64
	for _, l := range d.Logprobs {
		size += 64 * (1 + len(l.Top))
	}
	if o.size+size > o.limit {
		o.mu.Unlock()
		return false
	}
	o.size += size
	o.parts = append(o.parts, d)
	o.mu.Unlock()
	o.signal()
	return true
}

// end says that a sample has ended. It is called once for each sample, after its last part.
func (o *outbox) end(e ending) {
	o.mu.Lock()
	o.ends = append(o.ends, e)
	o.mu.Unlock()
	o.signal()
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// taken is what was in an outbox.
type taken struct {
	parts []openai.Delta
	ends  []ending
}

// take replaces what is in t by everything that was put, in order. t is reused by turns: it must be the
// same one each time.
func (o *outbox) take(t *taken) {
	clear(t.parts)
	o.mu.Lock()
	defer o.mu.Unlock()
	t.parts, o.parts = o.parts, t.parts[:0]
	t.ends, o.ends = o.ends, t.ends[:0]
	o.size = 0
}
