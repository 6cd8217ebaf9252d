package worker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/engine/llama"
	"github.com/tandem-llm/tandem/engine/llama/blob"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/sample"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

// forger is a source that the test plays: it computes a prompt with a real
// engine, changes what it likes, seals it with correct checksums and digests,
// and pushes it to a real decode worker.
type forger struct {
	l    *lab
	eng  *llama.Engine
	node *wire.Node
	inc  uint64

	prompt []int32
	pages  [][]byte // one per 64 tokens
	snap   []byte
	refs   []state.ComponentRef
	logits []float32
}

const forgedPrompt = 150

func newForger(l *lab, arch tiny.Arch) *forger {
	t := l.t
	t.Helper()
	lib, err := install.Ensure(t.Context(), install.Options{})
	if err != nil {
		t.Fatal(err)
	}
	file, err := tiny.Cached(arch)
	if err != nil {
		t.Fatal(err)
	}
	f := &forger{l: l, inc: uint64(time.Now().UnixNano()), prompt: testPrompt(forgedPrompt)}
	if f.eng, err = llama.Open(llama.Options{Lib: lib.Dir, Model: file, Slots: 4, Cells: 8192, BatchTokens: 64, UBatch: 64, Threads: 1}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.eng.Close() })
	f.node, err = wire.Listen(wire.Config{
		Identity: l.issue(mesh.RoleWorker, "forger"), Incarnation: f.inc, Addr: "127.0.0.1:0", Lane: wire.LaneTLS, // digests cover payloads there
		PageBytes: 1 << 20, LargestUnit: 4 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.node.Close() })
	for first := 0; first < len(f.prompt); first += 64 {
		end := min(first+64, len(f.prompt))
		var rows []engine.Row
		for pos := first; pos < end; pos++ {
			rows = append(rows, engine.Row{Token: f.prompt[pos], Pos: int32(pos), Output: pos == len(f.prompt)-1})
		}
		if err := f.eng.Decode(rows); err != nil {
			t.Fatal(err)
		}
		if f.eng.Paged() {
			page := make([]byte, f.eng.PageBytes(end-first))
			if _, err := f.eng.ExportPage(0, first, end, page); err != nil {
				t.Fatal(err)
			}
			f.pages = append(f.pages, page)
		}
	}
	logits, err := f.eng.Logits((len(f.prompt) - 1) % 64)
	if err != nil {
		t.Fatal(err)
	}
	f.logits = slices.Clone(logits)
	size, err := f.eng.SnapshotBytes(0)
	if err != nil {
		t.Fatal(err)
	}
	if size > 0 {
		f.snap = make([]byte, size)
		n, refs, err := f.eng.ExportSnapshot(0, f.snap)
		if err != nil {
			t.Fatal(err)
		}
		f.snap, f.refs = f.snap[:n], refs
	}
	return f
}

// forgery says what to change.
type forgery struct {
	page     func(i int, payload []byte)
	snapshot func(payload []byte)
	skip     int // page not to send, -1: none
	twice    int // page to send twice, -1: none
	manifest func(m *state.Manifest)
	sampler  func(s *sample.Sampler)
}

func genuine() forgery { return forgery{skip: -1, twice: -1} }

