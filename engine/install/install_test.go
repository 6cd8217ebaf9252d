package install

import (
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The real thing: the package from the npm registry.
func TestInstallFromRegistry(t *testing.T) {
	t.Setenv(EnvDir, "")
	o := Options{Cache: filepath.Join(t.TempDir(), "tandem"), Via: SourceNPM}
	if _, err := Find(o); !errors.Is(err, ErrNotInstalled) {
		t.Fatalf("Find in an empty cache: %v, want ErrNotInstalled", err)
	}
	var said []string
	o.Progress = func(line string) { said = append(said, line) }
	lib, err := Ensure(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if lib.Version != Release || lib.Build != Commit || lib.Source != SourceNPM || !filepath.IsAbs(lib.Dir) {
		t.Errorf("installed %+v", lib)
	}
	if all := strings.Join(said, "\n"); !strings.Contains(all, "@node-llama-cpp/") || !strings.Contains(all, lib.String()) {
		t.Errorf("said only:\n%s", all)
	}
	// Everything below must work without tools.
	t.Setenv("PATH", t.TempDir())
	if again, err := Ensure(t.Context(), o); err != nil || again != lib {
		t.Errorf("second Ensure: %+v, %v", again, err)
	}
	if found, err := Find(o); err != nil || found != lib {
		t.Errorf("Find: %+v, %v", found, err)
	}
	if inPlace, err := Ensure(t.Context(), Options{Dir: lib.Dir, Offline: true}); err != nil || inPlace.Dir != lib.Dir || inPlace.Source != SourceOption {
		t.Errorf("in place: %+v, %v", inPlace, err)
	}
	copied, err := Ensure(t.Context(), Options{From: lib.Dir, Cache: t.TempDir(), Offline: true})
	if err != nil || copied.Dir == lib.Dir || copied.Source != SourceFrom {
		t.Errorf("copied: %+v, %v", copied, err)
	}
}

func TestInstallFromTarball(t *testing.T) {
	log := fakePath(t, "npm", "go")
	in := newTest(t, Options{})
	t.Setenv(fakeTarball, tarball(t, npmEntries(in.plat)))
	lib, err := in.ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := (Lib{Dir: in.target(), Version: Release, Build: Commit, Source: SourceNPM}); lib != want {
		t.Errorf("installed %+v, want %+v", lib, want)
	}
	for _, short := range required {
		if _, err := os.Stat(filepath.Join(lib.Dir, in.plat.library(short))); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(lib.Dir, "llama-addon.node")); !os.IsNotExist(err) {
		t.Errorf("the Node addon was installed too: %v", err)
	}
	if diff := cmp.Diff([]string{filepath.Base(in.target())}, leftovers(t, in)); diff != "" {
		t.Errorf("cache (-want +got):\n%s", diff)
	}
	if got := calls(t, log); len(got) != 1 || !strings.Contains(got[0], in.plat.npmPackage()+"@"+npmVersion) {
		t.Errorf("tools called: %q", got)
	}
}

func TestTarballsRefused(t *testing.T) {
	plat := newTest(t, Options{}).plat
	bins := "package/bins/" + plat.name + "/"
	with := func(more ...entry) []entry { return append(npmEntries(plat), more...) }
	without := func(part string) (out []entry) {
		for _, e := range npmEntries(plat) {
			if !strings.Contains(e.name, part) {
				out = append(out, e)
			}
		}
		return out
	}
	replaced := func(part, body string) []entry {
		out := npmEntries(plat)
		for i := range out {
			if strings.Contains(out[i].name, part) {
				out[i].body = body
			}
		}
		return out
	}
	many := npmEntries(plat)
	for range maxFiles {
		many = append(many, entry{name: "package/filler", body: "x"})
	}
	good := tarballBytes(t, npmEntries(plat))
	flipped := append([]byte(nil), good...)
	flipped[len(flipped)-6] ^= 1 // in gzip's checksum
	tests := []struct {
		name    string
		entries []entry
		raw     []byte
		kind    error
		says    string
	}{
		{"parent directory", with(entry{name: bins + "../../../../libevil.so", body: "x"}), nil, ErrArchive, "leaves the archive"},
		{"plain parent", with(entry{name: "../libevil.so", body: "x"}), nil, ErrArchive, "leaves the archive"},
		{"absolute", with(entry{name: "/tmp/libevil.so", body: "x"}), nil, ErrArchive, "leaves the archive"},
		{"backslash", with(entry{name: `package\..\..\libevil.so`, body: "x"}), nil, ErrArchive, "leaves the archive"},
		{"symbolic link", with(entry{name: bins + plat.library("evil"), link: "/etc/passwd", kind: '2'}), nil, ErrArchive, "not a regular file"},
		{"hard link", with(entry{name: bins + plat.library("evil"), link: "package/package.json", kind: '1'}), nil, ErrArchive, "not a regular file"},
		{"the same file twice", with(npmEntries(plat)[2]), nil, ErrArchive, "exists"},
		{"too many entries", many, nil, ErrArchive, "entries"},
		{"not gzip", nil, []byte("hello"), ErrArchive, ""},
		{"empty", nil, []byte{}, ErrArchive, ""},
		{"truncated", nil, good[:len(good)/2], ErrArchive, ""},
		{"truncated before the checksum", nil, good[:len(good)-8], ErrArchive, ""},
		{"checksum", nil, flipped, ErrArchive, "checksum"},
		{"another release by its metadata", replaced("_nlc", strings.Replace(metadata, Release, "v0.4.0", 1)), nil, ErrVersion, "v0.4.0"},
		{"malformed metadata", replaced("_nlc", "{"), nil, ErrArchive, ""},
		{"another commit", replaced("ggml-base", ggmlBase("5b4ebc5")), nil, ErrVersion, "5b4ebc5"},
		{"no commit", replaced("ggml-base", "nothing"), nil, ErrVersion, "no commit"},
		{"no llama", without("llama."), nil, ErrIncomplete, plat.library("llama")},
		{"no ggml-base", without("ggml-base"), nil, ErrIncomplete, plat.library("ggml-base")},
		{"another platform's", []entry{{name: "package/bins/amiga/libllama.so", body: "x"}}, nil, ErrIncomplete, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			log := fakePath(t, "npm", "go")
			in := newTest(t, Options{})
			path := ""
			if tt.raw != nil {
				path = filepath.Join(t.TempDir(), "package.tgz")
				if err := os.WriteFile(path, tt.raw, 0o644); err != nil {
					t.Fatal(err)
				}
			} else {
				path = tarball(t, tt.entries)
			}
			t.Setenv(fakeTarball, path)
			_, err := in.ensure(t.Context())
			var e *Error
			if !errors.Is(err, tt.kind) || !errors.As(err, &e) || e.Next == "" {
				t.Errorf("error %v, want %v with a next step", err, tt.kind)
			} else if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v does not say %q", err, tt.says)
			}
			if left := leftovers(t, in); len(left) > 0 {
				t.Errorf("left in the cache: %v", left)
			}
			evil, _ := filepath.Glob(filepath.Join(in.Cache, "..", "libevil*"))
			deep, _ := filepath.Glob(filepath.Join(in.Cache, "*", "libevil*"))
			if len(evil)+len(deep) > 0 {
				t.Errorf("wrote outside: %v %v", evil, deep)
			}
			// Wrong bytes end the attempt: nobody papers over them with another source.
			if got := calls(t, log); len(got) != 1 {
				t.Errorf("tools called: %q", got)
			}
		})
	}
}

