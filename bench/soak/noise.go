package soak

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/tandem-llm/tandem/engine"
)

// Noise is what batching does to logits on this machine with this model: the same
// tokens computed alone, and beside others, in other cells and anew, without a handoff.
//
// It has a long tail. Where two experts of a mixture are almost equally good, or a sum
// nearly overflows its type, a last bit decides, and the logits of a step jump. So the
// bound stands on what is usual, and a token beyond it must be found again in a control
// run of its own answer, see [control].
type Noise struct {
	// Steps were compared. Usual is what the largest difference of a logit stays below in
	// 95 of 100 of them, Max the largest of all.
	Steps int     `json:"steps"`
	Usual float64 `json:"usual"`
	Max   float64 `json:"max"`
	// Bound is by how much the reference may prefer another token: two logits are
	// compared, and both may be off.
	Bound float64 `json:"bound"`
	// Margin is the median of what is between the two best logits, and Close the share of
	// steps in which they are within the bound of each other: there it decides nothing.
	Margin float64 `json:"margin"`
	Close  Share   `json:"close"`
}

// noiseSize is how much is measured: rounds of as many sequences as the engines have
// slots, each of so many tokens.
type noiseSize struct{ rounds, steps int }

// noiseFor is the size for a soak of so many requests: a short one needs no longer
// measurement than what it measures.
func noiseFor(requests int) noiseSize { return noiseSize{rounds: min(3, 1+requests/200), steps: 80} }

// noiseAnew is the number of steps in which one sequence is computed anew.
const noiseAnew = 8

// measureNoise computes prompts of the generator in two engines with equal settings:
// in alone each token by itself, in crowd all sequences in one batch, with prompts
// that share batches and cells that others left. The engines are empty afterwards.
func measureNoise(ctx context.Context, alone, crowd engine.Engine, chunk int, g *Generator, size noiseSize) (Noise, error) {
	info := alone.Info()
	m := &noiseRun{alone: newReference(alone, chunk), crowd: newReference(crowd, chunk)}
	for round := range size.rounds {
		prompts := make([][]int32, info.Slots)
		for i := range prompts {
			q := g.Request(1<<30 + round*info.Slots + i)
			most := min(info.ContextTokens, info.Cells/info.Slots) - size.steps
			prompts[i] = q.Prompt[:min(len(q.Prompt), max(1, most))]
		}
		if err := m.round(ctx, prompts, size.steps); err != nil {
			return Noise{}, fmt.Errorf("soak: measure the noise of batching: %w", err)
		}
	}
	slices.Sort(m.worst)
	slices.Sort(m.margins)
	n := Noise{Steps: len(m.worst), Usual: m.worst[len(m.worst)*95/100], Max: m.worst[len(m.worst)-1], Margin: m.margins[len(m.margins)/2]}
	n.Bound = 2 * n.Usual
	within, _ := slices.BinarySearch(m.margins, n.Bound)
	n.Close = Share{within, len(m.margins)}
	return n, nil
}

type noiseRun struct {
	alone, crowd *reference
	worst        []float64 // largest difference of each step
	margins      []float64
	single       []float32 // logits of each sequence alone, one after the other
}

func (m *noiseRun) round(ctx context.Context, prompts [][]int32, steps int) error {
	size := m.alone.eng.Vocab().Size()
	m.single = slices.Grow(m.single[:0], size*len(prompts))[:size*len(prompts)]
	history := make([][]int32, len(prompts))
	next := make([]int32, len(prompts))
	defer func() {
		for i := range prompts {
			_, _ = m.alone.eng.Drop(int32(i)), m.crowd.eng.Drop(int32(i))
		}
	}()
	keep := func(seq, row int) error {
		logits, err := m.alone.eng.Logits(row)
		if err != nil {
			return err
		}
		copy(m.single[seq*size:], logits)
		best, second := twoBest(logits)
		next[seq] = best
		m.margins = append(m.margins, float64(logits[best])-float64(logits[second]))
		return nil
	}
	for i, p := range prompts {
		history[i] = slices.Clone(p)
		row, err := m.alone.extend(int32(i), 0, p)
		if err != nil {
			return err
		}
		if err := keep(i, row); err != nil {
			return err
		}
	}
	if err := m.together(prompts); err != nil {
		return err
	}
	for step := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		rows := m.crowd.rows[:0]
		for i := range prompts {
			row := engine.Row{Token: next[i], Pos: int32(len(history[i])), Seq: int32(i), Output: true}
			rows = append(rows, row)
			history[i] = append(history[i], next[i])
			if err := m.alone.eng.Decode([]engine.Row{row}); err != nil {
				return err
			}
			if err := keep(i, 0); err != nil {
				return err
			}
		}
		anew := -1
		if step%noiseAnew == noiseAnew-1 {
			anew = step / noiseAnew % len(prompts)
			rows = slices.Delete(rows, anew, anew+1)
		}
		if len(rows) > 0 {
			if err := m.crowd.eng.Decode(rows); err != nil {
				return err
			}
			for row := range rows {
				if err := m.compare(int(rows[row].Seq), row); err != nil {
					return err
				}
			}
		}
		if anew >= 0 { // as after the loss of a worker
			if err := m.crowd.eng.Drop(int32(anew)); err != nil {
				return err
			}
			row, err := m.crowd.extend(int32(anew), 0, history[anew])
			if err != nil {
				return err
			}
			if err := m.compare(anew, row); err != nil {
				return err
			}
		}
	}
	return nil
}

// together computes prompts in the crowd's engine, the chunks of several in one batch.
func (m *noiseRun) together(prompts [][]int32) error {
	done := make([]int, len(prompts))
	for {
		rows := m.crowd.rows[:0]
		ends := [][2]int{} // of prompts that end in this batch: sequence and row
		share := max(1, m.crowd.chunk/len(prompts))
		for i, p := range prompts {
			n := min(len(p)-done[i], share, m.crowd.chunk-len(rows))
			for j := range n {
				end := done[i]+j == len(p)-1
				if end {
					ends = append(ends, [2]int{i, len(rows)})
				}
				rows = append(rows, engine.Row{Token: p[done[i]+j], Pos: int32(done[i] + j), Seq: int32(i), Output: end})
			}
			done[i] += n
		}
		if len(rows) == 0 {
			return nil
		}
		if err := m.crowd.eng.Decode(rows); err != nil {
			return err
		}
		for _, e := range ends {
			if err := m.compare(e[0], e[1]); err != nil {
				return err
			}
		}
	}
}

// compare takes the differences of a row of the crowd's to the sequence alone.
func (m *noiseRun) compare(seq, row int) error {
	logits, err := m.crowd.eng.Logits(row)
	if err != nil {
		return err
	}
	single := m.single[seq*len(logits) : (seq+1)*len(logits)]
	worst := 0.0
	for i, l := range logits {
		d := math.Abs(float64(l) - float64(single[i]))
		if math.IsNaN(d) || math.IsInf(d, 0) {
			return fmt.Errorf("a logit is not a number")
		}
		worst = max(worst, d)
	}
	m.worst = append(m.worst, worst)
	return nil
}

// twoBest returns the largest logit's token and the next one's, the lower id on ties.
func twoBest(logits []float32) (best, second int32) {
	best, second = -1, -1
	for i, l := range logits {
		switch t := int32(i); {
		case best < 0 || l > logits[best]:
			best, second = t, best
		case second < 0 || l > logits[second]:
			second = t
		}
	}
	return best, max(second, 0)
}
