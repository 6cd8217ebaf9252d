package worker

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/telemetry"
)

// orders are the two orders of a handoff.
var orders = map[string]func(*attempt) *attempt{
	"destination-first": func(a *attempt) *attempt { return a },
	"source-first":      (*attempt).sourceFirst,
}

// told makes the reservation of an attempt say of which tokens it is.
func (a *attempt) told(c *buspb.Command) *buspb.Command {
	c.GetReserve().Tokens = slices.Clone(a.gen.Tokens)
	return c
}

// start brings an attempt to where its state moves and returns how many tokens the destination
// said it has.
func (l *lab) start(a *attempt) uint32 {
	l.t.Helper()
	if a.terms.Policy == buspb.Policy_POLICY_SOURCE_FIRST {
		c := a.told(a.pullCommand(l.pinned(a)))
		if r := l.command(a.dst, c); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
			l.t.Fatalf("reserve: %v", r)
		}
		return l.await(a.id, "the reservation", func(s *buspb.Status) bool { return s.GetReserved() != nil }).GetReserved().SkipTokens
	}
	r := l.reserveTold(a)
	c := a.prefillCommand(r)
	c.GetPrefill().SkipTokens = r.SkipTokens
	if reply := l.command(a.source, c); reply.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
		l.t.Fatalf("prefill: %v", reply)
	}
	return r.SkipTokens
}

// reserveTold reserves, destination-first, with the tokens.
func (l *lab) reserveTold(a *attempt) *buspb.Reserved {
	l.t.Helper()
	if r := l.command(a.dst, a.told(a.reserveCommand())); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
		l.t.Fatalf("reserve: %v", r)
	}
	return l.await(a.id, "the reservation", func(s *buspb.Status) bool { return s.GetReserved() != nil }).GetReserved()
}

// ended returns what a side reports of an attempt in the end.
func (l *lab) ended(a *attempt, side buspb.Side) *buspb.Ended {
	l.t.Helper()
	l.released(a.id, side)
	return l.await(a.id, "the end", func(s *buspb.Status) bool { return s.Side == side && s.GetEnded() != nil }).GetEnded()
}

// What the destination has of a prompt does not travel, what it lacks does, and it goes on exactly
// as if it had had nothing.
func TestSkip(t *testing.T) {
	for _, arch := range tiny.Archs() {
		for order, by := range orders {
			t.Run(string(arch)+"/"+order, func(t *testing.T) {
				l := newLab(t)
				source, dst := l.worker("p", RolePrefill, arch, nil), l.worker("d", RoleDecode, arch, caching)
				long := testPrompt(320)
				hand := func(what string, prompt []int32, skip uint32) {
					t.Helper()
					if !dst.eng.Paged() {
						skip = 0 // all it has must come
					}
					a := by(l.attempt(source, dst, prompt, 12))
					want := l.colocated(source, a)
					if got := l.start(a); got != skip {
						t.Errorf("%s: the destination has %d tokens, expected %d", what, got, skip)
					}
					if o := l.ended(a, buspb.Side_SIDE_DESTINATION).Outcome; o != buspb.Outcome_OUTCOME_COMPLETED {
						t.Fatalf("%s: the destination ended as %v", what, o)
					}
					if got, _ := l.tokens(a.id); !slices.Equal(got, want) {
						t.Errorf("%s: the answer is another than colocated", what)
					}
					src, at := l.ended(a, buspb.Side_SIDE_SOURCE).Attribution, l.ended(a, buspb.Side_SIDE_DESTINATION).Attribution
					l.mu.Lock()
					sent, restored := l.states[a.id.String()+string(telemetry.Source)], l.states[a.id.String()+string(telemetry.Destination)]
					l.mu.Unlock()
					if len(sent) == 0 || !bytes.Equal(sent, restored) {
						t.Errorf("%s: the state is another", what)
					}
					// Pages from the first one that is missing on, and the snapshot.
					var wantBytes, wantSkipped uint64
					for first := 0; first < len(prompt); first += 64 {
						n := uint64(source.eng.PageBytes(min(64, len(prompt)-first))) // 0 where there are no pages
						if first < int(skip) {
							wantSkipped += n
						} else {
							wantBytes += n
						}
					}
					for _, c := range at.Components {
						if c.Kind != 1 {
							wantBytes += c.Bytes
						}
					}
					if (wantBytes == 0) != (arch == tiny.Llama && int(skip) == len(prompt)) {
						t.Errorf("%s: %d bytes expected", what, wantBytes)
					}
					for side, m := range map[string]*buspb.Attribution{"source": src, "destination": at} {
						if m.GetStream().GetBytes() != wantBytes || m.SkippedBytes != wantSkipped || m.SkippedTokens != skip {
							t.Errorf("%s: the %s counts %d bytes on the wire and %d of %d tokens skipped, expected %d, %d and %d",
								what, side, m.GetStream().GetBytes(), m.SkippedBytes, m.SkippedTokens, wantBytes, wantSkipped, skip)
						}
					}
					if src.CachedTokens != 0 || at.CachedTokens != skip || at.PromptTokens != uint32(len(prompt)) {
						t.Errorf("%s: %d tokens cached at the source, %d of %d at the destination", what, src.CachedTokens, at.CachedTokens, at.PromptTokens)
					}
				}
				hand("the first", long[:300], 0)
				hand("the same again", long[:300], 256)
				hand("longer", long, 256)
				hand("all of it, in whole pages", long, 320)
				hand("all of it, and one token", append(slices.Clone(long), 7), 320)
				hand("another end", append(slices.Clone(long[:200]), 7, 8, 9), 192)
				hand("less than a page", long[:40], 0)
				hand("another beginning", append([]int32{9}, long[:200]...), 0)
				l.idle(source)
				l.idle(dst)
				flush(t, dst)
			})
		}
	}
}

