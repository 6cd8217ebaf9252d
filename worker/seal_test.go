package worker

import (
	"sync"
	"testing"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/wire"
)

// TestManifestNeedsNoOwner: once the last unit left the engine, a handoff completes
// although the source's owner computes something else for as long as it likes.
func TestManifestNeedsNoOwner(t *testing.T) {
	l := newLab(t)
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	var source *Worker
	var id handoff.ID
	// hold keeps the owner busy from when the snapshot is queued.
	var hold func()
	hold = func() {
		if tk := source.tasks[id]; tk == nil || tk.m.snapshots > 0 {
			<-held
			return
		}
		source.box.post(hold)
	}
	source = l.worker("p", RolePrefill, tiny.NemotronHMoE, func(c *Config) {
		c.Wire.Lane = wire.LaneTLS // the lane of one host hashes nothing
		c.StateChecked = func(string, telemetry.Side, []byte) { source.box.post(hold) }
	})
	dst := l.worker("d", RoleDecode, tiny.NemotronHMoE, func(c *Config) { c.Wire.Lane = wire.LaneTLS })
	t.Cleanup(release) // before the workers are stopped, also when it fails
	a := l.attempt(source, dst, testPrompt(200), 8)
	id = a.id
	if r := l.command(a.source, a.prefillCommand(l.reserve(a))); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
		t.Fatalf("prefill: %v", r)
	}
	l.await(id, "the commit while the source's owner is busy", func(s *buspb.Status) bool { return s.GetCommitted() != nil })
	release()
	if o := l.released(id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_HANDED_OFF {
		t.Errorf("the source ended as %v", o)
	}
	l.idle(source)
	l.idle(dst)
}
