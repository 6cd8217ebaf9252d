package model

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/state"
	"github.com/zeebo/blake3"
)

const (
	// weightsContext separates weight digests from every other use of BLAKE3.
	weightsContext = "github.com/tandem-llm/tandem model weights digest v1"
	// cacheFrom is the size in bytes from which digests are remembered:
	// smaller files are hashed in a moment.
	cacheFrom = 64 << 20
	// settled is how old a file's last change must be for its digest to be
	// remembered: a younger file could change again within the resolution of
	// its time stamps.
	settled = 3 * time.Second
)

// Digest returns the BLAKE3 digest of the model at path, all parts of a split one
// in order. Two files have the same digest exactly when their bytes are equal.
//
// Digests of large files are remembered in the user's cache directory under the
// file's path, size, times and (where the system has them) device and inode, so
// that a worker does not read hundreds of gigabytes at every start. A missing or
// unusable cache costs time and nothing else.
func Digest(path string) (state.Digest, error) {
	files, _, err := openParts(path)
	if err != nil {
		return state.Digest{}, err
	}
	h := blake3.NewDeriveKey(weightsContext)
	for _, f := range files {
		d, size, err := fileDigest(f)
		if err != nil {
			return state.Digest{}, err
		}
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(size)))
		h.Write(d[:])
	}
	var d state.Digest
	h.Sum(d[:0])
	return d, nil
}

func fileDigest(path string) (d state.Digest, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return d, 0, fmt.Errorf("model: digest: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return d, 0, fmt.Errorf("model: digest: %w", err)
	}
	entry := ""
	if info.Size() >= cacheFrom && time.Since(info.ModTime()) > settled {
		entry = cacheEntry(path, info)
	}
	if d, ok := recall(entry); ok {
		return d, info.Size(), nil
	}
	h := blake3.New()
	n, err := io.CopyBuffer(h, onlyReader{f}, make([]byte, 1<<20))
	if err != nil {
		return d, 0, fmt.Errorf("model: digest: %w", err)
	}
	h.Sum(d[:0])
	after, err := f.Stat()
	if err != nil || n != info.Size() || !after.ModTime().Equal(info.ModTime()) {
		return state.Digest{}, 0, fmt.Errorf("model: digest: %s: %w", path, ErrChanged)
	}
	remember(entry, d)
	return d, n, nil
}

// ErrChanged reports a model file that changed while it was read.
var ErrChanged = errors.New("the file changed while it was read; wait until it is complete")

// onlyReader hides io.WriterTo, so that io.CopyBuffer uses the given buffer.
type onlyReader struct{ io.Reader }

// cacheEntry returns the path at which the digest of the described file is
// remembered, or "" without a cache directory.
func cacheEntry(path string, info os.FileInfo) string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	name := blake3.Sum256(fmt.Appendf(nil, "%q %d %d %s", abs, info.Size(), info.ModTime().UnixNano(), fileIdentity(info)))
	return filepath.Join(dir, "tandem", "digests", hex.EncodeToString(name[:16]))
}

func recall(entry string) (d state.Digest, ok bool) {
	if entry == "" {
		return d, false
	}
	f, err := os.Open(entry)
	if err != nil {
		return d, false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 2*int64(len(d))+2))
	if err != nil {
		return d, false
	}
	raw, err := hex.DecodeString(strings.TrimSpace(string(b)))
	if err != nil || len(raw) != len(d) {
		return d, false
	}
	copy(d[:], raw)
	return d, true
}

// remember stores a digest. Failing to costs only time at the next start.
func remember(entry string, d state.Digest) {
	if entry == "" || os.MkdirAll(filepath.Dir(entry), 0o755) != nil {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(entry), ".digest.*")
	if err != nil {
		return
	}
	_, err = f.WriteString(hex.EncodeToString(d[:]) + "\n")
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), entry)
	}
	if err != nil {
		os.Remove(f.Name())
	}
}