func TestUnpackedSizeIsBounded(t *testing.T) {
	fakePath(t, "npm")
	in := newTest(t, Options{})
	in.unpacked = 1 << 20
	bomb := entry{name: "package/bins/" + in.plat.name + "/" + in.plat.library("big"), body: strings.Repeat("\x00", 2<<20)}
	t.Setenv(fakeTarball, tarball(t, []entry{bomb}))
	_, err := in.ensure(t.Context())
	if !errors.Is(err, ErrArchive) {
		t.Errorf("error %v, want ErrArchive", err)
	}
}

func TestIntegrityPin(t *testing.T) {
	for _, right := range []bool{true, false} {
		log := fakePath(t, "npm", "go")
		in := newTest(t, Options{})
		path := tarball(t, npmEntries(in.plat))
		t.Setenv(fakeTarball, path)
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !right {
			raw[0] ^= 1
		}
		sum := sha512.Sum512(raw)
		in.pins = map[string]string{in.plat.npmPackage(): "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
		_, err = in.ensure(t.Context())
		if right && err != nil || !right && !errors.Is(err, ErrIntegrity) {
			t.Errorf("pin right %v: error %v", right, err)
		}
		if got := calls(t, log); len(got) != 1 {
			t.Errorf("pin right %v: tools called: %q", right, got)
		}
	}
}

func TestSourcesFallBack(t *testing.T) {
	plat := newTest(t, Options{}).plat
	if plat.goos == "windows" {
		t.Skip("the order is another one on Windows")
	}
	libs := libraryDir(t, []entry{
		{name: plat.library("ggml-base"), body: ggmlBase(Commit)},
		{name: plat.library("ggml"), body: "ggml"},
		{name: plat.library("llama"), body: "llama"},
	})
	tests := []struct {
		name   string
		tools  []string
		npm    bool // npm delivers
		yzma   bool // yzma delivers
		via    string
		source string
		errs   []error
		calls  int
	}{
		{"npm first", []string{"npm", "go"}, true, true, "", SourceNPM, nil, 1},
		{"npm missing", []string{"go"}, false, true, "", SourceYzma, nil, 1},
		{"npm fails", []string{"npm", "go"}, false, true, "", SourceYzma, nil, 2},
		{"only yzma wanted", []string{"npm", "go"}, true, true, SourceYzma, SourceYzma, nil, 1},
		{"nothing there", nil, false, false, "", "", []error{ErrNotInstalled, ErrTool, exec.ErrNotFound}, 0},
		{"both fail", []string{"npm", "go"}, false, false, "", "", []error{ErrNotInstalled, ErrFetch}, 2},
		{"only npm wanted, missing", []string{"go"}, false, true, SourceNPM, "", []error{ErrTool}, 0},
		{"only npm wanted, fails", []string{"npm", "go"}, false, true, SourceNPM, "", []error{ErrFetch}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			log := fakePath(t, tt.tools...)
			in := newTest(t, Options{Via: tt.via})
			if tt.npm {
				t.Setenv(fakeTarball, tarball(t, npmEntries(plat)))
			}
			if tt.yzma {
				t.Setenv(fakeLibs, libs)
			}
			lib, err := in.ensure(t.Context())
			if lib.Source != tt.source {
				t.Errorf("source %q, want %q", lib.Source, tt.source)
			}
			if (err != nil) != (tt.errs != nil) {
				t.Errorf("error %v", err)
			}
			for _, want := range tt.errs {
				if !errors.Is(err, want) {
					t.Errorf("error %v does not match %v", err, want)
				}
			}
			if tt.name == "both fail" && !(strings.Contains(err.Error(), "network unreachable") && strings.Contains(err.Error(), "proxy unreachable")) {
				t.Errorf("error does not say what the tools said: %v", err)
			}
			if got := calls(t, log); len(got) != tt.calls {
				t.Errorf("tools called: %q", got)
			}
		})
	}
}

