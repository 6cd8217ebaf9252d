package bus_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/state"
)

func TestCompatible(t *testing.T) {
	identity := func(edit func(*state.Identity)) []byte {
		id := state.Identity{
			Schema: state.SchemaVersion, Weights: state.Digest{1}, Tokenizer: state.Digest{2}, Architecture: "llama", Layers: 4,
			KVTypeK: state.F16, KVTypeV: state.F16, FlashAttention: true, EngineBuild: "engine 1", EngineState: 1, Endian: state.LittleEndian,
		}
		if edit != nil {
			edit(&id)
		}
		return id.Encode()
	}
	for _, tc := range []struct {
		name  string
		edit  func(*buspb.Registration)
		field string // empty: compatible
	}{
		{"equal", func(*buspb.Registration) {}, ""},
		{"other load, role and name", func(r *buspb.Registration) { r.Role, r.SlotsFree, r.Backend, r.Threads = "prefill", 3, "GPU", 64 }, ""},
		{"unknown capability", func(r *buspb.Registration) { r.Capabilities = append(r.Capabilities, "telepathy/3") }, ""},
		{"wider schema range", func(r *buspb.Registration) { r.SchemaMax = 9 }, ""},
		{"overlapping schema range", func(r *buspb.Registration) { r.SchemaMin, r.SchemaMax = 2, 4 }, ""},
		{"newer schema only", func(r *buspb.Registration) { r.SchemaMin, r.SchemaMax = 3, 4 }, "schema"},
		{"no capability", func(r *buspb.Registration) { r.Capabilities = nil }, "capability"},
		{"other version of the capability", func(r *buspb.Registration) { r.Capabilities = []string{"handoff/2"} }, "capability"},
		{"cannot leave", func(r *buspb.Registration) { r.ColocatedOnly = "no page export" }, "colocated_only"},
		{"other weights", func(r *buspb.Registration) {
			r.Identity = identity(func(id *state.Identity) { id.Weights[5] = 1 })
		}, "identity.weights"},
		{"other KV type", func(r *buspb.Registration) {
			r.Identity = identity(func(id *state.Identity) { id.KVTypeV = state.BF16 })
		}, "identity.kv_type_v"},
		{"other build", func(r *buspb.Registration) {
			r.Identity = identity(func(id *state.Identity) { id.EngineBuild = "engine 2" })
		}, "identity.engine_build"},
		{"garbage", func(r *buspb.Registration) { r.Identity = []byte("garbage") }, "identity"},
		{"no identity", func(r *buspb.Registration) { r.Identity = nil }, "identity"},
		{"everything: identity is named first", func(r *buspb.Registration) {
			r.Identity = identity(func(id *state.Identity) { id.Layers = 5 })
			r.Capabilities, r.SchemaMin, r.SchemaMax = nil, 8, 9
		}, "identity.layers"},
		{"schema is named before capability", func(r *buspb.Registration) { r.Capabilities, r.SchemaMin, r.SchemaMax = nil, 8, 9 }, "schema"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := announced("a", 1, 1), announced("b", 1, 1)
			a.Identity, b.Identity = identity(nil), identity(nil)
			a.SchemaMax, b.SchemaMax = 2, 2
			tc.edit(b)
			for _, pair := range [][2]*buspb.Registration{{a, b}, {b, a}} {
				err := bus.Compatible(pair[0], pair[1])
				var inc *bus.IncompatibleError
				switch {
				case tc.field == "" && err != nil:
					t.Errorf("refused: %v", err)
				case tc.field != "" && !errors.As(err, &inc):
					t.Errorf("%v, want an IncompatibleError about %s", err, tc.field)
				case tc.field != "" && inc.Field != tc.field:
					t.Errorf("%s is named first, want %s", inc.Field, tc.field)
				case tc.field != "" && !strings.HasPrefix(err.Error(), "bus: "):
					t.Errorf("text %q", err)
				}
			}
		})
	}
	// Two workers of a later release whose identities this release cannot read, but which are the same bytes.
	a, b := announced("a", 1, 1), announced("b", 1, 1)
	a.Identity, b.Identity = []byte("of a later release"), []byte("of a later release")
	if err := bus.Compatible(a, b); err != nil {
		t.Error(err)
	}
	if bus.Compatible(a, nil) == nil || bus.Compatible(&buspb.Registration{}, &buspb.Registration{}) == nil {
		t.Error("nothing is compatible with nobody")
	}
}
