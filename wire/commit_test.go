package wire

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem/state"
)

// finished brings a handoff to where only the commit is missing.
func finished(t *testing.T, a, b *Node, pull bool) *flow {
	t.Helper()
	f := start(t, a, b, pull, false)
	f.rcv.Grant()
	f.put(t, 0, payload(0, 1000))
	f.snd.Finish([]byte("m"))
	f.src.await(t, "sent")
	f.dst.await(t, "manifest")
	return f
}

// The stream or the whole connection is gone when the destination commits: it asks again over a new one, whoever dialled
// before.
func TestCommitSurvives(t *testing.T) {
	for _, pull := range []bool{false, true} {
		for _, what := range []string{"stream", "connection", "answer"} {
			t.Run(mode(pull)+"/"+what, func(t *testing.T) {
				bubble(t, nil, func(t *testing.T, net *memNet, a, b *Node) {
					f := finished(t, a, b, pull)
					switch what {
					case "stream":
						f.rcv.ctl.st.stop()
						synctest.Wait()
					case "connection":
						net.links[0].close(ErrPeerLost, "cut")
						synctest.Wait()
					case "answer": // the commit arrives, its answer is held back
						f.rcv.ctl.st.(*memStream).r.freeze(true)
					}
					if err := f.rcv.Commit(OutcomeActive); err != nil {
						t.Fatal(err)
					}
					if err := f.rcv.Commit(OutcomeActive); err != nil {
						t.Errorf("second Commit: %v", err)
					}
					f.src.await(t, "quiesced")
					f.dst.await(t, "quiesced")
					f.src.check(t)
					f.dst.check(t)
					if f.src.err != nil || f.dst.err != nil || f.src.outcome != OutcomeActive || f.dst.outcome != OutcomeActive {
						t.Errorf("source %v %v, destination %v %v", f.src.err, f.src.outcome, f.dst.err, f.dst.outcome)
					}
				})
			})
		}
	}
}

// Nobody answers: the commit is given up in bounded time, and says so.
func TestCommitUnanswered(t *testing.T) {
	bubble(t, nil, func(t *testing.T, net *memNet, a, b *Node) {
		f := finished(t, a, b, false)
		a.Close()
		synctest.Wait()
		began := time.Now()
		if err := f.rcv.Commit(OutcomeActive); err != nil {
			t.Fatal(err)
		}
		f.dst.failedWith(t, ErrCommit)
		if d := time.Since(began); d > 45*time.Second {
			t.Errorf("gave up after %v", d)
		}
	})
}

// The source answers for handoffs that it let go or never had.
func TestCommitAnswers(t *testing.T) {
	bubble(t, nil, func(t *testing.T, net *memNet, a, b *Node) {
		done := finished(t, a, b, false)
		done.rcv.Commit(OutcomeActive)
		done.dst.await(t, "quiesced")
		aborted := finished(t, a, b, false)
		aborted.snd.Abort("lease over")
		aborted.src.await(t, "quiesced")
		open := start(t, a, b, false, false)
		open.src.await(t, "opened")
		ask := func(f *flow) (Outcome, error) {
			c := commit{newID(), OutcomeActive}
			if f != nil {
				c.handoff = f.b.Handoff
			}
			return b.askCommit(t.Context(), state.Peer{Worker: "source", Incarnation: 1}, c)
		}
		for range 2 {
			if o, err := ask(done); o != OutcomeActive || err != nil {
				t.Errorf("repeated commit: %v, %v", o, err)
			}
		}
		if o, err := ask(aborted); o != OutcomeReleased || err != nil {
			t.Errorf("commit of a released handoff: %v, %v", o, err)
		}
		if o, err := ask(nil); o != OutcomeUnknown || err != nil {
			t.Errorf("commit of an unknown handoff: %v, %v", o, err)
		}
		if _, err := ask(open); err == nil {
			t.Error("commit of a handoff without its state was accepted")
		}
		if open.src.has("committed") {
			t.Error("a source without a manifest is committed")
		}
		done.src.check(t)

		// A source that lets go after everything arrived does not fail the destination, which learns it by its commit.
		synctest.Wait()
		if err := aborted.rcv.Commit(OutcomeActive); err != nil {
			t.Fatal(err)
		}
		aborted.dst.await(t, "quiesced")
		if aborted.dst.err != nil || aborted.dst.outcome != OutcomeReleased {
			t.Errorf("destination %v, %v", aborted.dst.err, aborted.dst.outcome)
		}
	})
}

func TestCommitAfterEnd(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		f := finished(t, a, b, false)
		f.rcv.Abort("activation failed")
		if err := f.rcv.Commit(OutcomeActive); !errors.Is(err, ErrState) {
			t.Errorf("Commit after Abort: %v", err)
		}
		f.src.failedWith(t, ErrCancelled)
	})
}
