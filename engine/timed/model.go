package timed

import (
	"errors"
	"fmt"
)

// A Batch is what one engine step computes.
type Batch struct {
	// Decodes is the number of sequences that get one token each.
	Decodes int
	// Context is the number of tokens that those sequences hold before the step,
	// all together.
	Context int64
	// Drafts is the number of proposed tokens that the step verifies beside the
	// Decodes rows, all together (see Speculation).
	Drafts int
	// Chunks are the pieces of prompts in the step. They are only read.
	Chunks []Chunk
}

// A Chunk is New tokens of one prompt, computed on top of Past tokens that the
// sequence holds already (computed before, or found in a cache).
type Chunk struct{ New, Past int }

// A Model says how long steps and moves of state take. It is immutable and safe
// for concurrent use; nothing in it allocates after it was made, up to MaxDecodes
// sequences in a batch.
type Model struct {
	name     string
	law      law
	decode   []curve // by number of sequences; [0] is unused
	geometry Geometry
	moves    Moves
	spec     *Speculation

	// Bytes of one device: its memory, its weights, and attention state per token;
	// 0 where not known.
	memory, resident, perToken float64
}

// A law is one kind of cost model.
type law interface {
	// curve returns the sealed curve of a batch of that many sequences.
	curve(decodes int) (curve, error)
	// mixed is the time in picoseconds of a batch that is more than decodes.
	mixed(b *Batch) float64
	// same reports whether all numbers of sequences have one curve.
	same() bool
}

// DefaultMaxDecodes is how many sequences in a batch a model has tables for.
const DefaultMaxDecodes = 1024

// build makes the tables of a model.
func build(name string, l law, o Common) (*Model, error) {
	maxDecodes := o.MaxDecodes
	if maxDecodes == 0 {
		maxDecodes = DefaultMaxDecodes
	}
	if maxDecodes < 0 || maxDecodes > 1<<13 {
		return nil, fmt.Errorf("timed: max_decodes is %d, and must be from 1 to 8192", maxDecodes)
	}
	if err := o.Geometry.check(); err != nil {
		return nil, err
	}
	if err := o.Moves.check(); err != nil {
		return nil, err
	}
	if o.Speculation != nil {
		if err := o.Speculation.Check(); err != nil {
			return nil, err
		}
	}
	m := &Model{name: name, law: l, geometry: o.Geometry, moves: o.Moves, spec: o.Speculation}
	m.decode = make([]curve, maxDecodes+1)
	for d := 1; d <= maxDecodes; d++ {
		if d > 1 && l.same() {
			m.decode[d] = m.decode[1]
			continue
		}
		c, err := l.curve(d)
		if err != nil {
			return nil, fmt.Errorf("timed: %s with %d sequences: %w", name, d, err)
		}
		m.decode[d] = c
	}
	return m, nil
}

// Name describes the model in a few words.
func (m *Model) Name() string { return m.name }

// Geometry says how large a sequence's state is.
func (m *Model) Geometry() Geometry { return m.geometry }

// Speculation is what the model was made with, nil for none.
func (m *Model) Speculation() *Speculation { return m.spec }

// MaxDecodes is the largest batch that has a table; a larger one is computed
// anew at each call.
func (m *Model) MaxDecodes() int { return len(m.decode) - 1 }

// curveOf returns the curve of a number of sequences, at least one.
func (m *Model) curveOf(decodes int) curve {
	if decodes < len(m.decode) {
		return m.decode[decodes]
	}
	c, err := m.law.curve(decodes)
	if err != nil {
		return never
	}
	return c
}

// never is the curve of a batch that is too large to compute.
var never = curve{{base: maxBase}, {from: maxContext, base: maxBase}}

// Step is the time of one engine step. An empty batch takes none.
func (m *Model) Step(b *Batch) Time {
	if len(b.Chunks) == 0 && b.Drafts == 0 {
		if b.Decodes <= 0 {
			return 0
		}
		return m.curveOf(b.Decodes).at(b.Context)
	}
	return max(1, Picoseconds(m.law.mixed(b)))
}

