package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// recordName is the file an installation ends with; its presence says that every
// other file had been written before.
const recordName = "tandem-install.json"

// record is what an installation says about itself.
type record struct {
	Version string           `json:"version"`
	Build   string           `json:"build"`
	Source  string           `json:"source"`
	Files   map[string]int64 `json:"files"` // name -> size in bytes, links resolved
}

// Bounds on what is read from disk or taken from an archive.
const (
	maxRecord   = 64 << 10
	maxFiles    = 256
	maxFile     = 2 << 30 // a GPU backend can be large
	maxTotal    = 8 << 30
	maxGGML     = 64 << 20 // ggml-base is 1 MB
	maxTarball  = 1 << 30
	maxUnpacked = 1 << 30 // the CPU packages have 30 MB
)

// cached validates the cache's installation.
func (in *installer) cached() (Lib, error) {
	dir := in.target()
	raw, err := readBounded(filepath.Join(dir, recordName), maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return Lib{}, &Error{Kind: ErrNotInstalled, Subject: dir, Next: "run `tandem engine install`"}
	}
	if err != nil {
		return Lib{}, in.damaged(dir, err)
	}
	var rec record
	if err := json.Unmarshal(raw, &rec); err != nil {
		return Lib{}, in.damaged(dir, err)
	}
	for name, size := range rec.Files {
		st, err := os.Stat(filepath.Join(dir, filepath.Base(name)))
		if err != nil {
			return Lib{}, in.damaged(dir, err)
		}
		if st.Size() != size {
			return Lib{}, in.damaged(dir, fmt.Errorf("%s has %d bytes, recorded %d", name, st.Size(), size))
		}
	}
	lib, err := in.inPlace(dir, rec.Source)
	if err != nil {
		return Lib{}, in.damaged(dir, err)
	}
	return lib, nil
}

func (in *installer) damaged(dir string, err error) error {
	return &Error{Kind: ErrIncomplete, Subject: dir, Err: err, Next: "run `tandem engine install` to replace it"}
}

// inPlace validates dir as it is.
func (in *installer) inPlace(dir, source string) (Lib, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Lib{}, &Error{Kind: ErrIncomplete, Subject: dir, Err: err}
	}
	for _, short := range required {
		name := in.plat.library(short)
		st, err := os.Stat(filepath.Join(dir, name))
		if err == nil && !st.Mode().IsRegular() {
			err = errors.New("not a regular file")
		}
		if err != nil {
			next := "name a directory that holds " + name
			if source == SourceOption || source == SourceEnv {
				next = "run `tandem engine install --from " + dir + "` to have the names made, or name another directory"
			}
			return Lib{}, &Error{Kind: ErrIncomplete, Subject: filepath.Join(dir, name), Err: err, Next: next}
		}
	}
	build, err := in.checkVersion(dir)
	if err != nil {
		return Lib{}, err
	}
	return Lib{Dir: dir, Version: Release, Build: build, Source: source}, nil
}

// compiledCommit matches ggml's version followed by its commit, the two
// neighbouring constants behind ggml_version and ggml_commit.
var compiledCommit = regexp.MustCompile(`\x00([0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+-]*)\x00+([0-9a-f]{7,40}(?:-dirty)?|unknown)\x00`)

// checkVersion reads the commit out of ggml-base. The file is read, not loaded:
// a wrong ggml-base left in the process would be picked up, by its name, when
// the right llama is opened later.
func (in *installer) checkVersion(dir string) (string, error) {
	next := "install llama.cpp " + Release + ": `tandem engine install`"
	path := filepath.Join(dir, in.plat.library("ggml-base"))
	raw, err := readBounded(path, maxGGML)
	if err != nil {
		return "", &Error{Kind: ErrIncomplete, Subject: path, Err: err, Next: next}
	}
	if bytes.Contains(raw, []byte("\x00"+Commit+"\x00")) {
		return Commit, nil
	}
	// A longer abbreviation of the same commit is the same commit.
	for _, m := range compiledCommit.FindAllSubmatch(raw, 8) {
		if bytes.HasPrefix(m[2], []byte(Commit)) && !bytes.HasSuffix(m[2], []byte("-dirty")) {
			return Commit, nil
		}
	}
	found := errors.New("no commit compiled in")
	if m := compiledCommit.FindSubmatch(raw); m != nil {
		found = fmt.Errorf("found commit %s (ggml %s)", m[2], m[1])
	}
	return "", &Error{Kind: ErrVersion, Subject: fmt.Sprintf("%s, want commit %s of %s", path, Commit, Release), Err: found, Next: next}
}

// checkMetadata refuses an npm package that says it holds another release.
func (in *installer) checkMetadata(dir string) error {
	path := filepath.Join(dir, "_nlcBuildMetadata.json")
	raw, err := readBounded(path, maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // not an npm package; the commit decides
	}
	var meta struct {
		BuildOptions struct {
			LlamaCpp struct {
				Release string `json:"release"`
			} `json:"llamaCpp"`
		} `json:"buildOptions"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &meta)
	}
	if err != nil {
		return &Error{Kind: ErrArchive, Subject: path, Err: err, Next: "download it again"}
	}
	if got := meta.BuildOptions.LlamaCpp.Release; got != Release {
		return &Error{Kind: ErrVersion, Subject: fmt.Sprintf("package holds llama.cpp %.32q, want %s", got, Release), Next: "use @node-llama-cpp " + npmVersion}
	}
	return nil
}

// readBounded reads a file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(raw)) > limit {
		return nil, fmt.Errorf("more than %d bytes", limit)
	}
	return raw, nil
}
