// Package install finds llama.cpp's shared libraries, or puts the one release
// Tandem is written for into the user's cache.
//
// Tandem calls llama.cpp without cgo: the libraries are opened at run time and
// must be exactly [Release], because sequence state is exchanged in that
// release's private layout and a neighbouring release would be misread rather
// than refused. This package is therefore strict about versions and indifferent
// to where the bytes come from. [Ensure] looks, in this order, at
//
//  1. Options.From, a directory to copy into the cache;
//  2. Options.Dir or the environment variable TANDEM_LLAMA_LIB, a directory
//     used where it is;
//  3. the user's cache, os.UserCacheDir()/tandem/llama.cpp/<release>/<platform>;
//  4. the npm client with @node-llama-cpp/<platform>, then yzma's installer
//     through the go tool with its pinned digest (the other way round on
//     Windows, where only yzma's file names can be opened without a copy).
//
// Whatever it takes is validated (expected file names, llama.cpp's own commit
// compiled into ggml-base, sizes recorded at installation), completed with the
// unversioned names the loader opens, and moved into the cache in one rename
// under a file lock, so any number of processes and tests may call Ensure at
// once and one of them installs. Every refusal is an *[Error] that says what to
// do next.
//
// The package imports nothing of llama.cpp's bindings, because those stop the
// process while they are being initialised when libffi is missing;
// [CheckSystem] reports that as an ordinary error.
package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// What Tandem is written for. They change together, with the state parser.
const (
	// Release is the llama.cpp release every library must be.
	Release = "v0.5.0"
	// Commit is the abbreviated llama.cpp commit of Release, as compiled into
	// ggml-base. It is what identifies a library whatever its file is called.
	Commit = "0ad4a86"
	// EnvDir names the environment variable that points at a directory of
	// libraries to use where it is.
	EnvDir = "TANDEM_LLAMA_LIB"
)

// Where a Lib came from.
const (
	SourceOption = "option"      // Options.Dir
	SourceEnv    = "environment" // EnvDir
	SourceFrom   = "directory"   // copied from Options.From
	SourceNPM    = "npm"         // fetched with the npm client
	SourceYzma   = "yzma"        // fetched with yzma's installer
)

// Options choose where Ensure looks. The zero value is what commands and tests
// use: environment, cache, network.
type Options struct {
	// Dir is a directory that already holds the libraries, under the names the
	// loader opens. It is validated and used in place, never written to.
	Dir string
	// From is a directory to install from: an unpacked npm package, a llama.cpp
	// build directory, or plain libraries. It replaces what the cache holds.
	From string
	// Via restricts installation to one source, SourceNPM or SourceYzma.
	// Empty means both, in the order the package documentation gives.
	Via string
	// Offline forbids running npm or the go tool.
	Offline bool
	// Force installs again even if the cache holds a valid installation.
	Force bool
	// Cache replaces os.UserCacheDir()/tandem as the root to install under.
	Cache string
	// Progress, if not nil, gets one line of plain text, without a newline, for
	// each choice made. It is called from Ensure's goroutine and must not block.
	Progress func(line string)
}

func (o Options) say(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, args...))
	}
}

// Lib is a validated set of libraries.
type Lib struct {
	Dir     string // absolute directory that holds them under unversioned names
	Version string // always Release
	Build   string // llama.cpp's abbreviated commit, Commit
	Source  string // one of the Source constants: where the bytes came from
}

// String says what was chosen, for a person.
func (l Lib) String() string {
	return fmt.Sprintf("llama.cpp %s (commit %s) from %s in %s", l.Version, l.Build, l.Source, l.Dir)
}

// Find returns the libraries that are already on this machine: Options.Dir, the
// environment, the cache. It changes nothing, runs nothing, and returns an
// error matching [ErrNotInstalled] if there are none. A directory that was named
// explicitly and is unusable is an error of its own, never passed over.
func Find(o Options) (Lib, error) {
	in, err := newInstaller(o)
	if err != nil {
		return Lib{}, err
	}
	return in.find()
}

// Ensure returns usable libraries, installing them if there are none, and checks
// that the system libraries they need are present. It is safe to call from
// several goroutines and processes at once. Canceling ctx stops a running
// download and leaves no partial installation.
func Ensure(ctx context.Context, o Options) (Lib, error) {
	in, err := newInstaller(o)
	if err != nil {
		return Lib{}, err
	}
	lib, err := in.ensure(ctx)
	if err != nil {
		return Lib{}, err
	}
	if err := CheckSystem(); err != nil {
		return Lib{}, err
	}
	return lib, nil
}

