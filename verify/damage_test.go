package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/llama/blob"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/pair"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

// open returns a runner that is ready for import cells of one shape.
func openRunner(t *testing.T, arch tiny.Arch) (*runner, Params) {
	t.Helper()
	o := options(t, arch)
	o.Match = "^512/f16/chunk 64/page 64/in order/tls/alone$"
	o, err := o.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{o: o, ctx: t.Context(), unopened: map[group]error{}}
	if err := r.plan(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.ctx = context.Background()
		_ = r.close()
	})
	list := r.cells.running()
	if len(list) != 1 {
		t.Fatalf("%d cells match", len(list))
	}
	return r, *r.report.Cells[list[0]].Params
}

// regions are the tensors of a unit of 64 tokens, one for each component and part.
func regions(r *runner, unit int) []blob.Region {
	var list, out []blob.Region
	if unit == pair.Snapshot {
		list = r.sourceEngine.Schema().SnapshotRegions(r.windowCells(r.ref.exports[64]))
	} else if r.sourceEngine.Paged() {
		list = r.sourceEngine.Schema().PageRegions(64)
	}
	seen := map[string]bool{}
	for _, g := range list {
		if name := fmt.Sprint(g.Kind, g.Part); !seen[name] {
			seen[name] = true
			out = append(out, g)
		}
	}
	return out
}

// bit flips the highest bit of the fraction of one number in the middle of a tensor: it stays finite and
// changes by a third or so.
func bit(b []byte, g blob.Region) {
	if g.Type == blob.F32 {
		b[g.Offset+g.Length/8*4+2] ^= 0x40
		return
	}
	b[g.Offset+g.Length/4*2+1] ^= 0x02 // f16
}

// signs flips the sign of every number of a tensor.
func signs(b []byte, g blob.Region) {
	width := 2
	if g.Type == blob.F32 {
		width = 4
	}
	for i := g.Offset + width - 1; i < g.Offset+g.Length; i += width {
		b[i] ^= 0x80
	}
}

// Damage that is sealed correctly, so that no checksum and no digest of the transport sees it, is caught: by the
// state, and by logits and tokens alone where the gate does not look at the state.
func TestSealedDamageIsCaught(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			r, p := openRunner(t, arch)
			run := func(p Params, blind bool, d *pair.Damage) (Result, string) {
				t.Helper()
				r.o.blind, r.o.damage = blind, func(*runner, Params) *pair.Damage { return d }
				c := Result{Kind: KindImport, Params: &p}
				if err := r.cell(&c); err != nil {
					c.Status, c.Reason = Failed, err.Error()
				}
				return c, c.Reason
			}
			good := func(when string) {
				t.Helper()
				if c, why := run(p, false, nil); c.Status != Passed {
					t.Fatalf("%s: without damage the cell is %s: %s", when, c.Status, why)
				}
			}
			good("before")
			caught := func(name, by string, blind bool, d *pair.Damage) {
				t.Helper()
				for _, placement := range []Placement{Alone, Neighbours} {
					p.Placement = placement
					if c, why := run(p, blind, d); c.Status != Failed || !strings.Contains(why, by) {
						t.Errorf("%s, %s, blind %v: %s: %q, want one that says %q", name, placement, blind, c.Status, why, by)
					}
				}
				p.Placement = Alone
			}
			const held, bits = "re-exported", "logits"
			for _, unit := range []int{1, pair.Snapshot} {
				for _, g := range regions(r, unit) {
					name := fmt.Sprintf("%v %v", g.Kind, g.Part)
					payload := func(change func([]byte, blob.Region)) *pair.Damage {
						return &pair.Damage{Payload: func(u int, b []byte) {
							if u == unit {
								change(b, g)
							}
						}}
					}
					caught(name+": one bit", held, false, payload(bit))
					caught(name+": all signs", bits, true, payload(signs))
					row := g.Length / 64
					if unit == pair.Snapshot {
						continue
					}
					caught(name+": two tokens change places", held, false, payload(func(b []byte, g blob.Region) {
						for i := range row {
							x, y := g.Offset+i, g.Offset+row+i
							b[x], b[y] = b[y], b[x]
						}
					}))
				}
			}
			if r.sourceEngine.Paged() {
				pages := r.ref.exports[64].Pages
				caught("positions shifted by one", "position", false, &pair.Damage{Payload: func(u int, b []byte) {
					if u == 1 {
						for i := range 64 {
							at := b[16+12*i:]
							binary.LittleEndian.PutUint32(at, binary.LittleEndian.Uint32(at)+1)
						}
					}
				}})
				caught("two pages change places", "position", false, &pair.Damage{Payload: func(u int, b []byte) {
					if u == 1 || u == 2 {
						copy(b, pages[3-u].Payload)
					}
				}})
			}
			caught("first token", "", false, &pair.Damage{First: func(t engine.Token) engine.Token { return t ^ 1 }})
			good("after")
		})
	}
}

