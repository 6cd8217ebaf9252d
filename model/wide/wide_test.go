package wide

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem/model"
	"github.com/tandem-llm/tandem/state"
)

func attention(t *testing.T, layers, heads int) Model {
	t.Helper()
	m, err := Attention(layers, heads)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The files are models that Tandem accepts, can hand off, and keep the state that
// their sizes promise.
func TestModels(t *testing.T) {
	for _, tt := range []struct {
		model Model
		arch  string
	}{
		{attention(t, 16, 8), "llama"},
		{attention(t, 2, 4), "llama"},
		{Recurrent(), "mamba2"},
		{Dense(), "llama"},
	} {
		t.Run(tt.model.Name(), func(t *testing.T) {
			if testing.Short() && tt.model.Name() == "dense" {
				t.Skip("half a gigabyte")
			}
			path := filepath.Join(t.TempDir(), "m.gguf")
			if err := tt.model.Write(path, 1); err != nil {
				t.Fatal(err)
			}
			m, err := model.Inspect(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Handoff(); err != nil {
				t.Error(err)
			}
			if m.Architecture != tt.arch {
				t.Errorf("architecture %s", m.Architecture)
			}
			if got, ok := m.TokenBytes(state.F16); !ok || got != uint64(tt.model.TokenBytes) {
				t.Errorf("%d bytes per token, said to be %d", got, tt.model.TokenBytes)
			}
			if got := m.FixedBytes(); got != uint64(tt.model.StateBytes) {
				t.Errorf("%d bytes of fixed state, said to be %d", got, tt.model.StateBytes)
			}
		})
	}
}

func TestSameSeedSameBytes(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, seed uint64) []byte {
		path := filepath.Join(dir, name)
		if err := attention(t, 2, 2).Write(path, seed); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	a, b, c := write("a", 1), write("b", 1), write("c", 2)
	if !bytes.Equal(a, b) {
		t.Error("the same seed gives other bytes")
	}
	if bytes.Equal(a, c) {
		t.Error("another seed gives the same bytes")
	}
}

func TestAttentionBounds(t *testing.T) {
	for _, x := range [][2]int{{0, 1}, {1, 0}, {MaxLayers + 1, 1}, {1, MaxKVHeads + 1}} {
		if _, err := Attention(x[0], x[1]); err == nil {
			t.Errorf("%v is accepted", x)
		}
	}
	if got := attention(t, 32, 16).TokenBytes; got != 256<<10 {
		t.Errorf("32 layers of 16 heads keep %d bytes per token", got)
	}
}

// Every byte has a token of its own, or text could not be read.
func TestByteRunes(t *testing.T) {
	seen := map[rune]bool{}
	for i := range 256 {
		seen[byteRune(byte(i))] = true
	}
	if len(seen) != 256 || byteRune(' ') != 'Ġ' || byteRune('a') != 'a' {
		t.Errorf("%d characters, space is %q", len(seen), byteRune(' '))
	}
}