// installer carries what tests replace: the pins of tarballs built on the spot
// and the environment variable.
type installer struct {
	Options
	plat     platform
	env      string            // value of EnvDir
	pins     map[string]string // npm package name -> sha512 integrity
	unpacked int64             // bytes an npm tarball may unpack to
}

func newInstaller(o Options) (*installer, error) {
	plat, err := platformOf(runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	switch o.Via {
	case "", SourceNPM, SourceYzma:
	default:
		return nil, &Error{Kind: ErrOption, Subject: "source " + o.Via, Next: "use npm or yzma"}
	}
	if o.Cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return nil, &Error{Kind: ErrCache, Subject: "user cache directory", Err: err, Next: "set HOME (or XDG_CACHE_HOME), or name a directory of libraries in " + EnvDir}
		}
		o.Cache = filepath.Join(dir, "tandem")
	}
	return &installer{Options: o, plat: plat, env: os.Getenv(EnvDir), pins: npmIntegrity, unpacked: maxUnpacked}, nil
}

// target is the directory an installation ends in.
func (in *installer) target() string {
	return filepath.Join(in.Cache, "llama.cpp", Release, in.plat.name)
}

func (in *installer) find() (Lib, error) {
	if dir, source := in.Dir, SourceOption; dir != "" || in.env != "" {
		if dir == "" {
			dir, source = in.env, SourceEnv
		}
		return in.inPlace(dir, source)
	}
	return in.cached()
}

func (in *installer) ensure(ctx context.Context) (Lib, error) {
	if in.From == "" {
		if in.Dir != "" || in.env != "" {
			lib, err := in.find()
			if err == nil {
				in.say("using %s", lib)
			}
			return lib, err
		}
		if !in.Force {
			if lib, err := in.cached(); err == nil {
				return lib, nil
			}
		}
	}
	if err := os.MkdirAll(filepath.Dir(in.target()), 0o755); err != nil {
		return Lib{}, &Error{Kind: ErrCache, Subject: in.Cache, Err: err, Next: "make it writable, or name a directory of libraries in " + EnvDir}
	}
	unlock, err := lockFile(ctx, in.target()+".lock")
	if err != nil {
		return Lib{}, &Error{Kind: ErrCache, Subject: "lock " + in.target() + ".lock", Err: err, Next: "see that no other installation hangs, then try again"}
	}
	defer unlock()
	if in.From != "" {
		return in.fromDir()
	}
	if !in.Force {
		// Somebody else may have installed while we waited for the lock.
		lib, err := in.cached()
		if err == nil {
			return lib, nil
		}
		if !errors.Is(err, ErrNotInstalled) {
			in.say("replacing the cached installation: %v", err)
		}
	}
	return in.fetch(ctx)
}

// fetch runs the network sources in order. A source that could not run (tool
// missing, network down, package not published) makes way for the next one; one
// that delivered wrong bytes ends the attempt, because somebody should look.
func (in *installer) fetch(ctx context.Context) (Lib, error) {
	if in.Offline {
		return Lib{}, &Error{Kind: ErrNotInstalled, Subject: in.target(), Next: "run `tandem engine install` with a network, or `tandem engine install --from DIR`"}
	}
	order := []string{SourceNPM, SourceYzma}
	if in.plat.goos == "windows" {
		order = []string{SourceYzma, SourceNPM}
	}
	var failed []error
	for _, source := range order {
		if in.Via != "" && in.Via != source {
			continue
		}
		run := in.fromNPM
		if source == SourceYzma {
			run = in.fromYzma
		}
		lib, err := run(ctx)
		if err == nil {
			in.say("installed %s", lib)
			return lib, nil
		}
		failed = append(failed, err)
		if ctx.Err() != nil || !(errors.Is(err, ErrTool) || errors.Is(err, ErrFetch)) {
			break
		}
		in.say("%v", err)
	}
	if len(failed) == 1 {
		return Lib{}, failed[0]
	}
	return Lib{}, &Error{Kind: ErrNotInstalled, Subject: in.target(), Err: errors.Join(failed...), Next: "repair one of the above, or run `tandem engine install --from DIR`"}
}
