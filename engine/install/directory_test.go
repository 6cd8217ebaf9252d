package install

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// libraries are the files of a usable directory on any platform.
func libraries(p platform) []entry {
	return []entry{
		{name: p.library("ggml-base"), body: ggmlBase(Commit)},
		{name: p.library("ggml"), body: "ggml"},
		{name: p.library("llama"), body: "llama"},
	}
}

// A directory that was named is used or refused, never passed over.
func TestInPlace(t *testing.T) {
	fakePath(t)
	plat := newTest(t, Options{}).plat
	good := libraryDir(t, libraries(plat))
	old := libraryDir(t, append(libraries(plat)[1:], entry{name: plat.library("ggml-base"), body: ggmlBase("5b4ebc5")}))
	versioned := libraryDir(t, []entry{{name: plat.prefix + "llama." + Release + plat.ext, body: "llama"}})
	odd := libraryDir(t, libraries(plat)[:2])
	if err := os.Mkdir(filepath.Join(odd, plat.library("llama")), 0o755); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, dir, env string
		want           Lib
		err            error
	}{
		{"option", good, "", Lib{good, Release, Commit, SourceOption}, nil},
		{"environment", "", good, Lib{good, Release, Commit, SourceEnv}, nil},
		{"option before environment", good, old, Lib{good, Release, Commit, SourceOption}, nil},
		{"another version", old, "", Lib{}, ErrVersion},
		{"another version in the environment", "", old, Lib{}, ErrVersion},
		{"without the names the loader opens", versioned, "", Lib{}, ErrIncomplete},
		{"a directory in a library's place", odd, "", Lib{}, ErrIncomplete},
		{"missing", filepath.Join(good, "missing"), "", Lib{}, ErrIncomplete},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := newTest(t, Options{Dir: tt.dir})
			in.env = tt.env
			for name, call := range map[string]func() (Lib, error){
				"find":   in.find,
				"ensure": func() (Lib, error) { return in.ensure(t.Context()) },
			} {
				lib, err := call()
				if lib != tt.want || !errors.Is(err, tt.err) {
					t.Errorf("%s: %+v, %v; want %+v, %v", name, lib, err, tt.want, tt.err)
				}
				var e *Error
				if err != nil && (!errors.As(err, &e) || e.Next == "") {
					t.Errorf("%s: error without a next step: %v", name, err)
				}
			}
			if left := leftovers(t, in); len(left) > 0 {
				t.Errorf("wrote into the cache: %v", left)
			}
		})
	}
}

func TestFrom(t *testing.T) {
	fakePath(t)
	in := newTest(t, Options{})
	if in.plat.goos != "linux" {
		t.Skip("the layouts are Linux ones")
	}
	at := func(dir string) (out []entry) {
		for _, e := range libraries(in.plat) {
			e.name = dir + "/" + e.name
			out = append(out, e)
		}
		return out
	}
	tests := []struct {
		name    string
		entries []entry
		files   []string // besides the record; links as name>target
		err     error
	}{
		{"plain", libraries(in.plat), []string{"libggml-base.so", "libggml.so", "libllama.so"}, nil},
		{"an unpacked npm package", npmEntries(in.plat), []string{"_nlcBuildMetadata.json", "libggml-base.so", "libggml-cpu-x64.so", "libggml.so>libggml.v0.5.0.so", "libggml.v0.5.0.so", "libllama.so>libllama.v0.5.0.so", "libllama.v0.5.0.so"}, nil},
		{"a llama.cpp build", at("build/bin"), []string{"libggml-base.so", "libggml.so", "libllama.so"}, nil},
		{"an install prefix", at("lib"), []string{"libggml-base.so", "libggml.so", "libllama.so"}, nil},
		{"sonames", []entry{
			{name: "libggml-base.so.0.25.1", body: ggmlBase(Commit)},
			{name: "libggml-base.so.0", link: "libggml-base.so.0.25.1"},
			{name: "libggml.so.0", body: "ggml"},
			{name: "libllama.so.0", body: "llama"},
			{name: "llama-server", body: "not a library"},
		}, []string{"libggml-base.so>libggml-base.so.0", "libggml-base.so.0>libggml-base.so.0.25.1", "libggml-base.so.0.25.1", "libggml.so>libggml.so.0", "libggml.so.0", "libllama.so>libllama.so.0", "libllama.so.0"}, nil},
		{
			"links out of the directory are followed", append(libraries(in.plat)[1:], entry{name: "libggml-base.so", link: "elsewhere/base"}, entry{name: "elsewhere/base", body: ggmlBase(Commit)}),
			[]string{"libggml-base.so", "libggml.so", "libllama.so"},
			nil,
		},
		{"a longer commit", append(libraries(in.plat)[1:], entry{name: "libggml-base.so", body: ggmlBase(Commit + "0123")}), []string{"libggml-base.so", "libggml.so", "libllama.so"}, nil},
		{"a modified build", append(libraries(in.plat)[1:], entry{name: "libggml-base.so", body: ggmlBase(Commit + "-dirty")}), nil, ErrVersion},
		{"a build without git", append(libraries(in.plat)[1:], entry{name: "libggml-base.so", body: ggmlBase("unknown")}), nil, ErrVersion},
		{"another release's package", append(libraries(in.plat), entry{name: "_nlcBuildMetadata.json", body: "{}"}), nil, ErrVersion},
		{"a dangling link", append(libraries(in.plat), entry{name: "libmtmd.so", link: "/nowhere/lib.so"}), nil, ErrIncomplete},
		{"empty", nil, nil, ErrIncomplete},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := newTest(t, Options{From: libraryDir(t, tt.entries), Offline: true})
			lib, err := in.ensure(t.Context())
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if err != nil {
				if left := leftovers(t, in); len(left) > 0 {
					t.Errorf("left in the cache: %v", left)
				}
				return
			}
			entries, err := os.ReadDir(lib.Dir)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range entries {
				name := e.Name()
				if name == recordName {
					continue
				}
				if link, err := os.Readlink(filepath.Join(lib.Dir, name)); err == nil {
					name += ">" + link
				}
				got = append(got, name)
			}
			if diff := cmp.Diff(tt.files, got); diff != "" {
				t.Errorf("installed (-want +got):\n%s", diff)
			}
			if found, err := in.find(); err != nil || found != lib {
				t.Errorf("find: %+v, %v", found, err)
			}
		})
	}
	if _, err := newTest(t, Options{From: filepath.Join(t.TempDir(), "missing")}).ensure(t.Context()); !errors.Is(err, ErrIncomplete) {
		t.Errorf("missing directory: error %v, want ErrIncomplete", err)
	}
}

