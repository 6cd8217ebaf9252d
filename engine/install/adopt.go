package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// stage makes an empty directory next to the target, so that the final rename
// stays within one file system. Leftovers of killed installations are removed;
// the caller holds the lock.
func (in *installer) stage() (string, error) {
	parent := filepath.Dir(in.target())
	if old, err := filepath.Glob(filepath.Join(parent, ".stage-*")); err == nil {
		for _, dir := range old {
			os.RemoveAll(dir)
		}
	}
	dir, err := os.MkdirTemp(parent, ".stage-")
	if err != nil {
		return "", &Error{Kind: ErrCache, Subject: parent, Err: err, Next: "make it writable"}
	}
	return dir, nil
}

// fromDir installs from Options.From.
func (in *installer) fromDir() (Lib, error) {
	src := in.locate(in.From)
	stage, err := in.stage()
	if err != nil {
		return Lib{}, err
	}
	defer os.RemoveAll(stage)
	libs := filepath.Join(stage, "libs")
	if err := in.copyLibraries(src, libs); err != nil {
		return Lib{}, err
	}
	lib, err := in.adopt(libs, SourceFrom)
	if err == nil {
		in.say("installed %s, copied from %s", lib, src)
	}
	return lib, err
}

// locate accepts the directory itself and the places where builds and packages
// keep their libraries below it.
func (in *installer) locate(dir string) string {
	for _, sub := range []string{".", "lib", "bin", "build/bin", "bins/" + in.plat.name, "package/bins/" + in.plat.name} {
		at := filepath.Join(dir, filepath.FromSlash(sub))
		if in.source(at, "ggml-base") != "" {
			return at
		}
	}
	return dir
}

// source is the file in dir that serves as the library short: the unversioned
// name, else the lowest versioned one, else "".
func (in *installer) source(dir, short string) string {
	name := in.plat.library(short)
	if st, err := os.Stat(filepath.Join(dir, name)); err == nil && st.Mode().IsRegular() {
		return name
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	pattern := in.plat.versioned(short)
	for _, e := range entries { // sorted by name
		if pattern.MatchString(e.Name()) {
			return e.Name()
		}
	}
	return ""
}

// copyLibraries copies the library files of src into the new directory dst.
// Links to a file in src stay links, so that llama.cpp's versioned and
// unversioned names remain one file to the loader; other links are followed.
func (in *installer) copyLibraries(src, dst string) error {
	fail := func(err error) error {
		return &Error{Kind: ErrIncomplete, Subject: src, Err: err, Next: "name a directory that holds llama.cpp " + Release + "'s libraries"}
	}
	entries, err := os.ReadDir(src)
	if err != nil {
		return fail(err)
	}
	if err := os.MkdirAll(dst, 0o755); err != nil {
		return &Error{Kind: ErrCache, Subject: dst, Err: err}
	}
	var files int
	var total int64
	for _, e := range entries {
		name := e.Name()
		if !libraryFile.MatchString(name) {
			continue
		}
		if files++; files > maxFiles {
			return fail(fmt.Errorf("more than %d library files", maxFiles))
		}
		from, to := filepath.Join(src, name), filepath.Join(dst, name)
		if link, err := os.Readlink(from); err == nil && filepath.Base(link) == link && libraryFile.MatchString(link) {
			if err := os.Symlink(link, to); err == nil {
				continue
			}
		}
		st, err := os.Stat(from)
		if err != nil {
			return fail(err)
		}
		if !st.Mode().IsRegular() {
			continue
		}
		if total += st.Size(); st.Size() > maxFile || total > maxTotal {
			return fail(fmt.Errorf("%s is too large", name))
		}
		if err := copyFile(from, to); err != nil {
			return fail(err)
		}
	}
	return nil
}

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	return writeFile(to, src, maxFile)
}

// writeFile writes at most limit bytes of r into a new file.
func writeFile(path string, r io.Reader, limit int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(r, limit+1))
	if err == nil && n > limit {
		err = fmt.Errorf("%s has more than %d bytes", filepath.Base(path), limit)
	}
	return errors.Join(err, f.Close())
}

// adopt turns the staged directory into the installation: names, checks, record,
// rename. The caller holds the lock and removes whatever is left of the stage.
func (in *installer) adopt(dir, source string) (Lib, error) {
	for _, short := range required {
		name := in.plat.library(short)
		have := in.source(dir, short)
		if have == "" {
			return Lib{}, &Error{Kind: ErrIncomplete, Subject: name, Next: "take a complete build of llama.cpp " + Release}
		}
		if have != name {
			if err := alias(dir, have, name); err != nil {
				return Lib{}, &Error{Kind: ErrCache, Subject: name, Err: err}
			}
		}
	}
	if err := in.checkMetadata(dir); err != nil {
		return Lib{}, err
	}
	lib, err := in.inPlace(dir, source)
	if err != nil {
		return Lib{}, err
	}
	if err := writeRecord(dir, lib); err != nil {
		return Lib{}, &Error{Kind: ErrCache, Subject: recordName, Err: err}
	}
	target := in.target()
	// A process that has the old files mapped keeps them: they are moved away and
	// unlinked, never written to.
	old := filepath.Join(filepath.Dir(dir), "old")
	if err := os.Rename(target, old); err != nil && !errors.Is(err, os.ErrNotExist) {
		return Lib{}, &Error{Kind: ErrCache, Subject: target, Err: err, Next: "stop the processes that use it, then try again"}
	}
	if err := os.Rename(dir, target); err != nil {
		return Lib{}, &Error{Kind: ErrCache, Subject: target, Err: err, Next: "see that its file system is writable and not full"}
	}
	if lib.Dir, err = filepath.Abs(target); err != nil {
		return Lib{}, &Error{Kind: ErrCache, Subject: target, Err: err}
	}
	return lib, nil
}

// alias makes name another name of have, both in dir. Where symbolic links need
// a privilege (Windows) a hard link keeps the two one file.
func alias(dir, have, name string) error {
	to := filepath.Join(dir, name)
	if os.Symlink(have, to) == nil || os.Link(filepath.Join(dir, have), to) == nil {
		return nil
	}
	return copyFile(filepath.Join(dir, have), to)
}

func writeRecord(dir string, lib Lib) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	rec := record{Version: lib.Version, Build: lib.Build, Source: lib.Source, Files: map[string]int64{}}
	for _, e := range entries {
		st, err := os.Stat(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		rec.Files[e.Name()] = st.Size()
	}
	raw, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, recordName), append(raw, '\n'), 0o644)
}

// clip shortens a tool's output to what fits an error: its last lines.
func clip(out []byte) string {
	lines := strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' || r == '\r' })
	if len(lines) > 4 {
		lines = slices.Concat([]string{"..."}, lines[len(lines)-4:])
	}
	s := strings.Join(lines, "; ")
	if len(s) > 500 {
		s = "..." + s[len(s)-500:]
	}
	return s
}
