package sample

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// The state's encoding, little endian: magic "TSMP", a version byte, a flags
// byte, then the fields below in the order of appendState. One state has one
// encoding.
const (
	stateMagic   = "TSMP"
	stateVersion = 1
	flagLogprobs = 1 << 0
	flagHistory  = 1 << 1 // counts or window follow
)

// maxIndex bounds a restored index far above any context and far below overflow.
const maxIndex = 1 << 48

// MaxState bounds an encoded state, in bytes: parameters, biases and, for each
// token of the vocabulary, twelve bytes of counts.
const MaxState = 128 + 8*MaxBiases + 12*MaxVocab

// MarshalBinary encodes the whole state: parameters, counters and history.
func (s *Sampler) MarshalBinary() ([]byte, error) { return s.AppendBinary(nil) }

// AppendBinary appends the encoded state to b.
func (s *Sampler) AppendBinary(b []byte) ([]byte, error) {
	p := encoded(s.p)
	flags := byte(0)
	if p.Logprobs {
		flags |= flagLogprobs
	}
	if s.hist.active() {
		flags |= flagHistory
	}
	le := binary.LittleEndian
	f32 := func(v float32) { b = le.AppendUint32(b, math.Float32bits(v)) }
	b = append(b, stateMagic...)
	b = append(b, stateVersion, flags)
	b = le.AppendUint32(b, uint32(s.vocab))
	b = le.AppendUint64(b, s.index)
	b = le.AppendUint64(b, p.Seed)
	f32(p.Temperature)
	b = le.AppendUint32(b, uint32(min(p.TopK, s.vocab)))
	f32(p.TopP)
	f32(p.MinP)
	f32(p.RepetitionPenalty)
	f32(p.PresencePenalty)
	f32(p.FrequencyPenalty)
	b = le.AppendUint32(b, uint32(p.PenaltyWindow))
	b = append(b, byte(p.TopLogprobs))
	b = le.AppendUint32(b, uint32(len(s.biases)))
	for _, e := range s.biases {
		b = le.AppendUint32(b, uint32(e.token))
		f32(e.value)
	}
	if !s.hist.active() {
		return b, nil
	}
	if h := &s.hist; h.window > 0 {
		b = le.AppendUint32(b, uint32(len(h.ring)))
		b = le.AppendUint32(b, uint32(h.generated))
		for i := range h.ring {
			b = le.AppendUint32(b, uint32(h.ring[(h.start+i)%len(h.ring)]))
		}
		return b, nil
	}
	entries := slices.Clone(s.hist.entries)
	slices.SortFunc(entries, func(a, b entry) int { return int(a.token) - int(b.token) })
	b = le.AppendUint32(b, uint32(len(entries)))
	for _, e := range entries {
		b = le.AppendUint32(b, uint32(e.token))
		b = le.AppendUint32(b, e.seen)
		b = le.AppendUint32(b, e.made)
	}
	return b, nil
}

// encoded has the fields of Params that the encoding carries, which is all of
// them: the conversion stops compiling when Params gains a field.
type encoded struct {
	Temperature       float32
	TopK              int
	TopP              float32
	MinP              float32
	Seed              uint64
	RepetitionPenalty float32
	PresencePenalty   float32
	FrequencyPenalty  float32
	PenaltyWindow     int
	LogitBias         map[int32]float32
	Logprobs          bool
	TopLogprobs       int
}

// Restore returns the sampler whose state data is, for a vocabulary of that
// many tokens. It continues exactly where the other one was. The error matches
// [ErrState].
func Restore(data []byte, vocab int) (*Sampler, error) {
	s := new(Sampler)
	if err := s.UnmarshalBinary(data); err != nil {
		return nil, err
	}
	if s.vocab != vocab {
		return nil, fmt.Errorf("%w: for a vocabulary of %d, want %d", ErrState, s.vocab, vocab)
	}
	return s, nil
}

