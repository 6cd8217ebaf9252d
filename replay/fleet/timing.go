package fleet

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/tandem-llm/tandem/engine/timed"
)

// maxBlocks bounds a worker's memory, about 40 bytes a block of the replay's own.
const maxBlocks = 1 << 24

// Model is how long the pool's steps take. It is nil before Parse.
func (p *Pool) Model() *timed.Model { return p.model }

// BlocksEach is the number of blocks of each worker.
func (p *Pool) BlocksEach() int { return p.blocks }

// Ways is the number of tensor-parallel ways of a worker.
func (p *Pool) Ways() int { return max(1, p.Timing.TP) }

// Devices is the number of accelerators of a worker.
func (p *Pool) Devices() int {
	if p.Accelerators > 0 {
		return p.Accelerators
	}
	return p.Ways()
}

// time makes the pool's cost model.
func (p *Pool) time(files Files) (err error) {
	if p.File == "" {
		p.model, err = p.Timing.Build()
		return err
	}
	if files == nil {
		return errors.New("timing names a file, which cannot be read here")
	}
	raw, err := files(p.File)
	if err != nil {
		return fmt.Errorf("timing: %w", err)
	}
	if p.model, err = timed.Load(bytes.NewReader(raw)); err != nil {
		return fmt.Errorf("timing: %s: %w", p.File, err)
	}
	return nil
}

// size decides how many blocks a worker has.
func (p *Pool) size() error {
	m, g := &p.Memory, p.model.Geometry()
	p.blocks = m.Blocks
	switch {
	case m.Blocks > 0:
	case m.GB > 0:
		per := g.PerToken() * int64(m.BlockTokens)
		if per == 0 {
			return errors.New("memory.gb needs a model with attention state; give memory.blocks")
		}
		p.blocks = int(min(m.GB*1e9/float64(per), maxBlocks+1))
	default:
		tokens := p.model.Capacity(m.Fraction)
		if tokens < 0 {
			return errors.New("memory: the timing does not know the hardware's memory; give memory.blocks or memory.gb")
		}
		p.blocks = int(min(tokens/int64(m.BlockTokens), maxBlocks+1))
	}
	if p.blocks < 2 || p.blocks > maxBlocks {
		return fmt.Errorf("memory: a worker has %d blocks of %d tokens, want 2 to %d: weights may not leave room; see memory, tp and weight_bits", p.blocks, m.BlockTokens, maxBlocks)
	}
	return nil
}