// push sends the state and returns the tokens of the answer, the first included, or
// why the worker refused it.
func (f *forger) push(dst *Worker, with forgery) (tokens []int32, refusal string) {
	t := f.l.t
	t.Helper()
	a := &attempt{id: newID(), source: "forger", dst: dst.cfg.Identity.Name()}
	a.request = "forged-" + a.id.String()
	a.terms = &buspb.Terms{
		Tenant: "t", BudgetMs: 60_000, RemainingMs: 60_000, Policy: buspb.Policy_POLICY_DESTINATION_FIRST,
		Source:      &buspb.Peer{Worker: "forger", Incarnation: f.inc},
		Destination: &buspb.Peer{Worker: a.dst, Incarnation: dst.cfg.Incarnation},
	}
	a.gen = &buspb.Generation{Tokens: f.prompt, MaxTokens: 16}
	reserved := f.l.reserve(a)
	task := &task{id: a.id, request: a.request}
	task.bind(a.terms)
	info := f.eng.Info()
	sealer := state.NewSealer(state.SealerConfig{
		Handoff: a.id, Identity: info.Identity, Inventory: info.Inventory, Codec: state.CodecLlamaSeq,
		Key: state.DeriveKey(reserved.Ticket, task.binding), Limits: state.DefaultLimits(),
	})
	room, ended := make(chan struct{}, 1), make(chan struct{})
	snd, err := f.node.Push(task.binding, endpointOf(reserved.Endpoint), reserved.Ticket, wire.SenderEvents{
		Room: func() {
			select {
			case room <- struct{}{}:
			default:
			}
		},
		Quiesced: func() { close(ended) },
	})
	if err != nil {
		t.Fatal(err)
	}
	refused := false // the worker ended the stream while units were still to come
	send := func(seal func([]byte) (state.UnitHeader, error), payload []byte) {
		for !refused {
			buf, ok := snd.Buffer(len(payload))
			if ok {
				copy(buf.Bytes, payload)
				h, err := seal(buf.Bytes)
				if err != nil {
					t.Fatal(err)
				}
				_ = snd.Send(h, buf) // fails once the worker has refused an earlier unit
				return
			}
			select {
			case <-room:
			case <-ended:
				refused = true
			case <-time.After(limit):
				t.Fatal("no room on the stream")
			}
		}
	}
	hasSnapshot := len(f.snap) > 0
	for i, genuine := range f.pages {
		if i == with.skip {
			continue
		}
		payload := slices.Clone(genuine)
		if with.page != nil {
			with.page(i, payload)
		}
		first, end := uint32(i*64), uint32(min(i*64+64, len(f.prompt)))
		seal := func(b []byte) (state.UnitHeader, error) {
			return sealer.Page(state.AttentionKV, state.Range{First: first, End: end}, end == forgedPrompt && !hasSnapshot, b)
		}
		send(seal, payload)
		if i == with.twice {
			send(seal, payload)
		}
	}
	if hasSnapshot {
		payload := slices.Clone(f.snap)
		if with.snapshot != nil {
			with.snapshot(payload)
		}
		send(func(b []byte) (state.UnitHeader, error) { return sealer.Snapshot(forgedPrompt, true, b, f.refs) }, payload)
	}
	params := samplingParams(&buspb.Generation{Sampling: &buspb.Sampling{Temperature: 1.2, Seed: 11, RepetitionPenalty: 1.5, FrequencyPenalty: 1.5}})
	gen, err := newGeneration(f.eng.Vocab(), state.Generation{MaxTokens: 16, IgnoreEOS: true}, params, slices.Clone(f.prompt), 0, 8192)
	if err != nil {
		t.Fatal(err)
	}
	first, err := gen.next(f.logits)
	if err != nil {
		t.Fatal(err)
	}
	if with.sampler != nil {
		with.sampler(gen.sampler)
	}
	raw, err := gen.sampler.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	m := &state.Manifest{
		Binding: task.binding, Parts: 1, History: gen.history, Position: forgedPrompt, First: gen.first(first),
		Generation: gen.params, Sampler: raw, Usage: state.Usage{Prompt: forgedPrompt, Computed: forgedPrompt},
		MTP: state.MTP{Reason: "not built"},
	}
	if with.manifest != nil {
		with.manifest(m)
	}
	if !refused {
		sealed, err := sealer.Manifest(m)
		if err != nil { // already the source's own checks refuse it
			snd.Abort("test over")
			<-ended
			f.l.released(a.id, buspb.Side_SIDE_DESTINATION)
			return nil, "sealer: " + err.Error()
		}
		_ = snd.Finish(sealed)
	}
	ends := f.l.await(a.id, "the end", func(s *buspb.Status) bool { return s.GetEnded() != nil }).GetEnded()
	f.l.released(a.id, buspb.Side_SIDE_DESTINATION)
	snd.Abort("test over")
	<-ended
	if ends.Outcome != buspb.Outcome_OUTCOME_COMPLETED {
		return nil, ends.Message
	}
	f.l.mu.Lock()
	defer f.l.mu.Unlock()
	for _, s := range f.l.statuses[a.id] {
		for _, tok := range s.GetTokens().GetTokens() {
			tokens = append(tokens, tok.Id)
		}
	}
	return tokens, ""
}

// flip changes every number of a region by a sign, which keeps all of them
// finite.
func flip(payload []byte, r blob.Region) {
	width := 2
	if r.Type == blob.F32 {
		width = 4
	}
	for i := r.Offset + width - 1; i < r.Offset+r.Length; i += width {
		payload[i] ^= 0x80
	}
}

