package llama

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/model/tiny"
)

// A process can open one set of libraries, so each of these tests runs in a
// process of its own: this binary again, with the name of a child below.
const childEnv = "TANDEM_LLAMA_TEST_CHILD"

var children = map[string]func(dir, model string){
	// open says what Open answers for the libraries in dir.
	"open": func(dir, model string) {
		e, err := Open(Options{Lib: dir, Model: model, Threads: 1})
		for name, kind := range map[string]error{"ErrLibrary": ErrLibrary, "ErrVersion": ErrVersion} {
			if errors.Is(err, kind) {
				fmt.Println(name)
			}
		}
		fmt.Println(err)
		if err == nil {
			e.Close()
		}
	},
	// abort gives llama.cpp what this package never lets through.
	"abort": func(dir, model string) {
		e, err := Open(Options{Lib: dir, Model: model, Threads: 1})
		if err != nil {
			panic(err)
		}
		b := append32(nil, 0xaf143cd8, 0, 2, 1, 0, 2, 0)
		e.native.stateSet(append(b, make([]byte, 1<<20)...), 0, statePartial)
		fmt.Println("still alive")
	},
}

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		children[name](os.Args[len(os.Args)-2], os.Args[len(os.Args)-1])
		return
	}
	os.Exit(m.Run())
}

