package gateway

import (
	"crypto/rand"
	"sync"
)

// maxRequestID bounds a client's X-Request-Id.
const maxRequestID = 128

// liveIDs holds the ids of the HTTP requests that are being served, so that a second one with the
// id of a live one is rejected and the first is untouched. Ids are the clients' own: two tenants may
// use the same.
type liveIDs struct {
	mu  sync.Mutex
	ids map[liveID]struct{} // guarded by mu
}

type liveID struct{ tenant, id string }

func newLiveIDs() *liveIDs { return &liveIDs{ids: make(map[liveID]struct{})} }

// claim reserves an id until release is called. It reports false when the id is live.
func (l *liveIDs) claim(tenant, id string) (release func(), ok bool) {
	key := liveID{tenant, id}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, live := l.ids[key]; live {
		return nil, false
	}
	l.ids[key] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.ids, key)
	}, true
}

// validRequestID reports whether a client's id may be used: short, and visible ASCII only, since it
// appears in headers, logs and events.
func validRequestID(id string) bool {
	if len(id) == 0 || len(id) > maxRequestID {
		return false
	}
	for _, c := range []byte(id) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// newID returns a prefix with 128 random bits.
func newID(prefix string) string { return prefix + rand.Text() }