// In a source-first cell the destination comes with the ticket, and its state is compared as in any other.
func TestSourceFirst(t *testing.T) {
	r, p := openRunner(t, tiny.Llama)
	p.SourceFirst = true
	if c, err := r.cellStatus(p); err != nil || c.Status != Passed || !c.Compared.Controlled {
		t.Fatalf("%+v, %v", c, err)
	}
	r.o.damage = func(*runner, Params) *pair.Damage {
		return &pair.Damage{Come: func(_ *state.Binding, ticket *[]byte) { (*ticket)[0] ^= 1 }}
	}
	_, err := r.cellStatus(p)
	if both := (*pair.HandoffError)(nil); !errors.As(err, &both) || both.Source != nil || !errors.Is(both.Destination, wire.ErrTicket) {
		t.Errorf("a wrong ticket: %v", err)
	}
	r.o.damage = func(r *runner, _ Params) *pair.Damage {
		return &pair.Damage{Payload: func(u int, b []byte) {
			if u == 1 {
				bit(b, r.sourceEngine.Schema().PageRegions(64)[0])
			}
		}}
	}
	if _, err := r.cellStatus(p); err == nil || !strings.Contains(err.Error(), "re-exported") {
		t.Errorf("one bit of a page: %v", err)
	}
}

// A control run that gives other bits does not explain anything.
func TestControlMustAgree(t *testing.T) {
	r, p := openRunner(t, tiny.Llama)
	p.Placement = Busy
	c := Result{Kind: KindImport, Params: &p}
	if err := r.cell(&c); err != nil || c.Compared.Control != "equal" {
		t.Fatalf("%v, %+v", err, c.Compared)
	}
	// A control run beside other neighbours is another layout.
	layout := p.layout(r.o.Seed)
	layout.NeighbourTokens++
	if err := r.peer.Place(r.ctx, p.layout(r.o.Seed)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.peer.Send(r.ctx, pair.Sending{Export: r.ref.exports[64]}); err != nil {
		t.Fatal(err)
	}
	got, err := r.peer.Continue(r.ctx, r.o.Steps)
	if err != nil {
		t.Fatal(err)
	}
	after, err := r.peer.State(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	c.Compared.BitEqual, c.Compared.Tokens = sameBits(r.ref.steps, got), sameTokens(r.ref.steps, got)
	got[len(got)-1].Logits[0] ^= 1
	if err := r.judge(p, r.ref, p.layout(r.o.Seed), nil, got, after, &c); err == nil || !strings.Contains(err.Error(), "does not explain") {
		t.Errorf("one bit that the control run has not: %v", err)
	}
}

// Where a token differs under load and the control run has the same bits, the cell is explained; alone the same
// difference is a failure.
func TestDivergence(t *testing.T) {
	r, p := openRunner(t, tiny.Llama)
	if _, err := r.cellStatus(p); err != nil {
		t.Fatal(err)
	}
	r.ref.steps[3].Token ^= 1
	r.ref.steps[3].Logits[0] ^= 1
	if c, err := r.cellStatus(p); err == nil || !strings.Contains(err.Error(), "token 3 differs") {
		t.Errorf("alone: %v, %v", c.Status, err)
	}
	p.Placement = Busy
	c, err := r.cellStatus(p)
	if err != nil || c.Status != Explained || c.Compared.Control != "equal" || c.Compared.Tokens != 3 || !strings.Contains(c.Reason, "token 3") {
		t.Errorf("busy: %+v, %+v, %v", c, c.Compared, err)
	}
}

func (r *runner) cellStatus(p Params) (Result, error) {
	c := Result{Kind: KindImport, Params: &p}
	err := r.cell(&c)
	return c, err
}

// A refusal cell fails when nobody refuses, when somebody else or something else is blamed, and when the next
// handoff does not bring the right state.
func TestRefusalCellsNotice(t *testing.T) {
	r, _ := openRunner(t, tiny.NemotronHMoE)
	good := Result{Name: "refusal/tls/payload: one bit", Kind: KindRefusal}
	if err := r.cell(&good); err != nil || good.Status != Passed {
		t.Fatal(err)
	}
	none := func(*refuser) *pair.Damage { return &pair.Damage{} }
	wrong := func(*refuser) *pair.Damage {
		return &pair.Damage{Come: func(_ *state.Binding, ticket *[]byte) { (*ticket)[0] ^= 1 }}
	}
	for _, c := range []struct {
		name, want string
		d          damaged
	}{
		{"not refused", "not refused", damaged{damage: none}},
		{"other source error", "the source says", damaged{damage: wrong, source: []error{wire.ErrStale}}},
		{"other destination error", "the destination says", damaged{damage: wrong, destination: []error{state.ErrDigest}}},
	} {
		if err := r.refuse(&c.d, wire.LaneTLS, &Result{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := r.peer.Clear(r.ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.refuse(&damaged{damage: none, pull: true}, wire.LaneTLS, &Result{}); err == nil || !strings.Contains(err.Error(), "not refused") {
		t.Errorf("pulled: not refused: %v", err)
	}
	if err := r.peer.Clear(r.ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.refuse(&damaged{damage: wrong, pull: true, destination: []error{wire.ErrTicket}}, wire.LaneTLS, &Result{}); err != nil {
		t.Errorf("pulled: it is not the destination that is refused: %v", err)
	}
	r.refuser.state.Digest[0] ^= 1
	if err := r.refuse(&damaged{damage: wrong}, wire.LaneTLS, &Result{}); err == nil || !strings.Contains(err.Error(), "another state") {
		t.Errorf("another state in the next handoff: %v", err)
	}
}
