package verify

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/pair"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

// refusals lists all refusal cells. Building it costs nothing.
func refusals() []damaged {
	return slices.Concat(mismatches(), headers(), payloads(), sequences(), tickets(), cancels(), pulls())
}

// told is what a source hears whose destination refuses what it got.
var told = []error{wire.ErrCancelled}

// mismatches: another model, tokenizer, schema, KV type, layer range or build, noticed before the handoff by
// what the source says it is, and, where a source lies about that, by what its units carry.
func mismatches() []damaged {
	var list []damaged
	for _, m := range []struct {
		name   string
		change func(*state.Identity)
	}{
		{"model", func(id *state.Identity) { id.Weights[0] ^= 1 }},
		{"tokenizer", func(id *state.Identity) { id.Tokenizer[31] ^= 1 }},
		{"schema", func(id *state.Identity) { id.Schema++ }},
		{"KV type", func(id *state.Identity) {
			if id.KVTypeK = state.BF16; id.KVTypeV == state.BF16 {
				id.KVTypeK = state.F16
			}
		}},
		{"layer range", func(id *state.Identity) { id.Layers++ }},
		{"engine build", func(id *state.Identity) { id.EngineBuild += "+1" }},
	} {
		list = append(list,
			damaged{
				name:   "other " + m.name,
				damage: func(*refuser) *pair.Damage { return &pair.Damage{Claim: m.change} },
				// The schema's number may already be one that the peer does not read.
				destination: []error{state.ErrIdentity, state.ErrSchema},
			},
			damaged{
				name:   "other " + m.name + ", concealed",
				damage: func(*refuser) *pair.Damage { return &pair.Damage{Identity: m.change} },
				source: told, destination: []error{state.ErrIdentity},
			})
	}
	return list
}

// unit calls f for the n-th unit to be sent of the family: a page, or the snapshot where there are none.
func (f *refuser) unit(n int, do func(h *state.UnitHeader, b []byte) []byte) *pair.Damage {
	target := f.target(n)
	return &pair.Damage{Sealed: func(unit int, h *state.UnitHeader, b []byte) []byte {
		if unit == target {
			return do(h, b)
		}
		return b
	}}
}

func (f *refuser) target(n int) int {
	if len(f.good.Pages) == 0 {
		return pair.Snapshot
	}
	return n
}

// headers: a header that was changed after it was sealed. Raw damage on a connection cannot be shown here, since
// TLS refuses it before; the tests of package wire do that.
func headers() []damaged {
	change := func(name string, pages bool, want []error, do func(h *state.UnitHeader)) damaged {
		return damaged{
			name: "header: " + name, pages: pages, source: told, destination: want,
			damage: func(f *refuser) *pair.Damage {
				return f.unit(1, func(h *state.UnitHeader, b []byte) []byte { do(h); return b })
			},
		}
	}
	return []damaged{
		change("token range", true, []error{state.ErrOverlap, state.ErrSize, state.ErrTokens}, func(h *state.UnitHeader) { h.Tokens.First-- }),
		change("token range beyond the end", true, []error{state.ErrTokens}, func(h *state.UnitHeader) {
			h.Tokens.First += 1 << 16
			h.Tokens.End += 1 << 16
		}),
		change("layer range", false, []error{state.ErrLayers}, func(h *state.UnitHeader) { h.Layers.End++ }),
		change("element type", true, []error{state.ErrDType}, func(h *state.UnitHeader) {
			if h.DType = state.Q8_0; h.DTypeV == state.Q8_0 {
				h.DType = state.F16
			}
		}),
		change("codec", false, []error{state.ErrCodec}, func(h *state.UnitHeader) { h.Codec = state.CodecRaw }),
		change("part", false, []error{state.ErrPart}, func(h *state.UnitHeader) { h.Part++ }),
		change("identity bit", false, []error{state.ErrIdentity}, func(h *state.UnitHeader) { h.Identity[5] ^= 0x10 }),
		change("index", true, []error{state.ErrDuplicateUnit}, func(h *state.UnitHeader) { h.Index = 0 }),
		change("final bit", true, []error{state.ErrFinal, state.ErrUnits}, func(h *state.UnitHeader) { h.Final = true }),
		{
			// The wire of an honest source does not even send it.
			name: "header: other handoff", damage: func(f *refuser) *pair.Damage {
				return f.unit(1, func(h *state.UnitHeader, b []byte) []byte { h.Handoff[15] ^= 1; return b })
			},
		},
	}
}