// UnmarshalBinary replaces the sampler by the one whose state data is. The
// input is checked as if hostile: parameters in range, tokens in the
// vocabulary, exact length, canonical form. It allocates at most 4 MB,
// whatever the input declares, and nothing but parameters where penalties are
// off. On error, which matches [ErrState], the sampler is unchanged.
func (s *Sampler) UnmarshalBinary(data []byte) error {
	if len(data) > MaxState {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrState, len(data), MaxState)
	}
	d := decoder{rest: data}
	if string(d.bytes(len(stateMagic))) != stateMagic {
		return fmt.Errorf("%w: not a sampler state", ErrState)
	}
	if v := d.u8(); v != stateVersion {
		return fmt.Errorf("%w: version %d, this build reads %d", ErrState, v, stateVersion)
	}
	flags := d.u8()
	if flags&^(flagLogprobs|flagHistory) != 0 {
		return fmt.Errorf("%w: unknown flags", ErrState)
	}
	vocab := int(d.u32())
	index := d.u64()
	p := Params{
		Seed: d.u64(), Temperature: d.f32(), TopK: int(d.u32()), TopP: d.f32(), MinP: d.f32(),
		RepetitionPenalty: d.f32(), PresencePenalty: d.f32(), FrequencyPenalty: d.f32(),
		PenaltyWindow: int(d.u32()), TopLogprobs: int(d.u8()), Logprobs: flags&flagLogprobs != 0,
	}
	n := int(d.u32())
	if d.short || n > MaxBiases || n*8 > len(d.rest) {
		return fmt.Errorf("%w: truncated", ErrState)
	}
	if index > maxIndex {
		return fmt.Errorf("%w: index %d out of range", ErrState, index)
	}
	if p.TopK > vocab {
		return fmt.Errorf("%w: top_k above the vocabulary size", ErrState)
	}
	p.LogitBias = make(map[int32]float32, n)
	for last := int64(-1); n > 0; n-- {
		token := d.u32()
		if int64(token) <= last {
			return fmt.Errorf("%w: biases out of order", ErrState)
		}
		last = int64(token)
		if token > math.MaxInt32 {
			return fmt.Errorf("%w: bias for a token outside the vocabulary", ErrState)
		}
		p.LogitBias[int32(token)] = d.f32()
	}
	if (flags&flagHistory != 0) != p.penalized() {
		return fmt.Errorf("%w: history and penalties disagree", ErrState)
	}
	fresh, err := New(p, vocab)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	fresh.index = index
	if err := fresh.readHistory(&d); err != nil {
		return err
	}
	if len(d.rest) > 0 {
		return fmt.Errorf("%w: %d bytes too many", ErrState, len(d.rest))
	}
	fresh.work = s.work
	*s = *fresh
	return nil
}

// readHistory fills the history of a new sampler from what follows the
// parameters.
func (s *Sampler) readHistory(d *decoder) error {
	h := &s.hist
	if !h.active() {
		return nil
	}
	n := int(d.u32())
	if h.window > 0 {
		made := int(d.u32())
		if d.short || n > h.window || n*4 > len(d.rest) || made > n || uint64(made) != min(s.index, uint64(n)) {
			return fmt.Errorf("%w: bad penalty window", ErrState)
		}
		for i := range n {
			t := d.u32()
			if t >= uint32(s.vocab) {
				return fmt.Errorf("%w: %w of %d", ErrState, ErrToken, s.vocab)
			}
			h.push(int32(t), i >= n-made)
		}
		return nil
	}
	if d.short || n > s.vocab || n*12 > len(d.rest) {
		return fmt.Errorf("%w: bad penalty counts", ErrState)
	}
	h.entries = make([]entry, 0, n)
	var made uint64
	for last := int64(-1); n > 0; n-- {
		t := d.u32()
		e := entry{token: int32(t), seen: d.u32(), made: d.u32()}
		if int64(t) <= last || t >= uint32(s.vocab) || e.seen == 0 || e.made > e.seen {
			return fmt.Errorf("%w: bad penalty counts", ErrState)
		}
		last = int64(t)
		h.entries = append(h.entries, e)
		h.where[t] = int32(len(h.entries))
		made += uint64(e.made)
	}
	if made != s.index {
		return fmt.Errorf("%w: penalty counts and index disagree", ErrState)
	}
	return nil
}

func sortedBiases(m map[int32]float32) []bias {
	if len(m) == 0 {
		return nil
	}
	out := make([]bias, 0, len(m))
	for t, v := range m {
		out = append(out, bias{t, v})
	}
	slices.SortFunc(out, func(a, b bias) int { return int(a.token) - int(b.token) })
	return out
}

// decoder reads fixed-width fields; past the end it returns zeros and sets short.
type decoder struct {
	rest  []byte
	short bool
}

func (d *decoder) bytes(n int) []byte {
	if n > len(d.rest) {
		d.short, d.rest = true, nil
		return make([]byte, n)
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) u8() byte     { return d.bytes(1)[0] }
func (d *decoder) u32() uint32  { return binary.LittleEndian.Uint32(d.bytes(4)) }
func (d *decoder) u64() uint64  { return binary.LittleEndian.Uint64(d.bytes(8)) }
func (d *decoder) f32() float32 { return math.Float32frombits(d.u32()) }
