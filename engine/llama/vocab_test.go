package llama

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/model/tiny"
)

// A vocabulary alone says what the engine's says.
func TestOpenVocab(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			o := options(t, arch)
			v, err := OpenVocab(o.Lib, o.Model)
			if err != nil {
				t.Fatal(err)
			}
			e := open(t, arch)
			w := e.Vocab()
			if v.Size() != w.Size() || v.BOS() != w.BOS() || v.EOS() != w.EOS() || v.AddBOS() != w.AddBOS() {
				t.Error("sizes or special tokens differ")
			}
			if v.ChatTemplate() == "" || v.ChatTemplate() != w.ChatTemplate() {
				t.Error("chat templates differ, or there is none")
			}
			for i := range engine.Token(v.Size()) {
				if !bytes.Equal(v.Piece(i), w.Piece(i)) || v.Text(i) != w.Text(i) || v.IsEOG(i) != w.IsEOG(i) || v.IsControl(i) != w.IsControl(i) {
					t.Fatalf("token %d differs", i)
				}
				if v.IsControl(i) && len(v.Piece(i)) > 0 {
					t.Errorf("control token %d is part of the text", i)
				}
			}
			if !v.IsEOG(v.EOS()) {
				t.Error("EOS does not end a generation")
			}
			text := "Hello <s> wörld</s>\n"
			for _, special := range []bool{false, true} {
				a, err1 := v.Tokenize(text, special, special)
				b, err2 := w.Tokenize(text, special, special)
				if err1 != nil || err2 != nil || !slices.Equal(a, b) {
					t.Errorf("%v %v, %v %v", a, b, err1, err2)
				}
			}
			for range 2 {
				if err := v.Close(); err != nil {
					t.Error(err)
				}
			}
			if _, err := v.Tokenize("x", false, false); !errors.Is(err, engine.ErrClosed) {
				t.Errorf("closed: %v", err)
			}
			if v.Text(1) != "" || v.IsEOG(-1) {
				t.Error("a closed vocabulary still answers")
			}
		})
	}
}

// Any text comes back whole, from any number of goroutines at once.
func TestTokenizeConcurrently(t *testing.T) {
	o := options(t, tiny.Llama)
	v, err := OpenVocab(o.Lib, o.Model)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for range 50 {
				b := make([]byte, r.IntN(300))
				for i := range b {
					b[i] = byte(r.IntN(256))
				}
				text := strings.ToValidUTF8(string(b), "→")
				tokens, err := v.Tokenize(text, false, false)
				if err != nil {
					t.Error(err)
					return
				}
				var back []byte
				for _, tok := range tokens {
					back = append(back, v.Piece(tok)...)
				}
				if string(back) != text {
					t.Errorf("%q came back as %q", text, back)
				}
			}
		})
	}
	wg.Wait()
}

func TestTokenizeLimits(t *testing.T) {
	v := open(t, tiny.Llama).Vocab()
	for _, bad := range []string{"\xff", "a\xc3", strings.Repeat("x", maxText+1)} {
		if _, err := v.Tokenize(bad, false, false); !errors.Is(err, ErrText) {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
	long := strings.Repeat("many words \x00 and a null; ", 40000)
	tokens, err := v.Tokenize(long, true, true)
	if err != nil || len(tokens) == 0 || !utf8.ValidString(long) {
		t.Errorf("a megabyte: %d tokens, %v", len(tokens), err)
	}
	if tokens, err := v.Tokenize("", false, false); err != nil || len(tokens) != 0 {
		t.Errorf("nothing: %v, %v", tokens, err)
	}
}
