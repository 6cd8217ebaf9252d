package tiny

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/tandem-llm/tandem/gguf"
	"github.com/zeebo/blake3"
)

func encoded(t *testing.T, arch Arch, seed uint64) []byte {
	t.Helper()
	w, err := build(arch, seed)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A change of any byte must come with a new Recipe and new digests: files under
// the old name stay in people's caches.
func TestBytesAreThoseOfTheRecipe(t *testing.T) {
	for _, arch := range Archs() {
		sum := blake3.Sum256(encoded(t, arch, DefaultSeed))
		if got := hex.EncodeToString(sum[:]); got != digests[arch] {
			t.Errorf("%s: recipe %d has digest %s, digests say %s", arch, Recipe, got, digests[arch])
		}
	}
}

func TestSeedChangesEveryMatrix(t *testing.T) {
	for _, arch := range Archs() {
		a, b := encoded(t, arch, 1), encoded(t, arch, 2)
		f, err := gguf.Read(bytes.NewReader(a), int64(len(a)), gguf.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if len(a) != len(b) {
			t.Fatalf("%s: %d and %d bytes", arch, len(a), len(b))
		}
		for _, tensor := range f.Tensors {
			if len(tensor.Dims) < 2 || strings.Contains(tensor.Name, "ssm_norm") || tensor.Dims[0] == 1 {
				continue // constants
			}
			start := uint64(f.DataOffset) + tensor.Offset
			if bytes.Equal(a[start:start+tensor.Bytes], b[start:start+tensor.Bytes]) {
				t.Errorf("%s: %s is the same for seeds 1 and 2", arch, tensor.Name)
			}
		}
	}
}

func TestUnknownArchitecture(t *testing.T) {
	for _, err := range []error{
		Write(filepath.Join(t.TempDir(), "m.gguf"), "gpt9", 1),
		func() error { _, err := Cached("gpt9"); return err }(),
	} {
		if !errors.Is(err, ErrUnknownArch) || !strings.Contains(err.Error(), string(NemotronHMoE)) {
			t.Errorf("error %v, want ErrUnknownArch and the known names", err)
		}
	}
}

// cacheAt points the user's cache directory to a new place, on every system.
func cacheAt(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	t.Setenv("HOME", dir)
	t.Setenv("LocalAppData", dir)
}

func TestCached(t *testing.T) {
	cacheAt(t)
	var wg sync.WaitGroup
	paths := make([]string, 4)
	for i := range paths {
		wg.Go(func() {
			var err error
			if paths[i], err = Cached(Llama); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	path := paths[0]
	for _, p := range paths {
		if p != path {
			t.Fatalf("paths %q and %q", p, path)
		}
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("%d files beside the model, want none left over", len(entries)-1)
	}

	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Cached(Llama); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Stat(path); !os.SameFile(before, after) {
		t.Error("a whole cached file was written again")
	}

	if err := os.WriteFile(path, whole[:len(whole)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Cached(Llama); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); !bytes.Equal(got, whole) {
		t.Error("a damaged cached file was kept")
	}
}

// Processes that have the old file mapped must keep it.
func TestWriteDoesNotTouchTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := Write(path, Llama, 1); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 8)
	if n, _ := old.ReadAt(b, 0); string(b[:n]) != "old" {
		t.Errorf("the open file now starts with %q", b[:n])
	}
}

func TestVocabulary(t *testing.T) {
	v := newVocab()
	if len(v.tokens) != vocabSize || len(v.types) != vocabSize || len(v.speakable) != vocabSize {
		t.Fatalf("%d tokens, want %d", len(v.tokens), vocabSize)
	}
	ids := make(map[string]bool)
	for _, tok := range v.tokens {
		if ids[tok] {
			t.Errorf("token %q appears twice", tok)
		}
		ids[tok] = true
	}
	for _, m := range v.merges {
		left, right, ok := strings.Cut(m, " ")
		if !ok || !ids[left] || !ids[right] || !ids[left+right] {
			t.Errorf("merge %q does not join two tokens to a third", m)
		}
	}
	back := make(map[rune]byte)
	for b, r := range byteRunes() {
		back[r] = byte(b)
	}
	if len(back) != 256 {
		t.Fatalf("%d characters stand for 256 bytes", len(back))
	}
	speakable := 0
	for i, tok := range v.tokens {
		if !v.speakable[i] {
			continue
		}
		speakable++
		var text []byte
		for _, r := range tok {
			text = append(text, back[r])
		}
		if v.types[i] != tokenNormal || !utf8.Valid(text) {
			t.Errorf("answers may contain token %d, %q of type %d", i, text, v.types[i])
		}
	}
	if speakable < 200 {
		t.Errorf("answers may contain %d tokens only", speakable)
	}
	for _, id := range []int{v.endOfText, v.imStart, v.imEnd} {
		if v.types[id] != tokenControl {
			t.Errorf("special token %d has type %d", id, v.types[id])
		}
	}
}
