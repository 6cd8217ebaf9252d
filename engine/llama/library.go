package llama

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/hybridgroup/yzma/pkg/loader"
	"github.com/jupiterrider/ffi"
)

// Version is the llama.cpp release this package speaks to. Its blobs and
// parameter structures belong to exactly this release.
const Version = "0.5.0"

// ggmlVersion is the ggml release inside of it.
const ggmlVersion = "0.25.1"

// library is the process's llama.cpp. There is one: its functions are bound to
// package variables of yzma, and its backends register themselves globally.
type library struct {
	dir  string // absolute, symbolic links resolved
	fn   functions
	sink sink
	// logFn is the C function pointer of the sink. hushed counts those who do
	// not want it to be called now.
	logFn   uintptr
	hushMu  sync.Mutex
	hushed  int
	logArgs [2]uintptr
	// version and ggml as the libraries state them.
	version, ggml string
}

var process struct {
	mu  sync.Mutex
	lib *library
}

// load opens the libraries in dir, once per process. Opening the same directory
// again gives the same library, another one is refused. A failed attempt leaves
// nothing behind that a later one would trip over.
func load(dir string) (*library, error) {
	process.mu.Lock()
	defer process.mu.Unlock()
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil || dir == "" {
		return nil, &Error{
			Kind: ErrLibrary, Subject: dir, Err: err, Reason: "no such directory",
			Next: "install them with: tandem engine install",
		}
	}
	if l := process.lib; l != nil {
		if l.dir != abs {
			return nil, &Error{
				Kind: ErrLibraryInUse, Subject: abs, Reason: "this process uses " + l.dir,
				Next: "use one directory per process",
			}
		}
		return l, nil
	}
	l := &library{dir: abs}
	if err := l.open(); err != nil {
		return nil, err
	}
	process.lib = l
	return l, nil
}

// open checks the versions before anything else is called: the size of the
// parameter structures that later calls return by value depends on them.
func (l *library) open() error {
	base, err := l.dl("ggml-base")
	if err != nil {
		return err
	}
	if l.ggml, err = l.versionOf(base, "ggml_version", &l.fn.ggmlVer); err != nil {
		return err
	}
	lib, err := l.dl("llama")
	if err != nil {
		return err
	}
	if l.version, err = l.versionOf(lib, "llama_version", &l.fn.llamaVersion); err != nil {
		return err
	}
	if l.ggml != ggmlVersion || strings.TrimSuffix(l.version, "-dev") != Version {
		return &Error{
			Kind: ErrVersion, Subject: l.dir,
			Reason: fmt.Sprintf("found llama.cpp %s with ggml %s, need %s with %s", l.version, l.ggml, Version, ggmlVersion),
			Next:   "install the right ones with: tandem engine install",
		}
	}
	if err := llama.Load(l.dir); err != nil {
		return l.broken(err)
	}
	if err := l.fn.bind(lib); err != nil {
		return l.broken(err)
	}
	if l.fn.setAbort, err = base.Prep("ggml_set_abort_callback", &ffi.TypePointer, &ffi.TypePointer); err != nil {
		return l.broken(err)
	}
	l.logFn = l.sink.callback()
	l.hush()
	l.unhush() // sets it
	l.reportAborts()
	llama.Init()
	lines, _ := l.sink.take()
	if llama.GGMLBackendDeviceByType(llama.GGMLBackendDeviceTypeCPU) == 0 {
		return &Error{
			Kind: ErrLibrary, Subject: l.dir, Reason: "no CPU backend for this machine among them; " + reasons(lines),
			Next: "install them again with: tandem engine install",
		}
	}
	return nil
}

func (l *library) dl(name string) (loader.Lib, error) {
	if err := whole(loader.GetLibraryFilename(l.dir, name)); err != nil {
		return loader.Lib{}, l.broken(err)
	}
	lib, err := loader.LoadLibrary(l.dir, name)
	if err != nil {
		return lib, l.broken(err)
	}
	return lib, nil
}

// whole checks that an ELF file holds all that it maps: the loader would meet the
// missing pages of a truncated one with a signal.
func whole(path string) error {
	if runtime.GOOS == "windows" || runtime.GOOS == "darwin" {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if size := uint64(info.Size()); p.Off > size || p.Filesz > size-p.Off {
			return fmt.Errorf("%s: truncated", path)
		}
	}
	return nil
}

func (l *library) broken(err error) error {
	return &Error{Kind: ErrLibrary, Subject: l.dir, Err: err, Next: "install them with: tandem engine install"}
}

// versionOf calls a function without arguments that returns a C string. A
// library without it is older than any that states its version.
func (l *library) versionOf(lib loader.Lib, name string, fun *ffi.Fun) (string, error) {
	var err error
	if *fun, err = lib.Prep(name, &ffi.TypePointer); err != nil {
		return "", &Error{
			Kind: ErrVersion, Subject: l.dir, Reason: "it has no " + name, Err: err,
			Next: "install llama.cpp v" + Version + " with: tandem engine install",
		}
	}
	p := new(*byte)
	ffi.Call(fun.Cif, fun.Addr, unsafe.Pointer(p))
	return cString(*p, 64), nil
}

// reportAborts prints where llama.cpp stopped the process, which it does right
// after the callback returns.
func (l *library) reportAborts() {
	cb := purego.NewCallback(func(msg *byte) uintptr {
		fmt.Fprintf(os.Stderr, "llama: llama.cpp stops this process: %s\n", masked(cString(msg, 4*logLineSize)))
		return 0
	})
	var old uintptr
	l.fn.setAbort.Call(unsafe.Pointer(&old), unsafe.Pointer(&cb))
}

// setLog makes llama.cpp log to a C function. hushMu is held.
func (l *library) setLog(fn uintptr) {
	l.logArgs = [2]uintptr{fn, 0}
	purego.SyscallN(l.fn.logSet.Addr, l.logArgs[:]...)
}

// hush keeps llama.cpp's log from Go until unhush: a call is about to provoke a
// failure that is wanted, or to log what nobody reads, and every line costs a
// way into Go that allocates. The function that is put in place has no
// arguments and returns a constant, which makes it a logger that does nothing.
func (l *library) hush() {
	l.hushMu.Lock()
	defer l.hushMu.Unlock()
	if l.hushed++; l.hushed == 1 {
		l.setLog(l.fn.nothing.Addr)
	}
}

func (l *library) unhush() {
	l.hushMu.Lock()
	defer l.hushMu.Unlock()
	if l.hushed--; l.hushed == 0 {
		l.setLog(l.logFn)
	}
}

// backend names what computes, such as "CPU zen4".
func (l *library) backend(gpuLayers int) string {
	l.sink.mu.Lock()
	file := filepath.Base(l.sink.backend)
	l.sink.mu.Unlock()
	name := "CPU"
	file = strings.TrimSuffix(file, filepath.Ext(file))
	if _, variant, ok := strings.Cut(file, "ggml-cpu-"); ok {
		name += " " + variant
	}
	if gpuLayers == 0 {
		return name
	}
	for i := range llama.GGMLBackendDeviceCount() {
		dev := llama.GGMLBackendDeviceGet(i)
		if t := llama.GGMLBackendDevType(dev); t != llama.GGMLBackendDeviceTypeCPU {
			name = llama.GGMLBackendDeviceName(dev) + " + " + name
		}
	}
	return name
}