func child(t *testing.T, name, dir string, arch tiny.Arch, env ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], dir, options(t, arch).Model)
	cmd.Env = append(append(os.Environ(), childEnv+"="+name), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// copyLibs links the libraries into a new directory, with one of them changed.
func copyLibs(t *testing.T, name string, change func([]byte) []byte) string {
	t.Helper()
	from := options(t, tiny.Llama).Lib
	to := t.TempDir()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	target, err := filepath.EvalSymlinks(filepath.Join(from, name))
	if err != nil {
		t.Fatal(err)
	}
	changed, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	changed = change(changed)
	for _, entry := range entries {
		path, err := filepath.EvalSymlinks(filepath.Join(from, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		dst := filepath.Join(to, entry.Name())
		if path != target {
			err = os.Symlink(path, dst)
		} else if changed != nil {
			err = os.WriteFile(dst, changed, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

func libFile(name string) string {
	switch runtime.GOOS {
	case "windows":
		return name + ".dll"
	case "darwin":
		return "lib" + name + ".dylib"
	}
	return "lib" + name + ".so"
}

func TestUnusableLibraries(t *testing.T) {
	same := func(b []byte) []byte { return b }
	replace := func(old, now string) func([]byte) []byte {
		return func(b []byte) []byte {
			if !bytes.Contains(b, []byte(old)) {
				t.Fatalf("no %q to replace", old)
			}
			return bytes.ReplaceAll(b, []byte(old), []byte(now))
		}
	}
	for _, c := range []struct {
		name, kind, says string
		dir              string
	}{
		{"no directory", "ErrLibrary", "tandem engine install", filepath.Join(t.TempDir(), "missing")},
		{"an empty directory", "ErrLibrary", "tandem engine install", t.TempDir()},
		{"one missing", "ErrLibrary", libFile("llama"), copyLibs(t, libFile("llama"), func([]byte) []byte { return nil })},
		{"not a library", "ErrLibrary", libFile("llama"), copyLibs(t, libFile("llama"), func([]byte) []byte { return []byte("text") })},
		{"truncated", "ErrLibrary", libFile("ggml-base"), copyLibs(t, libFile("ggml-base"), func(b []byte) []byte { return b[:4096] })},
		{"another llama.cpp", "ErrVersion", "0.4.9", copyLibs(t, libFile("llama"), replace("\x000.5.0-dev\x00", "\x000.4.9-dev\x00"))},
		{"another ggml", "ErrVersion", "0.24.1", copyLibs(t, libFile("ggml-base"), replace("\x000.25.1\x00", "\x000.24.1\x00"))},
		{"without a version", "ErrVersion", "llama_version", copyLibs(t, libFile("llama"), replace("\x00llama_version\x00", "\x00llama_versioX\x00"))},
		{"a function missing", "ErrLibrary", "llama_state_seq_set_data_ext", copyLibs(t, libFile("llama"), replace("\x00llama_state_seq_set_data_ext\x00", "\x00llama_state_seq_set_data_exX\x00"))},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out, err := child(t, "open", c.dir, tiny.Llama)
			if err != nil || !strings.HasPrefix(out, c.kind+"\n") || !strings.Contains(out, c.says) {
				t.Errorf("%v: %s\nexpected %s and %q", err, out, c.kind, c.says)
			}
		})
	}
	if out, err := child(t, "open", copyLibs(t, libFile("llama"), same), tiny.Llama); err != nil || !strings.HasPrefix(out, "<nil>") {
		t.Errorf("an unchanged copy: %v: %s", err, out)
	}
}

// One process uses one directory, under any of its names.
func TestOneDirectoryPerProcess(t *testing.T) {
	o := options(t, tiny.Llama)
	open(t, tiny.Llama)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(o.Lib, link); err != nil {
		t.Fatal(err)
	}
	o.Lib = link
	if e, err := Open(o); err != nil {
		t.Errorf("through a link: %v", err)
	} else {
		e.Close()
	}
	o.Lib = copyLibs(t, libFile("llama"), func(b []byte) []byte { return b })
	if _, err := Open(o); !errors.Is(err, ErrLibraryInUse) {
		t.Errorf("another directory: %v", err)
	}
	if _, err := OpenVocab(o.Lib, o.Model); !errors.Is(err, ErrLibraryInUse) {
		t.Errorf("another directory: %v", err)
	}
}

// If llama.cpp stops the process after all, it says where, through us.
func TestAbortIsReported(t *testing.T) {
	out, err := child(t, "abort", options(t, tiny.Mamba2).Lib, tiny.Mamba2)
	if err == nil || strings.Contains(out, "still alive") {
		t.Fatalf("two recurrent cells did not stop the process; is the check still needed? %v\n%s", err, out)
	}
	if !strings.Contains(out, "llama: llama.cpp stops this process: ") {
		t.Errorf("no report:\n%.2000s", out)
	}
}

// The library that calls C ends the process while it is initialized when libffi
// is missing. What is told instead must come first.
func TestPreflightComesFirst(t *testing.T) {
	out, err := child(t, "open", t.TempDir(), tiny.Llama, "GODEBUG=inittrace=1")
	if err != nil {
		t.Fatal(err)
	}
	order := map[string]int{}
	for i, line := range strings.Split(out, "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "init" {
			order[f[1]] = i + 1
		}
	}
	preflight, ffi := order["github.com/tandem-llm/tandem/engine/llama/internal/preflight"], order["github.com/jupiterrider/ffi"]
	if preflight == 0 || ffi == 0 || preflight > ffi {
		t.Errorf("preflight is initialized at line %d, ffi at %d", preflight, ffi)
	}
}

// What llama.cpp logs while it serves reaches the log without digits, which may
// be token ids, and never grows without bound.
func TestLog(t *testing.T) {
	var buf bytes.Buffer
	e := open(t, tiny.Llama, func(o *Options) {
		o.Slots, o.Cells, o.BatchTokens = 1, 256, 256
		o.Log = slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
	})
	buf.Reset()
	enginetest.Prefill(t, e, 0, enginetest.Prompt(e.Vocab(), 200, 1), 200, nil)
	// The engine's own books would stop this; llama.cpp is asked directly.
	e.batch.put(0, 123456, 200, 0, true)
	e.batch.bind(&e.native.batch, 1)
	if code := e.native.decode(); code != -1 {
		t.Fatalf("an impossible token: code %d", code)
	}
	e.logNew(true)
	if buf.Len() == 0 || regexp.MustCompile(`[0-9]`).Match(buf.Bytes()) {
		t.Errorf("logged %q", buf.String())
	}
	for range 10 * logLines {
		e.lib.sink.add(slog.LevelWarn, "again")
	}
	buf.Reset()
	e.logNew(true)
	if n := strings.Count(buf.String(), "\n"); n != logLines+1 {
		t.Errorf("%d lines, expected %d and one about the rest", n, logLines)
	}
	long := append(bytes.Repeat([]byte{'x'}, 10*logLineSize), 0)
	if got := cString(unsafe.SliceData(long), logLineSize); len(got) != logLineSize {
		t.Errorf("a line of %d bytes", len(got))
	}
	if got := masked("token[12] = 7, 3.5e9 of seq_id 1"); got != "token[#] = #, #.#e# of seq_id #" {
		t.Errorf("masked: %q", got)
	}
}

// A file that is no model, or only a part of one, is an error.
func TestUnusableModels(t *testing.T) {
	o := options(t, tiny.Llama)
	good, err := os.ReadFile(o.Model)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, b []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	paths := map[string]string{
		"missing":       filepath.Join(t.TempDir(), "missing.gguf"),
		"a directory":   t.TempDir(),
		"empty":         write("a.gguf", nil),
		"text":          write("b.gguf", []byte("not a model at all, but long enough to be read as one")),
		"no weights":    write("c.gguf", good[:len(good)/8]),
		"one byte less": write("d.gguf", good[:len(good)-1]),
		"no data":       write("e.gguf", bytes.Replace(good, []byte("blk.0.attn_q.weight"), []byte("blk.0.attn_X.weight"), 1)),
		"other arch":    write("f.gguf", bytes.Replace(good, []byte("\x05\x00\x00\x00\x00\x00\x00\x00llama"), []byte("\x05\x00\x00\x00\x00\x00\x00\x00lloma"), 1)),
	}
	for n := 64; n < len(good)/4; n *= 2 {
		paths[fmt.Sprint(n, " bytes")] = write(fmt.Sprint(n, ".gguf"), good[:n])
	}
	for name, path := range paths {
		o.Model = path
		e, err := Open(o)
		if !errors.Is(err, ErrModel) {
			t.Errorf("%s: %v", name, err)
		}
		if e != nil {
			e.Close()
		}
		if name == "no weights" || name == "one byte less" || name == "no data" {
			continue // a vocabulary needs no weights
		}
		if v, err := OpenVocab(o.Lib, path); !errors.Is(err, ErrModel) {
			t.Errorf("%s: OpenVocab: %v", name, err)
			if v != nil {
				v.Close()
			}
		}
	}
}

// Closing an engine returns everything, so that it can be opened again and again.
func TestReopen(t *testing.T) {
	for range 5 {
		o := options(t, tiny.NemotronHMoE)
		e, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Decode(enginetest.Rows([]engine.Token{1, 2, 3}, 0, 0)); err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