// yzma's installer is asked for the pinned release and to insist on digests.
func TestYzmaIsPinned(t *testing.T) {
	log := fakePath(t, "go")
	in := newTest(t, Options{Via: SourceYzma})
	if _, err := in.ensure(t.Context()); !errors.Is(err, ErrFetch) {
		t.Fatalf("error %v, want ErrFetch", err)
	}
	got := strings.Join(calls(t, log), "\n")
	for _, want := range []string{"run " + yzmaTool + " install", "--version " + Release + "@sha256:", "--verify require"} {
		if !strings.Contains(got, want) {
			t.Errorf("called %q, lacks %q", got, want)
		}
	}
}

// Any number of goroutines and processes may ask at once; one installs.
func TestConcurrentCallers(t *testing.T) {
	log := fakePath(t, "npm")
	in := newTest(t, Options{})
	t.Setenv(fakeTarball, tarball(t, npmEntries(in.plat)))
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			mine := *in
			if lib, err := mine.ensure(t.Context()); err != nil || lib.Dir != in.target() {
				t.Errorf("%+v, %v", lib, err)
			}
		})
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), exe)
			cmd.Env = append(os.Environ(), asInstaller+"="+in.Cache)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	if got := calls(t, log); len(got) != 1 {
		t.Errorf("npm was called %d times", len(got))
	}
}