// The next turn of a conversation moves what came after the last one: what the destination generated
// itself is there. So it is where the reservation did not say the tokens, as soon as they came.
func TestSkipAnswer(t *testing.T) {
	for order, by := range orders {
		t.Run(order, func(t *testing.T) {
			l := newLab(t)
			source, dst := l.worker("p", RolePrefill, tiny.Llama, caching), l.worker("d", RoleDecode, tiny.Llama, caching)
			whole := l.worker("w", RolePrefill, tiny.Llama, caching)
			ask := func(prompt []int32) ([]int32, uint32) {
				a := by(l.attempt(source, dst, prompt, 100))
				a.gen.Sampling = nil
				want := l.colocated(whole, a)
				skip := l.start(a)
				l.ended(a, buspb.Side_SIDE_DESTINATION)
				l.ended(a, buspb.Side_SIDE_SOURCE)
				got, _ := l.tokens(a.id)
				if !slices.Equal(got, want) || len(got) != 100 {
					t.Errorf("the answer has %d tokens and is another than colocated", len(got))
				}
				return got, skip
			}
			prompt := testPrompt(100)
			answer, skip := ask(prompt)
			if skip != 0 {
				t.Errorf("%d tokens of the first turn are there", skip)
			}
			prompt = append(append(prompt, answer...), 1, 2, 3) // 199 positions of it are computed
			answer, skip = ask(prompt)
			if skip != 192 {
				t.Errorf("%d tokens of the second turn are there", skip)
			}
			if _, skip = ask(append(append(prompt, answer...), 4)); skip != 256 {
				t.Errorf("%d tokens of the third turn are there", skip)
			}
			l.idle(source)
			l.idle(dst)
			flush(t, dst)
		})
	}
}