// Stretch is the time of steps decode steps in a row, in which nothing but the
// context changes: the first one has that context, each next one decodes tokens
// more. It equals the sum of the Steps exactly, or is Never if that does not fit.
// It takes constant time.
func (m *Model) Stretch(decodes int, context int64, steps int) Time {
	if decodes <= 0 {
		return 0
	}
	return m.curveOf(decodes).stretch(int64(decodes), context, int64(steps))
}

// StepsWithin is the largest number of steps, at most most, whose Stretch is not
// longer than within.
func (m *Model) StepsWithin(decodes int, context int64, within Time, most int) int {
	if decodes <= 0 {
		return max(most, 0)
	}
	return int(m.curveOf(decodes).within(int64(decodes), context, within, int64(most)))
}

// StretchITL visits the step times of a Stretch in order, as runs of steps with
// the same [Time.Quantize]: step is that value, count the number of steps. The
// counts are exact: visiting the quantized time of each Step gives the same.
func (m *Model) StretchITL(decodes int, context int64, steps int, visit func(step Time, count int)) {
	if decodes > 0 {
		m.curveOf(decodes).runs(int64(decodes), context, int64(steps), visit)
	}
}

// Quantize returns the middle of t's histogram bucket. Buckets are at most 1/1024
// of a time wide and exact below 2048 ps; times below 0 stay what they are.
func (t Time) Quantize() Time {
	if t <= 0 || t == Never {
		return t
	}
	low, next := bucket(int64(t))
	return Time(low + (next-low)/2)
}

// Capacity is the number of tokens whose attention state fits beside the weights
// when the engine may use that fraction of the memory; windows and fixed-size
// state, which depend on the number of sequences, are not taken off. It is 0 if
// the weights alone do not fit, and -1 if the model does not know its memory.
func (m *Model) Capacity(fraction float64) int64 {
	if m.memory == 0 || m.perToken == 0 {
		return -1
	}
	return max(0, int64((float64(m.memory*fraction)-m.resident)/m.perToken))
}

// WeightBytes is the weights that one device holds, 0 if the model does not know.
func (m *Model) WeightBytes() int64 { return int64(m.resident) }

// Moves are the costs of moving state in and out of an engine, apart from the
// wire. A rate of 0 means that it takes no time.
type Moves struct {
	ExportBytesPerSecond  float64 `yaml:"export_bytes_per_second,omitempty" json:"export_bytes_per_second,omitempty"`
	ImportBytesPerSecond  float64 `yaml:"import_bytes_per_second,omitempty" json:"import_bytes_per_second,omitempty"`
	ConvertBytesPerSecond float64 `yaml:"convert_bytes_per_second,omitempty" json:"convert_bytes_per_second,omitempty"`
	// Milliseconds that each export, import or conversion takes beside its bytes.
	ExportMS  float64 `yaml:"export_ms,omitempty" json:"export_ms,omitempty"`
	ImportMS  float64 `yaml:"import_ms,omitempty" json:"import_ms,omitempty"`
	ConvertMS float64 `yaml:"convert_ms,omitempty" json:"convert_ms,omitempty"`
}

func (mv *Moves) check() error {
	for _, f := range []float64{mv.ExportBytesPerSecond, mv.ImportBytesPerSecond, mv.ConvertBytesPerSecond, mv.ExportMS, mv.ImportMS, mv.ConvertMS} {
		if !(f >= 0 && f < 1e18) {
			return errors.New("timed: costs of moving state are numbers from 0 to 1e18")
		}
	}
	return nil
}

// Export is the time to take that many bytes of a page or snapshot out of the
// engine.
func (m *Model) Export(bytes int64) Time {
	return move(bytes, m.moves.ExportBytesPerSecond, m.moves.ExportMS)
}

// Import is the time to put that many bytes into the engine.
func (m *Model) Import(bytes int64) Time {
	return move(bytes, m.moves.ImportBytesPerSecond, m.moves.ImportMS)
}

// Convert is the time to change the layout of that many bytes (another number of
// tensor-parallel ways, another element type).
func (m *Model) Convert(bytes int64) Time {
	return move(bytes, m.moves.ConvertBytesPerSecond, m.moves.ConvertMS)
}

func move(bytes int64, rate, ms float64) Time {
	s := float64(ms * 1e-3)
	if rate > 0 && bytes > 0 {
		s += float64(bytes) / rate
	}
	return OfSeconds(s)
}
