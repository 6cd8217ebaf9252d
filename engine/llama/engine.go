package llama

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"unsafe"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/llama/blob"
)

// Engine is one model in one llama.cpp context. It implements engine.Engine;
// see there for what each method promises.
type Engine struct {
	lib   *library
	log   *slog.Logger
	model llama.Model
	ctx   llama.Context
	pool  llama.Threadpool // 0 with one thread
	vocab *Vocab
	info  engine.Info

	// schema is the layout of state blobs; nil when state cannot move.
	schema *blob.Schema
	// recurrence is set when the model has recurrent state.
	recurrence bool
	// layers maps the layers of each section to trunk layers.
	layers layerMap

	native  *native
	batch   batch
	scratch blob.Scratch
	// depth is how far imported numbers are checked.
	depth blob.Depth
	// stripBlobs is what strip sets, one after the other.
	stripBlobs [][]byte
	// slots are the sequences 0 to Info.Slots-1 of the context.
	slots []slot
	// scratchSeq is the sequence T that pages pass through. It is empty between
	// any two calls.
	scratchSeq int32

	// busy is 1 while a goroutine is inside.
	busy           atomic.Int32
	closed, broken bool
}

var _ engine.Engine = (*Engine)(nil)

// slot is one sequence: empty (tokens 0, no import), importing, held, or retired.
type slot struct {
	tokens    int
	importing *transfer
	// retired: the slot is storage and cannot be decoded. kept are the positions it
	// holds, never none; tokens stays above zero.
	retired bool
	kept    coverage
}

// layerMap has the trunk layer of each layer of a section.
type layerMap struct {
	base, window, recurrent []int
}

// enter begins every method: it refuses overlapping calls and dead engines.
func (e *Engine) enter() error {
	if !e.busy.CompareAndSwap(0, 1) {
		return engine.ErrConcurrent
	}
	switch {
	case e.closed:
		e.busy.Store(0)
		return engine.ErrClosed
	case e.broken:
		e.busy.Store(0)
		return engine.ErrFatal
	}
	return nil
}

func (e *Engine) leave() { e.busy.Store(0) }

// Info implements engine.Engine.
func (e *Engine) Info() engine.Info { return e.info }

// Vocab implements engine.Engine.
func (e *Engine) Vocab() engine.Vocab { return e.vocab }

func (e *Engine) checkSlot(seq int32) error {
	if seq < 0 || int(seq) >= len(e.slots) {
		return fmt.Errorf("%w: slot %d, need 0 to %d", engine.ErrSequence, seq, len(e.slots)-1)
	}
	return nil
}

// Decode implements engine.Engine.
func (e *Engine) Decode(rows []engine.Row) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	if err := e.fill(rows); err != nil {
		return err
	}
	e.batch.rows = 0
	e.batch.bind(&e.native.batch, len(rows))
	code := e.native.decode()
	if code == 0 {
		e.batch.rows = len(rows)
		for _, s := range e.batch.touched {
			e.slots[s].tokens = e.batch.next[s]
		}
		return nil
	}
	e.logNew(true)
	if code == 1 {
		return fmt.Errorf("%w for a batch of %d rows", engine.ErrNoCells, len(rows))
	}
	// -1: llama.cpp sees other positions than this engine. 2: the computation
	// was aborted. Below -1: out of memory, or it failed, with parts of the batch
	// in place. None of these sequences can be trusted.
	dropped := true
	for _, s := range e.batch.touched {
		dropped = e.native.removeSeq(s) && dropped
		e.slots[s].tokens = 0
	}
	// Recurrent memory is worse: to put the batch's sequences side by side, the
	// computation itself moves the rows of others, so they may be lost as well.
	if code < -1 || !dropped || code == 2 && e.recurrence {
		return e.fatal("decode code %d", code)
	}
	return fmt.Errorf("%w (code %d)", engine.ErrLost, code)
}

// fatal marks the engine broken.
func (e *Engine) fatal(format string, args ...any) error {
	e.broken = true
	return fmt.Errorf("%w: %s", engine.ErrFatal, fmt.Sprintf(format, args...))
}

// Logits implements engine.Engine.
func (e *Engine) Logits(i int) ([]float32, error) {
	if err := e.enter(); err != nil {
		return nil, err
	}
	defer e.leave()
	if i < 0 || i >= e.batch.rows || e.batch.output[i] == 0 {
		return nil, fmt.Errorf("%w: row %d of %d", engine.ErrNoOutput, i, e.batch.rows)
	}
	p := e.native.logits(int32(i))
	if p == nil {
		e.logNew(true)
		return nil, e.fatal("llama.cpp has no logits for an output row")
	}
	return unsafe.Slice(p, e.vocab.Size()), nil
}

// Drop implements engine.Engine.
func (e *Engine) Drop(seq int32) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	if err := e.checkSlot(seq); err != nil {
		return err
	}
	return e.drop(seq)
}

func (e *Engine) drop(seq int32) error {
	s := &e.slots[seq]
	if s.tokens == 0 && s.importing == nil {
		return nil
	}
	if s.importing != nil {
		s.importing.dead = true
	}
	*s = slot{}
	if !e.native.removeSeq(seq) {
		e.logNew(true)
		return e.fatal("llama.cpp does not free slot %d", seq)
	}
	return e.settle()
}

// settle makes an idle context as good as new: llama.cpp places cells from
// where it last stopped, and the order of additions in attention depends on
// where cells lie. With it, a request that runs alone always repeats exactly,
// whatever ran before.
func (e *Engine) settle() error {
	for i := range e.slots {
		if e.slots[i].tokens > 0 || e.slots[i].importing != nil {
			return nil
		}
	}
	return llama.MemoryClear(e.native.mem, false)
}

// Tokens implements engine.Engine.
func (e *Engine) Tokens(seq int32) int {
	if e.checkSlot(seq) != nil {
		return 0
	}
	if e.slots[seq].retired {
		return 0
	}
	return e.slots[seq].tokens
}

// Close implements engine.Engine. Closing twice does nothing.
func (e *Engine) Close() error {
	if !e.busy.CompareAndSwap(0, 1) {
		return engine.ErrConcurrent
	}
	defer e.leave()
	e.free()
	return nil
}

func (e *Engine) free() {
	if e.closed {
		return
	}
	e.closed = true
	for i := range e.slots {
		if t := e.slots[i].importing; t != nil {
			t.dead = true
		}
	}
	clear(e.slots)
	e.batch.rows = 0
	if e.vocab != nil {
		e.vocab.close()
	}
	if e.ctx != 0 {
		_ = llama.Free(e.ctx) // fails for 0 only
	}
	llama.ThreadpoolFree(e.pool) // after the context that uses it; 0 does nothing
	if e.model != 0 {
		_ = llama.ModelFree(e.model)
	}
}

// logNew hands llama.cpp's new lines to the log. serving masks digits.
func (e *Engine) logNew(serving bool) {
	lines, dropped := e.lib.sink.take()
	for _, l := range lines {
		text := l.text
		if serving {
			text = masked(text)
		}
		e.log.Log(context.Background(), l.level, "llama.cpp: "+text)
	}
	if dropped > 0 {
		e.log.Warn("llama.cpp: more lines were dropped", "lines", dropped)
	}
}
