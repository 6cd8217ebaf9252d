package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/tandem-llm/tandem/engine/timed"
)

// maxBlocks bounds a worker's memory, about 40 bytes a block of the replay's own.
const maxBlocks = 1 << 24

// Model is how long the pool's steps take. It is nil before Parse.
func (p *Pool) Model() *timed.Model { return p.model }

// SecondModel is how long the steps of a layer split's second box take, nil without.
func (p *Pool) SecondModel() *timed.Model { return p.second }

// BlocksEach is the number of blocks of each worker.
func (p *Pool) BlocksEach() int { return p.blocks }

// Ways is the number of tensor-parallel ways of a worker.
func (p *Pool) Ways() int { return max(1, p.Timing.TP) }

// Devices is the number of accelerators of a worker.
func (p *Pool) Devices() int {
	switch {
	case p.Accelerators > 0:
		return p.Accelerators
	case p.Split != nil:
		return 2 * p.Ways()
	}
	return p.Ways()
}

// time makes the pool's cost model.
func (p *Pool) time(files Files) (err error) {
	if p.Split != nil {
		return p.split()
	}
	if p.File == "" {
		p.model, err = p.Timing.Build()
		return err
	}
	if p.Timing != (timed.Spec{}) {
		return errors.New("timing names a file: model, hardware and everything else about times belongs into it")
	}
	if files == nil {
		return errors.New("timing names a file, which cannot be read here")
	}
	raw, err := files(p.File)
	if err != nil {
		return fmt.Errorf("timing: %w", err)
	}
	spec, err := timed.ReadSpec(bytes.NewReader(raw))
	if err == nil {
		p.model, err = spec.Build()
	}
	if err != nil {
		return fmt.Errorf("timing: %s: %w", p.File, err)
	}
	p.Timing = *spec // its number of devices, too
	return nil
}

// size decides how many blocks a worker has. State of a fixed size (windows, recurrent
// and convolution state) has its room before, for as many sequences as can run.
func (p *Pool) size() error {
	m := &p.Memory
	per, fixed := p.model.Geometry().PerToken(), p.model.Geometry().Snapshot(math.MaxInt64)
	if p.second != nil {
		per += p.second.Geometry().PerToken()
		fixed += p.second.Geometry().Snapshot(math.MaxInt64)
	}
	fixed *= int64(p.sequences())
	p.blocks = m.Blocks
	switch {
	case m.Blocks > 0:
	case m.GB > 0 && per == 0:
		return errors.New("memory.gb needs a model with attention state; give memory.blocks")
	case m.GB > 0:
		p.blocks = int(min((m.GB*1e9-float64(fixed))/float64(per*int64(m.BlockTokens)), maxBlocks+1))
	default:
		tokens := p.model.Capacity(m.Fraction)
		if p.second != nil {
			tokens = min(tokens, p.second.Capacity(m.Fraction))
		}
		if tokens < 0 {
			return errors.New("memory: the timing does not know the hardware's memory; give memory.blocks or memory.gb")
		}
		p.blocks = int(min((tokens-fixed/per)/int64(m.BlockTokens), maxBlocks+1))
	}
	if p.blocks < 2 || p.blocks > maxBlocks {
		return fmt.Errorf("memory: a worker has %d blocks of %d tokens, want 2 to %d: weights, and state of a fixed size for %d sequences, may not leave room; see memory, schedule.running, tp and weight_bits",
			p.blocks, m.BlockTokens, maxBlocks, p.sequences())
	}
	return nil
}

// sequences is how many can run.
func (p *Pool) sequences() int {
	if p.Memory.Slots > 0 {
		return min(p.Memory.Slots, p.Schedule.Running)
	}
	return p.Schedule.Running
}

// split makes the cost models of the two boxes of a layer split.
func (p *Pool) split() (err error) {
	s, t := p.Split, p.Timing
	or(&s.Gbps, 100)
	if p.File != "" || t.Model == "" && t.ModelSpec == nil || t.Hardware == "" && t.HardwareSpec == nil {
		return errors.New("split needs a model on hardware")
	}
	spec := t.ModelSpec
	if spec == nil {
		if spec, err = timed.FindModel(t.Model); err != nil {
			return err
		}
	}
	or(&s.ActivationBytes, 2*spec.Hidden)
	if !(s.Share > 0 && s.Share < 1) || !(s.Gbps > 0 && s.Gbps <= maxGbps) || !times(s.RTT) || s.ActivationBytes < 0 || s.ActivationBytes > 1<<30 {
		return fmt.Errorf("split: share is between 0 and 1, gbps above 0, at most %g, rtt from 0 to %v, activation_bytes from 0 to 2^30", maxGbps, MaxTime)
	}
	first, second := *spec, *spec
	first.Blocks, second.Blocks = nil, nil
	for _, b := range spec.Blocks {
		n := int(float64(b.Count)*s.Share + 0.5)
		if head := b.Count - n; head > 0 {
			x := b
			x.Count = head
			first.Blocks = append(first.Blocks, x)
		}
		if n > 0 {
			b.Count = n
			second.Blocks = append(second.Blocks, b)
		}
	}
	first.Vocab, first.MTP = 1, nil // logits are the second box's
	t.Model, t.ModelSpec = "", &first
	if p.model, err = t.Build(); err != nil {
		return fmt.Errorf("split: first box: %w", err)
	}
	if s.Hardware != "" {
		t.Hardware, t.HardwareSpec = s.Hardware, nil
	}
	t.ModelSpec = &second
	if p.second, err = t.Build(); err != nil {
		return fmt.Errorf("split: second box: %w", err)
	}
	return nil
}
