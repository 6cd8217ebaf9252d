package preflight

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMissing(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	with := write("with", "glibc-ld.so.cache1.1\x00libfoo.so.1\x00libffi.so.8\x00/usr/lib/libffi.so.8\x00")
	without := write("without", "glibc-ld.so.cache1.1\x00libffi.so.80\x00xlibffi.so.8\x00libffi.so.7\x00")
	lib := filepath.Dir(write("lib/"+library, ""))
	empty := t.TempDir()
	for _, c := range []struct {
		name, cache, path string
		dirs              []string
		want              bool
	}{
		{"in the cache", with, "", nil, false},
		{"nowhere", without, "", []string{empty}, true},
		{"in LD_LIBRARY_PATH", without, empty + ":" + lib, nil, false},
		{"not in LD_LIBRARY_PATH", without, empty + ":" + dir + ":", nil, true},
		{"in a system directory", without, "", []string{empty, lib}, false},
		{"a loader of another kind", filepath.Join(dir, "none"), "", nil, false},
	} {
		if got := missing(c.cache, c.path, c.dirs); got != c.want {
			t.Errorf("%s: missing is %v", c.name, got)
		}
	}
	if missing(cacheFile, os.Getenv("LD_LIBRARY_PATH"), directories) {
		t.Error("this test would not run without the library")
	}
}
