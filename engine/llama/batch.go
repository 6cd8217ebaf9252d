package llama

import (
	"fmt"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/tandem-llm/tandem/engine"
)

// batch holds the arrays of a llama_batch. They are Go memory, made once, and
// every row has exactly one sequence.
type batch struct {
	tokens []llama.Token
	pos    []llama.Pos
	counts []int32 // all 1
	seqs   []llama.SeqId
	ptrs   []*llama.SeqId // ptrs[i] = &seqs[i]
	output []int8
	// rows is the length of the last batch that succeeded, for Logits.
	rows int
	// next is, while rows are checked, the position each slot goes on at, and
	// touched the slots that have been seen.
	next    []int
	touched []int32
}

func newBatch(rows, slots int) batch {
	b := batch{
		tokens: make([]llama.Token, rows), pos: make([]llama.Pos, rows), counts: make([]int32, rows),
		seqs: make([]llama.SeqId, rows), ptrs: make([]*llama.SeqId, rows), output: make([]int8, rows),
		next: make([]int, slots), touched: make([]int32, 0, slots),
	}
	for i := range rows {
		b.counts[i] = 1
		b.ptrs[i] = &b.seqs[i]
	}
	return b
}

func (b *batch) put(i int, t engine.Token, pos, seq int32, output bool) {
	b.tokens[i] = llama.Token(t)
	b.pos[i] = llama.Pos(pos)
	b.seqs[i] = llama.SeqId(seq)
	b.output[i] = 0
	if output {
		b.output[i] = 1
	}
}

// bind points d at the first n rows.
func (b *batch) bind(d *llama.BatchData, n int) {
	d.NTokens = int32(n)
	d.Token, d.Embd, d.Pos = &b.tokens[0], nil, &b.pos[0]
	d.NSeqId, d.SeqId, d.Logits = &b.counts[0], &b.ptrs[0], &b.output[0]
}

// fill checks rows against the slots and writes them into the arrays. An error
// leaves nothing changed that matters.
func (e *Engine) fill(rows []engine.Row) error {
	b := &e.batch
	if len(rows) == 0 || len(rows) > e.info.BatchTokens {
		return fmt.Errorf("%w: %d rows, need 1 to %d", engine.ErrBatch, len(rows), e.info.BatchTokens)
	}
	for _, s := range b.touched {
		b.next[s] = 0
	}
	b.touched = b.touched[:0]
	size := engine.Token(e.vocab.Size())
	for i := range rows {
		r := &rows[i]
		if err := e.checkSlot(r.Seq); err != nil {
			return err
		}
		s := &e.slots[r.Seq]
		if s.importing != nil {
			return fmt.Errorf("%w: slot %d is importing", engine.ErrSequence, r.Seq)
		}
		if s.retired {
			return fmt.Errorf("%w: slot %d is retired", engine.ErrSequence, r.Seq)
		}
		if b.next[r.Seq] == 0 {
			b.touched = append(b.touched, r.Seq)
			b.next[r.Seq] = s.tokens
		}
		switch {
		case r.Token < 0 || r.Token >= size:
			return fmt.Errorf("%w: row %d has a token outside of the vocabulary of %d", engine.ErrBatch, i, size)
		case int(r.Pos) != b.next[r.Seq]:
			return fmt.Errorf("%w: row %d is at position %d, slot %d goes on at %d", engine.ErrBatch, i, r.Pos, r.Seq, b.next[r.Seq])
		case int(r.Pos) >= e.info.ContextTokens:
			return fmt.Errorf("%w: position %d of slot %d, at most %d tokens fit", engine.ErrContext, r.Pos, r.Seq, e.info.ContextTokens)
		}
		b.next[r.Seq]++
		b.put(i, r.Token, r.Pos, r.Seq, r.Output)
	}
	return nil
}