// However a handoff that skips ends, the prefix is there for the next one, and nothing else is.
func TestSkipEnds(t *testing.T) {
	for _, arch := range []tiny.Arch{tiny.Llama, tiny.NemotronHMoE} {
		t.Run(string(arch), func(t *testing.T) {
			l := newLab(t)
			source, dst := l.worker("p", RolePrefill, arch, nil), l.worker("d", RoleDecode, arch, caching)
			prompt := testPrompt(300)
			first := l.attempt(source, dst, prompt, 4)
			l.start(first)
			l.ended(first, buspb.Side_SIDE_DESTINATION)
			cancel := func(a *attempt, side buspb.Side) {
				worker := a.source
				if side == buspb.Side_SIDE_DESTINATION {
					worker = a.dst
				}
				l.command(worker, &buspb.Command{Handoff: a.id[:], Request: a.request, Body: &buspb.Command_Cancel{Cancel: &buspb.Cancel{Reason: buspb.Reason_REASON_CLIENT, Side: side}}})
			}
			t.Run("reserved", func(t *testing.T) {
				a := l.attempt(source, dst, prompt, 4)
				l.reserveTold(a)
				cancel(a, buspb.Side_SIDE_DESTINATION)
				l.released(a.id, buspb.Side_SIDE_DESTINATION)
			})
			t.Run("receiving", func(t *testing.T) {
				a := l.attempt(source, dst, slices.Clone(prompt), 4) // the worker clears what it is given
				c := a.prefillCommand(l.reserveTold(a))
				c.Gateway, c.GatewayIncarnation, c.GetPrefill().SkipTokens = "gw", 1, 256
				inspect(source, func() { // which computes nothing meanwhile, but whose stream opens
					source.execute(c, source.now())
					for state := handoff.DestinationReserved; state != handoff.DestinationReceiving; {
						inspect(dst, func() { state = dst.tasks[a.id].dst.State() })
					}
					cancel(a, buspb.Side_SIDE_DESTINATION)
					if o := l.released(a.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_CANCELLED {
						t.Errorf("the destination ended as %v", o)
					}
				})
				cancel(a, buspb.Side_SIDE_SOURCE)
				l.released(a.id, buspb.Side_SIDE_SOURCE)
			})
			for order, by := range orders {
				t.Run("other tokens/"+order, func(t *testing.T) {
					a := by(l.attempt(source, dst, prompt, 4))
					other := slices.Clone(prompt)
					other[299]++ // in what travels: what is skipped is right, and still it is another prompt
					a.gen.Tokens = other
					c := a.reserveCommand()
					if order == "source-first" {
						c = a.pullCommand(l.pinned(a))
					}
					c.GetReserve().Tokens = prompt
					l.command(a.dst, c)
					r := l.await(a.id, "the reservation", func(s *buspb.Status) bool { return s.GetReserved() != nil }).GetReserved()
					if r.SkipTokens != 256 {
						t.Errorf("%d tokens are there", r.SkipTokens)
					}
					if order == "destination-first" {
						p := a.prefillCommand(r)
						p.GetPrefill().SkipTokens = r.SkipTokens
						l.command(a.source, p)
					}
					e := l.ended(a, buspb.Side_SIDE_DESTINATION)
					if e.Outcome != buspb.Outcome_OUTCOME_FAILED || !strings.Contains(e.Message, "another prompt") {
						t.Errorf("the destination ended as %v: %s", e.Outcome, e.Message)
					}
					cancel(a, buspb.Side_SIDE_SOURCE)
					l.released(a.id, buspb.Side_SIDE_SOURCE)
				})
			}
			t.Run("locked", func(t *testing.T) {
				a := l.attempt(source, dst, prompt, 4)
				want := l.colocated(source, a)
				r := l.reserveTold(a)
				inspect(dst, func() {
					for dst.evict(1) {
					}
				})
				c := a.prefillCommand(r)
				c.GetPrefill().SkipTokens = r.SkipTokens
				l.command(a.source, c)
				if e := l.ended(a, buspb.Side_SIDE_DESTINATION); e.Outcome != buspb.Outcome_OUTCOME_COMPLETED || r.SkipTokens != 256 {
					t.Errorf("with %d tokens skipped the destination ended as %v", r.SkipTokens, e.Outcome)
				}
				if got, _ := l.tokens(a.id); !slices.Equal(got, want) {
					t.Error("the answer is another than colocated")
				}
			})
			l.idle(source)
			l.idle(dst)
			flush(t, dst)
		})
	}
}

// The two workers need not cut prompts into the same pages. (Last bits may be others then: what was
// kept ends within a chunk of the source.)
func TestSkipOtherPages(t *testing.T) {
	for order, by := range orders {
		t.Run(order, func(t *testing.T) {
			l := newLab(t)
			source := l.worker("p", RolePrefill, tiny.NemotronHMoE, nil)
			dst := l.worker("d", RoleDecode, tiny.NemotronHMoE, func(c *Config) { caching(c); c.PageTokens = 32 })
			long := testPrompt(400)
			for i, c := range []struct {
				prompt []int32
				skip   uint32
			}{{long[:300], 0}, {long[:300], 288}, {long, 288}, {long[:350], 320}, {long[:96], 96}} {
				a := by(l.attempt(source, dst, c.prompt, 8))
				want := l.colocated(source, a)
				if got := l.start(a); got != c.skip {
					t.Errorf("handoff %d: the destination has %d tokens, expected %d", i, got, c.skip)
				}
				if o := l.ended(a, buspb.Side_SIDE_DESTINATION).Outcome; o != buspb.Outcome_OUTCOME_COMPLETED {
					t.Fatalf("handoff %d: the destination ended as %v", i, o)
				}
				if got, _ := l.tokens(a.id); !slices.Equal(got, want) {
					t.Errorf("handoff %d: the answer is another than colocated", i)
				}
			}
			l.idle(source)
			l.idle(dst)
			flush(t, dst)
		})
	}
}

// A source that lost its destination hands what it holds to one that has a part of it, and that part
// does not travel.
func TestSkipTakenOver(t *testing.T) {
	for _, arch := range []tiny.Arch{tiny.Llama, tiny.NemotronHMoE} {
		for order, by := range orders {
			t.Run(string(arch)+"/"+order, func(t *testing.T) {
				l := newLab(t)
				source, dst := l.worker("p", RolePrefill, arch, nil), l.worker("d", RoleDecode, arch, caching)
				prompt := testPrompt(300)
				before := l.attempt(source, dst, slices.Clone(prompt), 4)
				l.start(before)
				l.ended(before, buspb.Side_SIDE_DESTINATION)
				lost := l.attempt(source, dst, slices.Clone(prompt), 8).sourceFirst()
				want := l.colocated(source, lost)
				lost.terms.Destination = &buspb.Peer{Worker: "gone", Incarnation: 1} // it died before it came
				l.pinned(lost)
				computed := l.computedOn(source)

				a := by(l.attempt(source, dst, slices.Clone(prompt), 8))
				a.request = lost.request
				take := func(c *buspb.Command) {
					c.GetPrefill().Reuse = lost.id[:]
					if r := l.command(a.source, c); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
						t.Fatalf("taking over: %v", r)
					}
				}
				var skip uint32
				if order == "source-first" {
					take(a.prefillCommand(nil))
					p := l.await(a.id, "the second pin", func(s *buspb.Status) bool { return s.GetPinned() != nil }).GetPinned()
					l.command(a.dst, a.told(a.pullCommand(p)))
					skip = l.await(a.id, "the reservation", func(s *buspb.Status) bool { return s.GetReserved() != nil }).GetReserved().SkipTokens
				} else {
					r := l.reserveTold(a)
					c := a.prefillCommand(r)
					skip, c.GetPrefill().SkipTokens = r.SkipTokens, r.SkipTokens
					take(c)
				}
				if o := l.ended(a, buspb.Side_SIDE_DESTINATION); o.Outcome != buspb.Outcome_OUTCOME_COMPLETED || skip != 256 || o.Attribution.SkippedTokens != 256 {
					t.Fatalf("with %d tokens skipped the destination ended as %v", skip, o.Outcome)
				}
				l.released(lost.id, buspb.Side_SIDE_SOURCE)
				l.released(a.id, buspb.Side_SIDE_SOURCE)
				if got, _ := l.tokens(a.id); !slices.Equal(got, want) {
					t.Errorf("the answer is %v, colocated %v", got, want)
				}
				if n := l.computedOn(source) - computed; n != 0 {
					t.Errorf("%d tokens were computed again", n)
				}
				l.idle(source)
				l.idle(dst)
				flush(t, dst)
			})
		}
	}
}
