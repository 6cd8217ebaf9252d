package pair

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/sample"
	"github.com/tandem-llm/tandem/state"
	"github.com/zeebo/blake3"
)

// Slot is the slot of the sequence that moves, in both processes. Padding and neighbours take the
// slots after it.
const Slot int32 = 0

// Layout says what else lies in an engine beside the sequence that moves. Where its cells lie and
// how many rows its batches have follow from it.
type Layout struct {
	// Padding is the tokens of a sequence that is placed first, so that the one that moves starts at
	// that cell.
	Padding int `json:"padding,omitempty"`
	// Neighbours is how many unrelated sequences lie there too, each of NeighbourTokens tokens.
	Neighbours      int `json:"neighbours,omitempty"`
	NeighbourTokens int `json:"neighbour_tokens,omitempty"`
	// Busy lets the neighbours decode in the same batches as the sequence that moves.
	Busy bool `json:"busy,omitempty"`
	// Seed makes their prompts.
	Seed uint64 `json:"seed,omitempty"`
}

// Sequences is the number of slots that the layout takes.
func (l Layout) Sequences() int {
	n := l.Neighbours
	if l.Padding > 0 {
		n++
	}
	return n
}

// Step is what one step of greedy decoding gave.
type Step struct {
	// Token is the one chosen.
	Token engine.Token `json:"token"`
	// Logits is the BLAKE3 digest of all logits of the step, bit by bit.
	Logits state.Digest `json:"logits"`
	// Margin is by how much the largest logit exceeds the second.
	Margin float32 `json:"margin"`
}

// Host runs the sequences of one engine. It belongs to the engine's owner.
type Host struct {
	// Engine is the caller's to close.
	Engine engine.Engine

	layout     Layout
	neighbours []neighbour
	sampler    *sample.Sampler // of the sequence in Slot
	next       engine.Token    // what its next step consumes
	rows       []engine.Row
	bits       []byte
}

type neighbour struct {
	slot int32
	next engine.Token
}

// Prompt makes n tokens that a model with this vocabulary might get, always the same for one seed.
func Prompt(v engine.Vocab, n int, seed uint64) []engine.Token {
	r := rand.New(rand.NewPCG(seed, 0x7a4d))
	out := make([]engine.Token, 0, n)
	for tries := 0; len(out) < n; tries++ {
		t := engine.Token(r.IntN(v.Size()))
		usable := !v.IsControl(t) && !v.IsEOG(t) && len(v.Piece(t)) > 0
		if usable || tries > 64*n { // a vocabulary of control tokens only: take anything
			out = append(out, t)
		}
	}
	return out
}

// Clear empties every slot.
func (h *Host) Clear() error {
	h.neighbours, h.sampler, h.layout = nil, nil, Layout{}
	for s := range h.Engine.Info().Slots {
		if err := h.Engine.Drop(int32(s)); err != nil {
			return err
		}
	}
	return nil
}

// Place empties the engine and lays out everything but the sequence that moves.
func (h *Host) Place(l Layout) error {
	info := h.Engine.Info()
	if l.Padding < 0 || l.Neighbours < 0 || l.Neighbours > info.Slots || l.NeighbourTokens < 0 || l.Sequences() >= info.Slots ||
		l.Padding > info.Cells || l.NeighbourTokens > info.Cells {
		return fmt.Errorf("%w: a layout of %d more sequences, the engine has %d slots and %d cells", ErrCall, l.Sequences(), info.Slots, info.Cells)
	}
	if err := h.Clear(); err != nil {
		return err
	}
	h.layout = l
	slot := Slot + 1
	if l.Padding > 0 {
		if _, err := prefill(h.Engine, slot, Prompt(h.Engine.Vocab(), l.Padding, l.Seed), 0, info.BatchTokens, nil); err != nil {
			return err
		}
		slot++
	}
	for i := range l.Neighbours {
		first, err := prefill(h.Engine, slot, Prompt(h.Engine.Vocab(), max(l.NeighbourTokens, 1), l.Seed+uint64(i)+1), 0, info.BatchTokens, nil)
		if err != nil {
			return err
		}
		h.neighbours = append(h.neighbours, neighbour{slot, argmax(first)})
		slot++
	}
	return nil
}

// Prefill computes a prompt in Slot, chunk by chunk, and returns the first token of the answer. after,
// if set, is called after each chunk with the number of tokens computed.
func (h *Host) Prefill(tokens []engine.Token, chunk int, after func(tokens int) error) (engine.Token, error) {
	return h.prefill(tokens, 0, chunk, after)
}

// prefill is Prefill of a prompt whose first tokens are in Slot.
func (h *Host) prefill(tokens []engine.Token, have, chunk int, after func(tokens int) error) (engine.Token, error) {
	logits, err := prefill(h.Engine, Slot, tokens, have, chunk, after)
	if err != nil {
		return 0, err
	}
	s, err := newSampler(h.Engine.Vocab().Size(), tokens)
	if err != nil {
		return 0, err
	}
	c, err := s.Sample(logits)
	if err != nil {
		return 0, err
	}
	return c.Token, h.Adopt(s, c.Token)
}

