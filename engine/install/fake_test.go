package install

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// The test binary plays npm and go when it is called by their names, and an
// installing process of its own when told to.
const (
	fakeLog     = "TANDEM_FAKE_LOG"     // file that gets a line per call, with the arguments
	fakeTarball = "TANDEM_FAKE_TARBALL" // what npm pack downloads; unset: npm fails
	fakeLibs    = "TANDEM_FAKE_LIBS"    // what yzma installs; unset: go fails
	fakeHang    = "TANDEM_FAKE_HANG"    // address to call, then hang
	asInstaller = "TANDEM_AS_INSTALLER" // cache directory to install into
)

func TestMain(m *testing.M) {
	switch strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") {
	case "npm":
		os.Exit(fakeTool("npm"))
	case "go":
		os.Exit(fakeTool("go"))
	}
	if cache := os.Getenv(asInstaller); cache != "" {
		in, err := newInstaller(Options{Cache: cache})
		if err == nil {
			in.pins = nil
			_, err = in.ensure(context.Background())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func fakeTool(name string) int {
	if log := os.Getenv(fakeLog); log != "" {
		f, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
		if err != nil {
			panic(err)
		}
		fmt.Fprintln(f, name, strings.Join(os.Args[1:], " "))
		f.Close()
	}
	if addr := os.Getenv(fakeHang); addr != "" {
		if c, err := net.Dial("tcp", addr); err == nil {
			io.Copy(io.Discard, c) // until the test closes it, or kills us
		}
		return 1
	}
	argument := func(flag string) string { return os.Args[slices.Index(os.Args, flag)+1] }
	var err error
	switch from := ""; name {
	case "npm":
		if from = os.Getenv(fakeTarball); from == "" {
			fmt.Fprintln(os.Stderr, "npm error network unreachable")
			return 1
		}
		err = copyFile(from, filepath.Join(argument("--pack-destination"), "package.tgz"))
	case "go":
		if from = os.Getenv(fakeLibs); from == "" {
			fmt.Fprintln(os.Stderr, "go: proxy unreachable")
			return 1
		}
		err = os.CopyFS(argument("--lib"), os.DirFS(from))
	}
	if err != nil {
		panic(err)
	}
	return 0
}

// fakePath makes PATH a directory that holds nothing but the named tools and
// returns the file their calls are logged in.
func fakePath(t *testing.T, tools ...string) (log string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, tool := range tools {
		if runtime.GOOS == "windows" {
			tool += ".exe"
		}
		if err := os.Symlink(exe, filepath.Join(dir, tool)); err != nil {
			t.Fatal(err)
		}
	}
	log = filepath.Join(t.TempDir(), "log")
	t.Setenv("PATH", dir)
	for _, name := range []string{fakeTarball, fakeLibs, fakeHang, EnvDir} {
		t.Setenv(name, "")
	}
	t.Setenv(fakeLog, log)
	return log
}

func calls(t *testing.T, log string) []string {
	t.Helper()
	raw, err := os.ReadFile(log)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(raw)), "\n")
}

// entry is one file of a tarball or directory.
type entry struct {
	name, body string
	link       string // target, makes it a link of type kind
	kind       byte
}

// ggmlBase looks like ggml-base to checkVersion.
func ggmlBase(commit string) string {
	return "\x7fELF code \x00123456\x00 more\x000.25.1\x00" + commit + "\x00%s: objects"
}

const metadata = `{"buildOptions":{"llamaCpp":{"repo":"ggml-org/llama.cpp","release":"` + Release + `"}}}`

// npmEntries are the files of a good package for p.
func npmEntries(p platform) []entry {
	bins := "package/bins/" + p.name + "/"
	return []entry{
		{name: "package/package.json", body: "{}"},
		{name: bins + "_nlcBuildMetadata.json", body: metadata},
		{name: bins + p.library("ggml-base"), body: ggmlBase(Commit)},
		{name: bins + p.prefix + "ggml." + Release + p.ext, body: "ggml"},
		{name: bins + p.prefix + "llama." + Release + p.ext, body: "llama"},
		{name: bins + p.prefix + "ggml-cpu-x64" + p.ext, body: "cpu"},
		{name: bins + "llama-addon.node", body: "not a library"},
	}
}

// tarball writes entries as a gzipped tar and returns its path.
func tarball(t testing.TB, entries []entry) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "package.tgz")
	if err := os.WriteFile(path, tarballBytes(t, entries), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func tarballBytes(t testing.TB, entries []entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	tw := tar.NewWriter(zw)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.body)), Typeflag: tar.TypeReg}
		if e.link != "" {
			h.Linkname, h.Typeflag, h.Size = e.link, e.kind, 0
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if e.link == "" {
			if _, err := io.WriteString(tw, e.body); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// libraryDir writes entries into a new directory and returns it.
func libraryDir(t *testing.T, entries []entry) string {
	t.Helper()
	dir := t.TempDir()
	for _, e := range entries {
		path := filepath.Join(dir, filepath.FromSlash(e.name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if e.link != "" {
			err = os.Symlink(e.link, path)
		} else {
			err = os.WriteFile(path, []byte(e.body), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// newTest returns an installer with an empty cache and no pins.
func newTest(t *testing.T, o Options) *installer {
	t.Helper()
	if o.Cache == "" {
		o.Cache = filepath.Join(t.TempDir(), "tandem")
	}
	if o.Progress == nil {
		o.Progress = func(line string) { t.Log(line) }
	}
	in, err := newInstaller(o)
	if err != nil {
		t.Fatal(err)
	}
	in.pins = nil
	return in
}

// leftovers lists what an installation that failed left in the cache, the lock
// file aside.
func leftovers(t *testing.T, in *installer) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(in.target()))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if e.Name() != filepath.Base(in.target())+".lock" {
			out = append(out, e.Name())
		}
	}
	return out
}