// payloads: bytes that were cut, changed, or are no numbers.
func payloads() []damaged {
	nan := func(b []byte, at, width int) {
		if width == 4 {
			bits := math.Float32bits(float32(math.NaN()))
			b[at], b[at+1], b[at+2], b[at+3] = byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24)
			return
		}
		b[at], b[at+1] = 0xff, 0x7f // of f16, of bf16, and of the scale of q8_0
	}
	return []damaged{
		{
			name: "payload: one bit", source: []error{wire.ErrChecksum, wire.ErrCancelled}, destination: []error{wire.ErrChecksum},
			damage: func(f *refuser) *pair.Damage {
				return f.unit(1, func(_ *state.UnitHeader, b []byte) []byte { b[len(b)/2] ^= 4; return b })
			},
		},
		{
			name: "payload: one bit, with its checksum", source: told, destination: []error{state.ErrDigest, state.ErrUnits},
			damage: func(f *refuser) *pair.Damage {
				return f.unit(1, func(h *state.UnitHeader, b []byte) []byte {
					b[f.number()] ^= 1
					h.Checksum = state.UpdateChecksum(0, b)
					return b
				})
			},
		},
		{
			name: "payload: truncated", source: told, destination: []error{state.ErrSize},
			damage: func(f *refuser) *pair.Damage {
				return f.unit(1, func(h *state.UnitHeader, b []byte) []byte {
					b = b[:len(b)-2]
					h.Length, h.Checksum = uint64(len(b)), state.UpdateChecksum(0, b)
					return b
				})
			},
		},
		{
			name: "payload: NaN in a page", pages: true, source: told, destination: []error{engine.ErrPayload},
			damage: func(f *refuser) *pair.Damage {
				return &pair.Damage{Payload: func(unit int, b []byte) {
					if unit == 1 {
						nan(b, f.r.sourceEngine.Schema().PageRegions(refusalPage)[0].Offset, 2)
					}
				}}
			},
		},
		{
			name: "payload: NaN in the snapshot", snapshot: true, source: told, destination: []error{engine.ErrPayload},
			damage: func(f *refuser) *pair.Damage {
				return &pair.Damage{Payload: func(unit int, b []byte) {
					if unit == pair.Snapshot {
						list := f.snapshotRegions()
						last := list[len(list)-1]
						width := 2
						if last.f32 {
							width = 4
						}
						nan(b, last.offset, width)
					}
				}}
			},
		},
		{
			name: "manifest: truncated", source: told, destination: []error{state.ErrTruncated, state.ErrDigest},
			damage: func(*refuser) *pair.Damage {
				return &pair.Damage{ManifestBytes: func(b []byte) []byte { return b[:len(b)/2] }}
			},
		},
		{
			name: "manifest: one bit", source: told, destination: []error{state.ErrDigest},
			damage: func(*refuser) *pair.Damage {
				return &pair.Damage{ManifestBytes: func(b []byte) []byte { b[len(b)/2] ^= 1; return b }}
			},
		},
		{
			name: "manifest: other handoff", source: told, destination: []error{state.ErrBinding},
			damage: func(*refuser) *pair.Damage {
				return &pair.Damage{Manifest: func(m *state.Manifest) { m.Binding.Request += "x" }}
			},
		},
		{
			// An honest sealer does not even seal it.
			name: "manifest: position", source: []error{state.ErrPosition, state.ErrTokens},
			damage: func(*refuser) *pair.Damage {
				return &pair.Damage{Manifest: func(m *state.Manifest) { m.Position-- }}
			},
		},
	}
}

