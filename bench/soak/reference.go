package soak

import (
	"fmt"
	"math"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/sample"
)

// reference computes answers alone in an engine that nobody else uses. It belongs to
// one goroutine.
type reference struct {
	eng   engine.Engine
	chunk int // tokens of one prefill step, as on the workers
	rows  []engine.Row
	work  sample.Workspace
}

func newReference(eng engine.Engine, chunk int) *reference {
	return &reference{eng: eng, chunk: chunk, rows: make([]engine.Row, 0, chunk)}
}

// verdict is how an answer stands to the reference that was made to say the same.
type verdict struct {
	// first is the index of the first token that the reference, left to itself, would
	// not have said; -1: there is none.
	first int
	// far are the indices of the tokens beyond the bound.
	far []int
	// gap is by how much the reference preferred its own token, at most, and at the
	// index of the token. Infinite where numbers are none.
	gap float64
	at  int
	// stops is whether the last token ends a generation.
	stops bool
}

// follow computes the prompt and then the answer's tokens, each one by itself, in the
// engine's first slot, and compares. Gaps are those of the logits, so they mean
// something for greedy answers only.
func (r *reference) follow(q *Request, tokens []int32, bound float64) (verdict, error) {
	v := verdict{first: -1, at: -1}
	vocab := r.eng.Vocab()
	s, err := sample.New(q.Sampling, vocab.Size())
	if err != nil {
		return v, err
	}
	s.Use(&r.work)
	if err := s.Prime(q.Prompt); err != nil {
		return v, err
	}
	defer func() { _ = r.eng.Drop(0) }()
	last, err := r.extend(0, 0, q.Prompt)
	if err != nil {
		return v, err
	}
	for i, token := range tokens {
		logits, err := r.eng.Logits(last)
		if err != nil {
			return v, err
		}
		if token < 0 || int(token) >= len(logits) {
			return v, fmt.Errorf("token %d of the answer is no token of the model", i)
		}
		want, err := s.Sample(logits)
		if err != nil {
			return v, err
		}
		if want.Token != token {
			if v.first < 0 {
				v.first = i
			}
			gap := gapOf(logits, want.Token, token)
			if gap > v.gap {
				v.gap, v.at = gap, i
			}
			if gap > bound {
				v.far = append(v.far, i)
			}
		}
		if err := s.Accept(token); err != nil {
			return v, err
		}
		v.stops = vocab.IsEOG(token)
		if i == len(tokens)-1 {
			break // the last token is never computed
		}
		r.rows = append(r.rows[:0], engine.Row{Token: token, Pos: int32(len(q.Prompt) + i), Output: true})
		if err := r.eng.Decode(r.rows); err != nil {
			return v, err
		}
		last = 0
	}
	return v, nil
}

// gapOf is by how much a token's logit is less than the best one's.
func gapOf(logits []float32, best, token int32) float64 {
	gap := float64(logits[best]) - float64(logits[token])
	if math.IsNaN(gap) {
		return math.Inf(1)
	}
	return gap
}

// extend appends tokens to a sequence in chunks that begin at multiples of the chunk's
// size, and returns the row of the last token's logits.
func (r *reference) extend(seq int32, pos int, tokens []int32) (int, error) {
	for len(tokens) > 0 {
		n := min(len(tokens), r.chunk-pos%r.chunk)
		r.rows = r.rows[:0]
		for i, t := range tokens[:n] {
			r.rows = append(r.rows, engine.Row{Token: t, Pos: int32(pos + i), Seq: seq, Output: i == len(tokens)-1})
		}
		if err := r.eng.Decode(r.rows); err != nil {
			return 0, err
		}
		tokens, pos = tokens[n:], pos+n
	}
	return len(r.rows) - 1, nil
}