// TestEveryComponentMatters: whatever part of the state is changed, with
// checksums and digests recomputed so that it reaches the engine, the answer
// changes or the state is refused with a reason. A component whose damage goes
// unnoticed would be one that is not really moved.
func TestEveryComponentMatters(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			l := newLab(t)
			dst := l.worker("d", RoleDecode, arch, nil)
			f := newForger(l, arch)
			want, refusal := f.push(dst, genuine())
			if refusal != "" || len(want) != 16 {
				t.Fatalf("the genuine state gave %d tokens, refusal %q", len(want), refusal)
			}
			if again, _ := f.push(dst, genuine()); !slices.Equal(again, want) {
				t.Fatal("the genuine state gives another answer the second time")
			}
			matters := func(name string, with forgery) {
				t.Helper()
				got, refusal := f.push(dst, with)
				switch {
				case refusal == "" && slices.Equal(got, want):
					t.Errorf("%s: changed, and nobody noticed", name)
				case refusal != "":
					t.Logf("%s: refused: %s", name, refusal)
				}
			}
			refused := func(name, reason string, with forgery) {
				t.Helper()
				got, refusal := f.push(dst, with)
				if !strings.Contains(refusal, reason) || refusal == "" {
					t.Errorf("%s: gave %d tokens, refusal %q, want one that says %q", name, len(got), refusal, reason)
				}
			}
			schema := f.eng.Schema()
			if len(f.pages) > 0 {
				for _, r := range schema.PageRegions(64) {
					with := genuine()
					with.page = func(i int, b []byte) {
						if i == 0 {
							flip(b, r)
						}
					}
					matters(fmt.Sprintf("%s layer %d %s", r.Kind, r.Layer, r.Part), with)
				}
				with := genuine()
				with.page = func(i int, b []byte) {
					if i == 1 {
						for _, r := range schema.PageRegions(64) {
							clear(b[r.Offset : r.Offset+r.Length])
						}
					}
				}
				matters("one whole page", with)
				with = genuine()
				with.skip = 1
				refused("a page left out", "", with)
				with = genuine()
				with.twice = 0
				refused("a page sent twice", "", with)
				with = genuine()
				with.page = func(i int, b []byte) {
					if i == 0 {
						b[16], b[16+12] = b[16+12], b[16] // the positions of the first two cells
						b[16]++
					}
				}
				refused("positions", "position", with)
				with = genuine()
				with.page = func(i int, b []byte) {
					if r := schema.PageRegions(64)[0]; i == 0 {
						b[r.Offset], b[r.Offset+1] = 0xff, 0x7f
					}
				}
				refused("a number that is not one", "NaN", with)
			}
			if len(f.snap) > 0 {
				window := 0
				if schema.Memory.Window() {
					for n := 1; n <= forgedPrompt; n++ {
						if schema.SnapshotBytes(n) == len(f.snap) {
							window = n
						}
					}
				}
				for _, r := range schema.SnapshotRegions(window) {
					with := genuine()
					with.snapshot = func(b []byte) { flip(b, r) }
					matters(fmt.Sprintf("%s layer %d %s", r.Kind, r.Layer, r.Part), with)
					with = genuine()
					with.snapshot = func(b []byte) { copy(b[r.Offset:], []byte{0xff, 0xff, 0xff, 0x7f}) }
					refused(fmt.Sprintf("%s layer %d %s: a number that is not one", r.Kind, r.Layer, r.Part), "NaN", with)
				}
			}
			with := genuine()
			with.manifest = func(m *state.Manifest) { m.Position-- }
			refused("position", "", with)
			with = genuine()
			with.manifest = func(m *state.Manifest) { m.History[len(m.History)-1] ^= 1 }
			matters("first token", with)
			with = genuine()
			with.manifest = func(m *state.Manifest) { m.Sampler = m.Sampler[:len(m.Sampler)-1] }
			refused("a truncated sampler", "sample", with)
			with = genuine()
			with.sampler = func(s *sample.Sampler) { _ = s.Accept(5) }
			matters("sampler counter", with)
			with = genuine()
			with.manifest = func(m *state.Manifest) { m.Binding.Tenant = "other" }
			refused("another tenant's binding", "binding", with)
			with = genuine()
			with.manifest = func(m *state.Manifest) { m.Binding.Handoff = handoff.ID{1} }
			refused("another handoff's binding", "", with)

			if again, _ := f.push(dst, genuine()); !slices.Equal(again, want) {
				t.Error("after all forgeries the genuine state gives another answer")
			}
			l.idle(dst)
		})
	}
}