// sequences: units that come twice, not at all, or from another handoff.
func sequences() []damaged {
	missing := []error{state.ErrMissingPages, state.ErrMissingSnapshot, state.ErrUnits, engine.ErrOutOfOrder, engine.ErrCoverage}
	which := func(n int) func(f *refuser) func(int) bool {
		return func(f *refuser) func(int) bool {
			target := n
			if n >= 0 {
				target = f.target(n)
			}
			return func(unit int) bool { return unit == target }
		}
	}
	list := []damaged{
		{
			name: "sent twice", source: told, destination: []error{state.ErrDuplicateUnit},
			damage: func(f *refuser) *pair.Damage { return &pair.Damage{Twice: which(1)(f)} },
		},
		{
			name: "page sealed twice", pages: true, source: told, destination: []error{state.ErrOverlap},
			damage: func(f *refuser) *pair.Damage { return &pair.Damage{Again: which(1)(f)} },
		},
		{
			name: "first page missing", pages: true, source: told, destination: missing,
			damage: func(f *refuser) *pair.Damage { return &pair.Damage{Skip: which(0)(f)} },
		},
		{
			name: "last page missing", pages: true, source: told, destination: missing,
			damage: func(f *refuser) *pair.Damage { return &pair.Damage{Skip: which(len(f.good.Pages) - 1)(f)} },
		},
		{
			name: "snapshot missing", snapshot: true, source: told, destination: missing,
			damage: func(f *refuser) *pair.Damage { return &pair.Damage{Skip: which(pair.Snapshot)(f)} },
		},
		{
			name: "replayed from another handoff", source: told, destination: []error{state.ErrDigest, state.ErrUnits},
			damage: func(f *refuser) *pair.Damage {
				return f.unit(1, func(h *state.UnitHeader, b []byte) []byte {
					old := f.other.Snapshot
					if len(f.other.Pages) > 0 {
						old = f.other.Pages[1].Payload
					}
					copy(b, old)
					h.Checksum = state.UpdateChecksum(0, b)
					return b
				})
			},
		},
	}
	return list
}

// tickets: who comes with the wrong one, or is not who was expected.
func tickets() []damaged {
	return []damaged{
		{
			name: "wrong ticket", source: []error{wire.ErrTicket}, destination: []error{pair.ErrAborted},
			damage: func(*refuser) *pair.Damage {
				return &pair.Damage{Come: func(_ *state.Binding, ticket *[]byte) { (*ticket)[0] ^= 1 }}
			},
		},
		{
			name: "reused ticket", source: []error{wire.ErrTicketUsed}, destination: []error{pair.ErrAborted},
			damage: func(f *refuser) *pair.Damage {
				b, ticket, err := f.used(false)
				return &pair.Damage{Reopen: true, Come: func(own *state.Binding, t *[]byte) {
					if err == nil {
						*own, *t = b, ticket
					}
				}}
			},
		},
		{
			name: "expired ticket", budget: 50 * time.Millisecond,
			source: []error{wire.ErrTicketExpired}, destination: []error{wire.ErrTicketExpired},
			damage: func(*refuser) *pair.Damage { return &pair.Damage{Expire: true} },
		},
		{
			name: "stale incarnation of the destination", source: []error{wire.ErrStale}, destination: []error{pair.ErrAborted},
			damage: func(*refuser) *pair.Damage {
				return &pair.Damage{Come: func(b *state.Binding, _ *[]byte) { b.Destination.Incarnation-- }}
			},
		},
		{
			name: "stale incarnation of the source", source: []error{wire.ErrStale, wire.ErrTicket}, destination: []error{pair.ErrAborted},
			damage: func(*refuser) *pair.Damage {
				return &pair.Damage{Expected: func(b *state.Binding) { b.Source.Incarnation-- }}
			},
		},
		{
			name: "expected by an earlier destination", destination: []error{wire.ErrStale},
			damage: func(*refuser) *pair.Damage {
				return &pair.Damage{Expected: func(b *state.Binding) { b.Destination.Incarnation-- }}
			},
		},
	}
}

// used makes a good handoff and returns its binding and ticket, which are worth nothing any more.
func (f *refuser) used(pull bool) (b state.Binding, ticket []byte, err error) {
	keep := &pair.Damage{Come: func(own *state.Binding, t *[]byte) { b, ticket = *own, slices.Clone(*t) }}
	if _, err = f.r.peer.Send(f.r.ctx, pair.Sending{Export: f.good, Lane: f.lane, Pull: pull, Damage: keep}); err == nil {
		err = f.r.peer.Clear(f.r.ctx)
	}
	return b, ticket, err
}

