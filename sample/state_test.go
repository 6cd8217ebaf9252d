package sample

import (
	"encoding/hex"
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Version 1 of the encoding, byte by byte.
func TestStateGolden(t *testing.T) {
	s := mustNew(t, Params{
		Temperature: 1, TopK: 2, TopP: 0.5, MinP: 0.25, Seed: 0x0102030405060708,
		RepetitionPenalty: 2, PresencePenalty: -1, FrequencyPenalty: 0.5, PenaltyWindow: 3,
		LogitBias: map[int32]float32{9: -1, 4: 1}, Logprobs: true, TopLogprobs: 5,
	}, 16)
	if err := s.Prime([]int32{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	if err := s.Accept(15); err != nil {
		t.Fatal(err)
	}
	want := "54534d50" + "01" + "03" + // magic, version, flags
		"10000000" + "0100000000000000" + "0807060504030201" + // vocabulary, index, seed
		"0000803f" + "02000000" + "0000003f" + "0000803e" + // temperature, top-k, top-p, min-p
		"00000040" + "000080bf" + "0000003f" + "03000000" + // penalties, window
		"05" + // top logprobs
		"02000000" + "04000000" + "0000803f" + "09000000" + "000080bf" + // biases
		"03000000" + "01000000" + "02000000" + "03000000" + "0f000000" // window: length, generated, tokens
	if diff := cmp.Diff(want, hex.EncodeToString(mustMarshal(t, s))); diff != "" {
		t.Errorf("window (-want +got):\n%s", diff)
	}

	s = mustNew(t, Params{FrequencyPenalty: 0.5}, 16)
	if err := s.Prime([]int32{9, 1, 1}); err != nil {
		t.Fatal(err)
	}
	if err := s.Accept(1); err != nil {
		t.Fatal(err)
	}
	want = "54534d50" + "01" + "02" +
		"10000000" + "0100000000000000" + "0000000000000000" +
		"00000000" + "00000000" + "00000000" + "00000000" +
		"00000000" + "00000000" + "0000003f" + "00000000" +
		"00" + "00000000" +
		"02000000" + "01000000" + "03000000" + "01000000" + "09000000" + "01000000" + "00000000" // counts: token, seen, generated
	if diff := cmp.Diff(want, hex.EncodeToString(mustMarshal(t, s))); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

// states are valid encodings to damage.
func states(t testing.TB) map[string][]byte {
	out := map[string][]byte{}
	for name, p := range map[string]Params{
		"plain":  {Temperature: 1, Seed: 5},
		"window": {Temperature: 1, RepetitionPenalty: 2, PenaltyWindow: 3, LogitBias: map[int32]float32{1: 2, 7: 3}},
		"counts": {PresencePenalty: 1, Logprobs: true, TopLogprobs: 2},
	} {
		s := mustNew(t, p, 16)
		for _, err := range []error{s.Prime([]int32{1, 2, 2}), s.Accept(3), s.Accept(3)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		out[name] = mustMarshal(t, s)
	}
	return out
}

func TestRestoreRefuses(t *testing.T) {
	const (
		atVersion, atFlags, atVocab, atIndex = 4, 5, 6, 10
		atTemperature, atTopK, atWindow      = 26, 30, 54
		atBiases                             = 59
	)
	nan := math.Float32bits(float32(math.NaN()))
	tests := []struct {
		name  string
		state string
		spoil func(b []byte) []byte
	}{
		{"empty", "plain", func(b []byte) []byte { return nil }},
		{"magic", "plain", func(b []byte) []byte { b[0] ^= 1; return b }},
		{"version", "plain", func(b []byte) []byte { b[atVersion]++; return b }},
		{"unknown flag", "plain", func(b []byte) []byte { b[atFlags] |= 1 << 7; return b }},
		{"history nobody needs", "plain", func(b []byte) []byte { b[atFlags] |= flagHistory; return append(b, 0, 0, 0, 0) }},
		{"no history", "counts", func(b []byte) []byte { b[atFlags] &^= flagHistory; return b }},
		{"trailing byte", "plain", func(b []byte) []byte { return append(b, 0) }},
		{"another vocabulary", "plain", func(b []byte) []byte { b[atVocab]++; return b }},
		{"huge vocabulary", "plain", func(b []byte) []byte { put(b, atVocab, 1<<31); return b }},
		{"zero vocabulary", "plain", func(b []byte) []byte { put(b, atVocab, 0); return b }},
		{"index about to overflow", "plain", func(b []byte) []byte { put(b, atIndex+4, math.MaxUint32); return b }},
		{"temperature", "plain", func(b []byte) []byte { put(b, atTemperature, nan); return b }},
		{"top-k above the vocabulary", "plain", func(b []byte) []byte { put(b, atTopK, 17); return b }},
		{"huge window", "window", func(b []byte) []byte { put(b, atWindow, 1<<30); return b }},
		{"too many biases", "plain", func(b []byte) []byte { put(b, atBiases, 1<<30); return b }},
		{"biases out of order", "window", func(b []byte) []byte { put(b, atBiases+4, 8); return b }},
		{"bias twice", "window", func(b []byte) []byte { put(b, atBiases+4, 7); return b }},
		{"bias outside the vocabulary", "window", func(b []byte) []byte { put(b, atBiases+12, 16); return b }},
		{"window longer than allowed", "window", func(b []byte) []byte { put(b, len(b)-20, 4); return append(b, 0, 0, 0, 0) }},
		{"window declares more than there is", "window", func(b []byte) []byte { put(b, len(b)-20, 3); return b[:len(b)-4] }},
		{"more generated than accepted", "window", func(b []byte) []byte { put(b, len(b)-16, 3); return b }},
		{"window token outside", "window", func(b []byte) []byte { put(b, len(b)-4, 16); return b }},
		{"negative window token", "window", func(b []byte) []byte { put(b, len(b)-4, math.MaxUint32); return b }},
		{"counts out of order", "counts", func(b []byte) []byte { put(b, len(b)-12, 1); return b }},
		{"count token outside", "counts", func(b []byte) []byte { put(b, len(b)-12, 16); return b }},
		{"more generated than seen", "counts", func(b []byte) []byte { put(b, len(b)-8, 1); return b }},
		{"count of zero", "counts", func(b []byte) []byte { put(b, len(b)-8, 0); put(b, len(b)-4, 0); put(b, atIndex, 0); return b }},
		{"counts and index disagree", "counts", func(b []byte) []byte { put(b, atIndex, 1); return b }},
		{"more counts than there are", "counts", func(b []byte) []byte { put(b, len(b)-40, 4); return b }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			good := states(t)[tt.state]
			if _, err := Restore(good, 16); err != nil {
				t.Fatalf("the unspoilt state: %v", err)
			}
			if _, err := Restore(tt.spoil(good), 16); !errors.Is(err, ErrState) {
				t.Errorf("error %v, want ErrState", err)
			}
		})
	}
	for name, good := range states(t) {
		for n := range good {
			if _, err := Restore(good[:n], 16); !errors.Is(err, ErrState) {
				t.Fatalf("%s cut to %d of %d bytes: error %v, want ErrState", name, n, len(good), err)
			}
		}
	}
	if _, err := Restore(make([]byte, MaxState+1), 16); !errors.Is(err, ErrState) {
		t.Errorf("too long: error %v, want ErrState", err)
	}
}

func put(b []byte, at int, v uint32) {
	b[at], b[at+1], b[at+2], b[at+3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
}

// A failed restore leaves the sampler as it was.
func TestUnmarshalFailureChangesNothing(t *testing.T) {
	s := mustNew(t, Params{Temperature: 1, FrequencyPenalty: 1}, 16)
	if err := s.Accept(3); err != nil {
		t.Fatal(err)
	}
	before := mustMarshal(t, s)
	if err := s.UnmarshalBinary(before[:len(before)-1]); !errors.Is(err, ErrState) {
		t.Fatalf("error %v, want ErrState", err)
	}
	if diff := cmp.Diff(before, mustMarshal(t, s)); diff != "" {
		t.Errorf("state changed (-before +after):\n%s", diff)
	}
}

// Whatever is accepted is canonical, works and continues from itself.
func FuzzUnmarshal(f *testing.F) {
	for _, b := range states(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Sampler
		if err := s.UnmarshalBinary(b); err != nil {
			if !errors.Is(err, ErrState) {
				t.Errorf("error %v does not match ErrState", err)
			}
			return
		}
		if got := mustMarshal(t, &s); string(got) != string(b) {
			t.Errorf("accepted\n%x\nencodes as\n%x", b, got)
		}
		if s.vocab > 1<<12 {
			return // only for the speed of the fuzzer
		}
		c, err := s.Sample(make([]float32, s.vocab))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Accept(c.Token); err != nil {
			t.Fatal(err)
		}
		if _, err := Restore(mustMarshal(t, &s), s.vocab); err != nil && s.index <= maxIndex {
			t.Errorf("after one token: %v", err)
		}
	})
}
