package model

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/gguf"
)

func cacheAt(t *testing.T) string {
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	t.Setenv("HOME", dir)
	t.Setenv("LocalAppData", dir)
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(cache, "tandem", "digests")
}

func writeModel(t *testing.T, path string, value float32) {
	t.Helper()
	w := &gguf.Writer{}
	w.String("general.architecture", "llama")
	w.Float32Tensor("t", []uint64{4}, []float32{1, 2, 3, value})
	if err := w.WriteFile(path); err != nil {
		t.Fatal(err)
	}
}

func TestDigestIsOfTheBytes(t *testing.T) {
	dir := cacheAt(t)
	path, copied := filepath.Join(t.TempDir(), "a.gguf"), filepath.Join(t.TempDir(), "b.gguf")
	writeModel(t, path, 4)
	writeModel(t, copied, 4)
	a, err := Digest(path)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := Digest(copied); err != nil || b != a {
		t.Errorf("a copy has another digest, error %v", err)
	}
	writeModel(t, path, 5)
	if b, err := Digest(path); err != nil || b == a {
		t.Errorf("another weight leaves the digest, error %v", err)
	}
	if entries, err := os.ReadDir(dir); err == nil {
		t.Errorf("%d digests of small files are remembered", len(entries))
	}
	if _, err := Digest(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("digest of no file")
	}
}

// The digest of a large file is read from the cache while nothing about the file
// changes, computed when anything does, and computed when the cache is broken.
func TestDigestIsRemembered(t *testing.T) {
	cache := cacheAt(t)
	path := filepath.Join(t.TempDir(), "big.gguf")
	var b bytes.Buffer
	w := &gguf.Writer{}
	w.String("general.architecture", "llama")
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, cacheFrom); err != nil { // sparse
		t.Fatal(err)
	}
	digest := func() string {
		t.Helper()
		d, err := Digest(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(d[:])
	}
	touch := func(age time.Duration) {
		t.Helper()
		when := time.Now().Add(-age)
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
	}
	entries := func() []os.DirEntry { e, _ := os.ReadDir(cache); return e }

	touch(0)
	truth := digest()
	if len(entries()) != 0 {
		t.Error("the digest of a file that has just changed is remembered")
	}
	touch(time.Hour)
	if digest() != truth {
		t.Error("times are part of the digest")
	}
	if n := len(entries()); n != 1 {
		t.Fatalf("%d digests are remembered, want 1", n)
	}
	entry := filepath.Join(cache, entries()[0].Name())
	if err := os.WriteFile(entry, []byte(strings.Repeat("ab", 32)), 0o644); err != nil {
		t.Fatal(err)
	}
	if digest() == truth {
		t.Error("the file is read although its digest is remembered")
	}
	for _, broken := range []string{"", "zz", strings.Repeat("ab", 31), strings.Repeat("ab", 1000)} {
		if err := os.WriteFile(entry, []byte(broken), 0o644); err != nil {
			t.Fatal(err)
		}
		if digest() != truth {
			t.Errorf("a cache entry of %d bytes is believed", len(broken))
		}
	}
	touch(2 * time.Hour)
	if err := os.WriteFile(entry, []byte(strings.Repeat("ab", 32)), 0o644); err != nil {
		t.Fatal(err)
	}
	if digest() != truth {
		t.Error("the remembered digest outlives a change of the file")
	}
}