func TestCancel(t *testing.T) {
	fakePath(t, "npm", "go")
	in := newTest(t, Options{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	t.Setenv(fakeHang, ln.Addr().String())
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if c, err := ln.Accept(); err == nil {
			cancel() // npm runs now
			defer c.Close()
			c.Read(make([]byte, 1)) // until it is dead
		}
	}()
	if _, err := in.ensure(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	if left := leftovers(t, in); len(left) > 0 {
		t.Errorf("left in the cache: %v", left)
	}

	// Waiting for another installation ends with ctx too.
	unlock, err := lockFile(t.Context(), in.target()+".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := in.ensure(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

func TestDamagedCacheIsReplaced(t *testing.T) {
	log := fakePath(t, "npm")
	in := newTest(t, Options{})
	t.Setenv(fakeTarball, tarball(t, npmEntries(in.plat)))
	damages := map[string]func(dir string) error{
		"file cut":      func(dir string) error { return os.Truncate(filepath.Join(dir, in.plat.library("llama")), 1) },
		"file gone":     func(dir string) error { return os.Remove(filepath.Join(dir, in.plat.library("ggml-base"))) },
		"record spoilt": func(dir string) error { return os.WriteFile(filepath.Join(dir, recordName), []byte("{"), 0o644) },
		"another commit": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, in.plat.library("ggml-base")), []byte(ggmlBase("1111111")), 0o644)
		},
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			lib, err := in.ensure(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			before := len(calls(t, log))
			if err := damage(lib.Dir); err != nil {
				t.Fatal(err)
			}
			if _, err := in.find(); !errors.Is(err, ErrIncomplete) {
				t.Errorf("find: error %v, want ErrIncomplete", err)
			}
			if _, err := in.ensure(t.Context()); err != nil {
				t.Errorf("ensure: %v", err)
			}
			if _, err := in.find(); err != nil {
				t.Errorf("afterwards: %v", err)
			}
			if got := len(calls(t, log)) - before; got != 1 {
				t.Errorf("npm was called %d times", got)
			}
		})
	}
	// An installation that was killed leaves its stage; the next one removes it.
	stale := filepath.Join(filepath.Dir(in.target()), ".stage-123")
	if err := os.MkdirAll(filepath.Join(stale, "libs"), 0o755); err != nil {
		t.Fatal(err)
	}
	in.Force = true
	if _, err := in.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{filepath.Base(in.target())}, leftovers(t, in)); diff != "" {
		t.Errorf("cache (-want +got):\n%s", diff)
	}
}

func TestOffline(t *testing.T) {
	log := fakePath(t, "npm", "go")
	in := newTest(t, Options{Offline: true})
	t.Setenv(fakeTarball, tarball(t, npmEntries(in.plat)))
	_, err := in.ensure(t.Context())
	if !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "tandem engine install") {
		t.Errorf("error %v, want ErrNotInstalled with the command", err)
	}
	if got := calls(t, log); len(got) != 0 {
		t.Errorf("tools called: %q", got)
	}
}

func TestFailuresOfTheCache(t *testing.T) {
	fakePath(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := newTest(t, Options{Cache: file}).ensure(t.Context()); !errors.Is(err, ErrCache) {
		t.Errorf("cache is a file: error %v, want ErrCache", err)
	}
	if _, err := Ensure(t.Context(), Options{Via: "ftp"}); !errors.Is(err, ErrOption) {
		t.Errorf("unknown source: error %v, want ErrOption", err)
	}
	for _, name := range []string{"HOME", "XDG_CACHE_HOME", "LocalAppData", "home"} {
		t.Setenv(name, "")
	}
	if _, err := Find(Options{}); !errors.Is(err, ErrCache) || !strings.Contains(err.Error(), EnvDir) {
		t.Errorf("no home: error %v, want ErrCache naming %s", err, EnvDir)
	}
}
