package worker

import (
	"testing"
	"time"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/telemetry"
)

func TestWorkJoinsNeighbours(t *testing.T) {
	for n := 1; n <= 100; n++ {
		var k work
		for i := range n {
			begin := time.Duration(i * 10)
			k.add(begin, begin+time.Duration(1+i%3))
		}
		var busy, last time.Duration
		for _, s := range k.spans[:k.n] {
			if s.Begin < last || s.End < s.Begin || s.Busy > s.End-s.Begin {
				t.Fatalf("%d pieces: bad stretch %+v after %v", n, s, last)
			}
			busy, last = busy+s.Busy, s.End
		}
		if k.count != uint32(n) || busy != k.busy || k.spans[0].Begin != 0 || last != time.Duration((n-1)*10+1+(n-1)%3) {
			t.Fatalf("%d pieces: %+v", n, k)
		}
		if n > telemetry.MaxSpans && k.n < telemetry.MaxSpans/2 {
			t.Fatalf("%d pieces left %d stretches", n, k.n)
		}
	}
}

// TestMeasuringAllocatesNothing: what is noted for each page and step must not cost
// garbage.
func TestMeasuringAllocatesNothing(t *testing.T) {
	tk := &task{}
	w := &Worker{epoch: time.Now()}
	if n := testing.AllocsPerRun(1000, func() {
		w.refusedRoom(tk)
		w.tookRoom(tk, w.now())
		w.exported(tk, w.now(), w.now())
		w.imported(tk, w.now(), w.now(), w.now())
		tk.m.carried(state.Recurrent, 7)
		tk.m.fact(1, w.now())
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// checkAttribution compares what both workers of a finished handoff measured with
// what must be so whatever the machine does meanwhile.
func (l *lab) checkAttribution(a *attempt, eng engine.Info, paged bool) {
	l.t.Helper()
	ended := func(side buspb.Side) *buspb.Attribution {
		return l.await(a.id, "the end", func(s *buspb.Status) bool { return s.Side == side && s.GetEnded() != nil }).GetEnded().Attribution
	}
	src, dst := ended(buspb.Side_SIDE_SOURCE), ended(buspb.Side_SIDE_DESTINATION)
	early := l.await(a.id, "the commit", func(s *buspb.Status) bool { return s.GetCommitted() != nil }).GetCommitted().Attribution
	if early.GetReadyNs() == 0 || early.GetReadyNs() != dst.GetReadyNs() || early.GetDecode() != nil {
		l.t.Errorf("with the commit came %v", early)
	}

	ordered := func(what string, times ...uint64) {
		l.t.Helper()
		for i, at := range times {
			if at == 0 || i > 0 && at < times[i-1] {
				l.t.Errorf("%s are not in order: %v", what, times)
				return
			}
		}
	}
	ordered("source times", src.SlotNs, src.PromptedNs, src.SentNs, src.CommittedNs, src.NowNs)
	ordered("stream of the source", src.OpenedNs, src.GrantedNs, src.SentNs)
	ordered("destination times", dst.SlotNs, dst.OpenedNs, dst.GrantedNs, dst.CompleteNs, dst.ReadyNs, dst.NowNs)
	ordered("commit", dst.CompleteNs, dst.Commit.GetSpans()[0].EndNs, dst.ReadyNs, dst.Decode.GetSpans()[0].EndNs, dst.NowNs)

	pages, snapshots := 0, 0
	if paged {
		pages = 4 // 200 tokens in pages of 64
	}
	if eng.Inventory.Snapshot() {
		snapshots = 1
	}
	for side, p := range map[string]*buspb.Attribution{"source": src, "destination": dst} {
		if int(p.Pages) != pages || int(p.Snapshots) != snapshots || p.PromptTokens != 200 || p.Stream.GetUnits() != uint32(pages+snapshots) {
			l.t.Errorf("%s: %d pages, %d snapshots, %d tokens, %d units", side, p.Pages, p.Snapshots, p.PromptTokens, p.Stream.GetUnits())
		}
		var bytes uint64
		for _, c := range p.Components {
			bytes += c.Bytes
		}
		// A snapshot has a few bytes of structure that belong to no component.
		if sent := p.Stream.GetBytes(); bytes == 0 || bytes > sent || sent-bytes > 1<<14 {
			l.t.Errorf("%s: %d bytes of components, %d on the wire", side, bytes, sent)
		}
		if lane := telemetry.LaneName(p.Stream.GetLane()); lane == "none" || lane == "other" || p.Stream.GetBusyNs() == 0 || p.Mtp.GetActive() || p.Mtp.GetReason() == "" {
			l.t.Errorf("%s: stream %v, MTP %v", side, p.Stream, p.Mtp)
		}
	}
	units := uint32(pages + snapshots)
	for what, k := range map[string]*buspb.Work{
		"export": src.Export, "seal": src.Seal, "verify": dst.Verify, "wait": dst.Wait, "import": dst.Import,
	} {
		if k.GetCount() != units || k.GetBusyNs() == 0 {
			l.t.Errorf("%s: %v, want %d pieces", what, k, units)
		}
	}
	if src.Compute.GetCount() != 4 || src.ComputedTokens != 200 || dst.ComputedTokens == 0 || src.Compute.GetSpans()[0].BeginNs < src.SlotNs {
		l.t.Errorf("computed: %v, %d tokens at the source and %d at the destination", src.Compute, src.ComputedTokens, dst.ComputedTokens)
	}
	// The last page and the snapshot leave when the prompt is done, so that is never all.
	if src.BeforeSentBytes >= src.Stream.GetBytes() || src.BeforeExportNs > src.Export.GetBusyNs()+src.Seal.GetBusyNs() {
		l.t.Errorf("before the end of prefill: %d of %d bytes, %d ns of export", src.BeforeSentBytes, src.Stream.GetBytes(), src.BeforeExportNs)
	}
}

// BenchmarkMeasuringUnit is what attribution costs a source and a destination for each
// unit, beside the clock readings that the metrics had before.
func BenchmarkMeasuringUnit(b *testing.B) {
	tk := &task{}
	w := &Worker{epoch: time.Now()}
	b.ReportAllocs()
	for b.Loop() {
		now := w.now()
		w.tookRoom(tk, now)
		w.exported(tk, now, w.now())
		w.imported(tk, now, w.now(), w.now())
		tk.m.carried(state.AttentionKV, 1)
	}
}