// cancels: either side gives up, or the connections break, before the commit, at every boundary.
func cancels() []damaged {
	var list []damaged
	for _, at := range []struct {
		name            string
		kind            pair.BoundaryKind
		page            int
		pages, snapshot bool
	}{
		{"before the first page", pair.BeforePage, 0, true, false},
		{"between pages", pair.BeforePage, 2, true, false},
		{"before the snapshot", pair.BeforeSnapshot, -1, false, true},
		{"before the manifest", pair.BeforeManifest, -1, false, false},
		{"before the commit", pair.BeforeCommit, -1, false, false},
	} {
		for _, a := range []struct {
			name                string
			action              pair.Action
			source, destination []error
		}{
			{"cancelled by the source", pair.CancelSource, nil, []error{wire.ErrCancelled}},
			{"cancelled by the destination", pair.CancelPeer, told, []error{pair.ErrAborted}},
			{"connection lost", pair.Disconnect, []error{wire.ErrClosed}, []error{wire.ErrPeerLost, wire.ErrClosed}},
		} {
			d := damaged{
				name: fmt.Sprintf("%s %s", a.name, at.name), pages: at.pages, snapshot: at.snapshot,
				source: a.source, destination: a.destination,
				damage: func(*refuser) *pair.Damage {
					return &pair.Damage{At: func(b pair.Boundary) pair.Action {
						if b.Kind == at.kind && (at.page < 0 || b.Page == at.page) {
							return a.action
						}
						return pair.Go
					}}
				},
			}
			if at.kind == pair.BeforeCommit {
				// A destination that has everything does not need its source any more: it is told to give up.
				d.destination = []error{pair.ErrAborted}
			}
			list = append(list, d)
		}
	}
	return list
}

// pulls: the source-first order. It is the destination that comes with a ticket, and that is refused; what it gets
// is checked by the same code as in the other order, so the other kinds of damage are not repeated.
func pulls() []damaged {
	list := []damaged{
		{
			name: "wrong ticket", destination: []error{wire.ErrTicket},
			damage: func(*refuser) *pair.Damage {
				return &pair.Damage{Come: func(_ *state.Binding, ticket *[]byte) { (*ticket)[0] ^= 1 }}
			},
		},
		{
			name: "reused ticket", destination: []error{wire.ErrTicketUsed},
			damage: func(f *refuser) *pair.Damage {
				b, ticket, err := f.used(true)
				return &pair.Damage{Reopen: true, Come: func(own *state.Binding, t *[]byte) {
					if err == nil {
						*own, *t = b, ticket
					}
				}}
			},
		},
		{
			name: "expired ticket", budget: 50 * time.Millisecond,
			source: []error{wire.ErrTicketExpired}, destination: []error{wire.ErrTicketExpired},
			damage: func(*refuser) *pair.Damage { return &pair.Damage{Expire: true} },
		},
	}
	for _, d := range cancels() {
		first := strings.HasSuffix(d.name, "before the first page") || strings.HasSuffix(d.name, "before the commit")
		if first && strings.HasPrefix(d.name, "cancelled") {
			list = append(list, d)
		}
	}
	for i := range list {
		list[i].name, list[i].pull = sourceFirst+"/"+list[i].name, true
	}
	return list
}

// number is where the first number lies in what unit gives to its function: its lowest bits.
func (f *refuser) number() int {
	if len(f.good.Pages) == 0 {
		return f.snapshotRegions()[0].offset
	}
	return f.r.sourceEngine.Schema().PageRegions(refusalPage)[0].Offset
}

// region is where numbers lie in a payload.
type region struct {
	offset, length int
	f32            bool
}

// snapshotRegions are the tensors of the good export's snapshot.
func (f *refuser) snapshotRegions() []region {
	schema := f.r.sourceEngine.Schema()
	var list []region
	for _, t := range schema.SnapshotRegions(f.r.windowCells(f.good)) {
		list = append(list, region{t.Offset, t.Length, t.Type == f32})
	}
	return list
}

// f32 is the engine's number for single precision, blob.F32.
const f32 = 0

// windowCells is how many cells the window of a snapshot has: the only number that makes its length.
func (r *runner) windowCells(x *pair.Export) int {
	schema := r.sourceEngine.Schema()
	if !schema.Memory.Window() {
		return 0
	}
	for n := range len(x.Prompt) + 1 {
		if schema.SnapshotBytes(n) == len(x.Snapshot) {
			return n
		}
	}
	return 0
}
