package gateway

import (
	"testing"
	"time"
)

// TestRestartedBeforeItAnnounces: a restarted worker may be asked, under its old incarnation, before
// its announcement is here. The request waits for that; it does not use up its attempts.
func TestRestartedBeforeItAnnounces(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		d := r.b.workers["d1"]
		d.mu.Lock()
		d.incarnation++ // without a word
		d.mu.Unlock()
		time.AfterFunc(300*time.Millisecond, d.announce) // sooner than the next beat
		if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText {
			t.Errorf("got %q", got)
		}
		if n := d.count("Reserve"); n != 2 {
			t.Errorf("asked %d times, want once as each incarnation", n)
		}
	})
}
