package soak

import (
	"context"
	"math/rand/v2"
	"slices"

	"github.com/tandem-llm/tandem/engine"
)

// control computes answers as a busy worker may, without any handoff: beside others, in
// other cells, anew from the middle. What it finds there, batching explains.
type control struct {
	ref   *reference
	gen   *Generator
	bound float64
	tries int
	runs  uint64 // so far; each is another one
	// unexplained answers so far.
	unexplained int
}

// How many runs an answer gets. Where two experts are almost equally good, one run in a
// few decides for the other one; seldom it is one in some hundreds. After some answers
// that nothing explains there is a defect, and more runs would only cost time.
const (
	mostTries    = 1000
	fewerTries   = 50
	someFailures = 3
)

func newControl(ref *reference, gen *Generator, bound float64) *control {
	return &control{ref: ref, gen: gen, bound: bound, tries: mostTries}
}

// explain returns those of the indices far, which are in order, at which no run had the
// answer's token within the bound of the best one. The error is ctx's when that has ended.
func (c *control) explain(ctx context.Context, q *Request, tokens []int32, far []int) ([]int, error) {
	left := slices.Clone(far)
	for range c.tries {
		if len(left) == 0 {
			return nil, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c.runs++
		r := c.gen.rng(saltControl, c.runs)
		within, err := c.run(r, q, tokens, left)
		if err != nil {
			return nil, err
		}
		left = slices.DeleteFunc(left, func(i int) bool { return slices.Contains(within, i) })
	}
	if len(left) > 0 {
		if c.unexplained++; c.unexplained >= someFailures {
			c.tries = min(c.tries, fewerTries)
		}
	}
	return left, nil
}

// seq is a sequence of a control run: a copy of the answer, or somebody else.
type seq struct {
	slot   int32
	copy   bool
	tokens []int32 // prompt, and what is decoded
	pos    int     // how many of them are computed
	decode int     // from here on each by itself; what is before in chunks
	step   int     // most tokens of one chunk
	anew   int     // when so many are computed all of it is dropped and computed anew; -1: never
}

// run computes once, several copies of the answer among others, and returns the indices
// among wanted whose token is within the bound in one of them. Copies begin at different
// times, so that different tokens share batches.
func (c *control) run(r *rand.Rand, q *Request, tokens []int32, wanted []int) (within []int, err error) {
	info := c.ref.eng.Info()
	prompt := len(q.Prompt)
	whole := slices.Concat(q.Prompt, tokens[:wanted[len(wanted)-1]])
	copies := max(1, min(info.Slots-r.IntN(2), info.Cells/len(whole)))
	share := 0 // cells of each other one
	if info.Slots > copies {
		share = (info.Cells - copies*len(whole)) / (info.Slots - copies)
	}
	all := make([]*seq, 0, info.Slots)
	defer func() {
		for slot := range int32(info.Slots) {
			if derr := c.ref.eng.Drop(slot); err == nil {
				err = derr
			}
		}
	}()
	for i, slot := range r.Perm(info.Slots) {
		s := &seq{slot: int32(slot), copy: i < copies}
		if s.copy {
			s.tokens, s.decode, s.step, s.anew = whole, prompt, c.chunk(r), -1
			if len(whole) > prompt && r.IntN(2) == 0 {
				s.anew = prompt + r.IntN(len(whole)-prompt)
			}
		} else {
			c.replace(r, s, share)
		}
		all = append(all, s)
	}
	for busy := copies; busy > 0 && len(within) < len(wanted); {
		rows := c.ref.rows[:0]
		if rows, err = c.plan(r, rows, all, func(at int) bool { return slices.Contains(wanted, at-prompt) }); err != nil {
			return nil, err
		}
		if err := c.ref.eng.Decode(rows); err != nil {
			return nil, err
		}
		for i, row := range rows {
			if !row.Output {
				continue
			}
			at := int(row.Pos) + 1 - prompt // the token that this row's logits choose
			logits, err := c.ref.eng.Logits(i)
			if err != nil {
				return nil, err
			}
			if best, _ := twoBest(logits); gapOf(logits, best, tokens[at]) <= c.bound && !slices.Contains(within, at) {
				within = append(within, at)
			}
		}
		busy = 0
		for _, s := range all {
			switch done := s.pos == len(s.tokens); {
			case s.copy && !done:
				busy++
			case !s.copy && done:
				if err := c.ref.eng.Drop(s.slot); err != nil {
					return nil, err
				}
				c.replace(r, s, share)
			}
		}
	}
	return within, nil
}

// replace makes s somebody else, of at most so many tokens.
func (c *control) replace(r *rand.Rand, s *seq, most int) {
	s.tokens = c.gen.other(r, most)
	s.pos, s.step, s.anew = 0, c.chunk(r), -1
	s.decode = len(s.tokens) - r.IntN(len(s.tokens)+1)/2
}

// plan adds the rows of one batch: a chunk of one sequence, or of two, or a token of each
// that decodes. output says whether the logits behind the first so many tokens of a copy
// are wanted.
func (c *control) plan(r *rand.Rand, rows []engine.Row, all []*seq, output func(int) bool) ([]engine.Row, error) {
	var prompts, decoders []*seq
	for _, s := range all {
		switch {
		case s.pos == s.anew:
			if err := c.ref.eng.Drop(s.slot); err != nil {
				return nil, err
			}
			s.pos, s.decode, s.anew = 0, s.anew, -1
			prompts = append(prompts, s)
		case s.pos < s.decode:
			prompts = append(prompts, s)
		case s.pos < len(s.tokens):
			decoders = append(decoders, s)
		}
	}
	add := func(s *seq, n int) {
		for range n {
			rows = append(rows, engine.Row{
				Token: s.tokens[s.pos], Pos: int32(s.pos), Seq: s.slot, Output: s.copy && output(s.pos+1),
			})
			s.pos++
		}
	}
	if len(prompts) > 0 && (len(decoders) == 0 || r.IntN(2) == 0) {
		for _, i := range r.Perm(len(prompts))[:min(len(prompts), 1+r.IntN(4)/3)] {
			s := prompts[i]
			add(s, min(s.decode-s.pos, s.step, c.ref.chunk-len(rows)))
		}
		return rows, nil
	}
	for _, s := range decoders {
		add(s, 1)
	}
	return rows, nil
}

// chunk draws the size of a sequence's chunks: mostly that of workers.
func (c *control) chunk(r *rand.Rand) int {
	if r.IntN(3) > 0 {
		return c.ref.chunk
	}
	return 1 + r.IntN(c.ref.chunk)
}
