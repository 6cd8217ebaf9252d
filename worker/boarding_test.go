package worker

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/model/tiny"
)

// hooked tells when an export asks for a page's size.
type hooked struct {
	engine.Engine
	asked atomic.Pointer[func()]
}

func (e *hooked) PageBytes(tokens int) int {
	if f := e.asked.Load(); f != nil {
		(*f)()
	}
	return e.Engine.PageBytes(tokens)
}

// A stream that gets its place on a lane while the owner is about to export completes: what the digests
// cover is decided when the lane is known, not before.
func TestExportWhileBoarding(t *testing.T) {
	l := newLab(t)
	eng := &hooked{}
	source := l.worker("p", RolePrefill, tiny.Llama, func(c *Config) {
		eng.Engine = c.Engine
		c.Engine = eng
	})
	dst := l.worker("d", RoleDecode, tiny.Llama, nil)
	a := l.attempt(source, dst, testPrompt(200), 8)
	r := l.reserve(a)
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	t.Cleanup(release)
	dst.box.post(func() { <-held }) // no credit, and so no lane, before the export began
	wait := func() {                // on the source's owner's goroutine
		release()
		if tk := source.tasks[a.id]; tk != nil && tk.snd != nil && tk.snd.snd != nil {
			for end := time.Now().Add(limit); !tk.snd.snd.Local() && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
		}
	}
	eng.asked.Store(&wait)
	if r := l.command(a.source, a.prefillCommand(r)); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
		t.Fatalf("prefill: %v", r)
	}
	if o := l.released(a.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_COMPLETED {
		t.Errorf("the destination ended as %v", o)
	}
	if o := l.released(a.id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_HANDED_OFF {
		t.Errorf("the source ended as %v", o)
	}
	l.idle(source)
	l.idle(dst)
}