func TestPlatforms(t *testing.T) {
	names := map[string][3]string{ // npm's name, the loader's name, a name to make it from
		"linux/amd64":   {"linux-x64", "libllama.so", "libllama.v0.5.0.so"},
		"linux/arm64":   {"linux-arm64", "libllama.so", "libllama.so.0"},
		"darwin/arm64":  {"mac-arm64-metal", "libllama.dylib", "libllama.metal.v0.5.0.dylib"},
		"darwin/amd64":  {"mac-x64", "libllama.dylib", "libllama.0.dylib"},
		"windows/amd64": {"win-x64", "llama.dll", "llama.v0.5.0.dll"},
		"windows/arm64": {"win-arm64", "llama.dll", "llama.v0.5.0.dll"},
	}
	for pair, want := range names {
		goos, goarch := filepath.Split(pair)
		p, err := platformOf(filepath.Clean(goos), goarch)
		if err != nil {
			t.Fatal(err)
		}
		if p.name != want[0] || p.library("llama") != want[1] {
			t.Errorf("%s: %s, %s", pair, p.name, p.library("llama"))
		}
		for _, name := range want[1:] {
			if !libraryFile.MatchString(name) {
				t.Errorf("%s is not taken for a library", name)
			}
		}
		if v := p.versioned("llama"); !v.MatchString(want[2]) || v.MatchString(p.library("llama")) || v.MatchString(p.library("llama-common")) {
			t.Errorf("%s: %v does not tell names apart", pair, v)
		}
		if p.versioned("ggml").MatchString(p.library("ggml-base")) || p.versioned("ggml").MatchString(p.library("ggml-cpu-x64")) {
			t.Errorf("%s: ggml is taken for another library", pair)
		}
	}
	if _, err := platformOf("plan9", "amd64"); !errors.Is(err, ErrPlatform) {
		t.Errorf("plan9: error %v, want ErrPlatform", err)
	}
	for _, name := range []string{"llama-addon.node", "../libllama.so", "libllama.so/x", "package.json", "lib.so.exe", recordName} {
		if libraryFile.MatchString(name) {
			t.Errorf("%s is taken for a library", name)
		}
	}
}

// Any bytes in place of a tarball: an error or files with library names in the
// given directory, nothing else anywhere.
func FuzzExtract(f *testing.F) {
	p, err := platformOf("linux", "amd64")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(tarballBytes(f, npmEntries(p)))
	f.Add(tarballBytes(f, []entry{{name: "package/bins/linux-x64/../../../libevil.so", body: "x"}}))
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		root := t.TempDir()
		path := filepath.Join(root, "package.tgz")
		if err := os.WriteFile(path, raw, 0o644); err != nil {
			t.Fatal(err)
		}
		in := &installer{plat: p, unpacked: 1 << 20}
		if err := in.extract(path, filepath.Join(root, "libs")); err != nil && !errors.Is(err, ErrArchive) {
			t.Errorf("error %v, want ErrArchive", err)
		}
		outer, err := os.ReadDir(root)
		if err != nil || len(outer) > 2 {
			t.Errorf("left %v, %v", outer, err)
		}
		inner, err := os.ReadDir(filepath.Join(root, "libs"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range inner {
			if !e.Type().IsRegular() || !libraryFile.MatchString(e.Name()) {
				t.Errorf("extracted %s", e)
			}
		}
	})
}