// newSampler is the greedy sampler of a prompt.
func newSampler(vocab int, prompt []engine.Token) (*sample.Sampler, error) {
	s, err := sample.New(sample.Params{}, vocab)
	if err != nil {
		return nil, err
	}
	return s, s.Prime(prompt)
}

// Adopt says how the sequence in Slot goes on: first is sampled, not yet accepted.
func (h *Host) Adopt(s *sample.Sampler, first engine.Token) error {
	if err := s.Accept(first); err != nil {
		return err
	}
	h.sampler, h.next = s, first
	return nil
}

// resume is Adopt for a sampler that has accepted first already.
func (h *Host) resume(s *sample.Sampler, first engine.Token) { h.sampler, h.next = s, first }

// Restart lets the sequence in Slot, restored from an export, go on as it did at its source.
func (h *Host) Restart(prompt []engine.Token, first engine.Token) error {
	s, err := newSampler(h.Engine.Vocab().Size(), prompt)
	if err != nil {
		return err
	}
	return h.Adopt(s, first)
}

// Continue decodes steps tokens of the sequence in Slot, with busy neighbours in the same batches.
func (h *Host) Continue(steps int) ([]Step, error) {
	if h.sampler == nil {
		return nil, fmt.Errorf("%w: no sequence to continue", ErrCall)
	}
	out := make([]Step, 0, steps)
	for range steps {
		h.rows = append(h.rows[:0], engine.Row{Token: h.next, Pos: int32(h.Engine.Tokens(Slot)), Seq: Slot, Output: true})
		if h.layout.Busy {
			for _, n := range h.neighbours {
				h.rows = append(h.rows, engine.Row{Token: n.next, Pos: int32(h.Engine.Tokens(n.slot)), Seq: n.slot, Output: true})
			}
		}
		if err := h.Engine.Decode(h.rows); err != nil {
			return out, err
		}
		logits, err := h.Engine.Logits(0)
		if err != nil {
			return out, err
		}
		c, err := h.sampler.Sample(logits)
		if err != nil {
			return out, err
		}
		out = append(out, Step{Token: c.Token, Logits: h.digest(logits), Margin: margin(logits)})
		if err := h.sampler.Accept(c.Token); err != nil {
			return out, err
		}
		h.next = c.Token
		for i := range len(h.rows) - 1 {
			logits, err := h.Engine.Logits(i + 1)
			if err != nil {
				return out, err
			}
			h.neighbours[i].next = argmax(logits)
		}
	}
	return out, nil
}

// State sums the canonical state of the sequence in Slot.
func (h *Host) State() (StateSum, error) {
	b, err := h.Engine.Canonical(Slot)
	if err != nil {
		return StateSum{}, err
	}
	return StateSum{Bytes: len(b), Digest: blake3.Sum256(b)}, nil
}

func (h *Host) digest(logits []float32) state.Digest {
	h.bits = h.bits[:0]
	for _, f := range logits {
		h.bits = binary.LittleEndian.AppendUint32(h.bits, math.Float32bits(f))
	}
	return blake3.Sum256(h.bits)
}

// prefill computes a prompt, of which the slot has the first tokens, in chunks and returns the last row's
// logits, which are the engine's.
func prefill(e engine.Engine, slot int32, tokens []engine.Token, have, chunk int, after func(int) error) ([]float32, error) {
	if chunk < 1 || chunk > e.Info().BatchTokens || len(tokens) <= have {
		return nil, fmt.Errorf("%w: a prompt of %d tokens in chunks of %d", ErrCall, len(tokens), chunk)
	}
	rows := make([]engine.Row, 0, chunk)
	for first := have; first < len(tokens); first += chunk {
		end := min(first+chunk, len(tokens))
		rows = rows[:0]
		for pos := first; pos < end; pos++ {
			rows = append(rows, engine.Row{Token: tokens[pos], Pos: int32(pos), Seq: slot, Output: pos == len(tokens)-1})
		}
		if err := e.Decode(rows); err != nil {
			return nil, err
		}
		if end == len(tokens) {
			break
		}
		if after != nil {
			if err := after(end); err != nil {
				return nil, err
			}
		}
	}
	return e.Logits(len(rows) - 1)
}

func argmax(logits []float32) engine.Token {
	best := 0
	for i, f := range logits {
		if f > logits[best] {
			best = i
		}
	}
	return engine.Token(best)
}

func margin(logits []float32) float32 {
	first, second := float32(math.Inf(-1)), float32(math.Inf(-1))
	for _, f := range logits {
		if f > first {
			first, second = f, first
		} else if f > second {
			second = f
		}
	}
	if len(logits) < 2 {
		return 0
	}
	return first - second
}
