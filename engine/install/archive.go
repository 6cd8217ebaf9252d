package install

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// extract unpacks the library files of an npm tarball into the new directory
// dst. Only regular files directly in package/bins/<platform>/ with a library's
// name are written, under their base name, so no entry can name a place outside
// dst; an entry that tries is an error, not skipped, because no honest package
// has one. Counts and sizes are bounded while reading, whatever headers declare.
func (in *installer) extract(tarball, dst string) error {
	bad := func(err error) error {
		return &Error{Kind: ErrArchive, Subject: filepath.Base(tarball), Err: err, Next: "download it again, or use --from DIR"}
	}
	f, err := os.Open(tarball)
	if err != nil {
		return &Error{Kind: ErrCache, Subject: tarball, Err: err}
	}
	defer f.Close()
	if err := os.MkdirAll(dst, 0o755); err != nil {
		return &Error{Kind: ErrCache, Subject: dst, Err: err}
	}
	zr, err := gzip.NewReader(f)
	if err != nil {
		return bad(err)
	}
	bounded := &io.LimitedReader{R: zr, N: in.unpacked}
	tr := tar.NewReader(bounded)
	bins := "package/bins/" + in.plat.name + "/"
	for entries := 0; ; entries++ {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			if bounded.N <= 0 {
				err = fmt.Errorf("unpacks to more than %d bytes", in.unpacked)
			}
			return bad(err)
		}
		if entries >= maxFiles {
			return bad(fmt.Errorf("more than %d entries", maxFiles))
		}
		if !filepath.IsLocal(filepath.FromSlash(hdr.Name)) || strings.Contains(hdr.Name, `\`) {
			return bad(fmt.Errorf("entry %.64q leaves the archive", hdr.Name))
		}
		name, ok := strings.CutPrefix(hdr.Name, bins)
		if !ok || !libraryFile.MatchString(name) {
			continue
		}
		if hdr.Typeflag != tar.TypeReg {
			return bad(fmt.Errorf("library %s is not a regular file", name))
		}
		if err := writeFile(filepath.Join(dst, name), tr, hdr.Size); err != nil {
			return bad(err)
		}
	}
	// The gzip checksum covers everything only once the stream has been read out.
	if _, err := io.Copy(io.Discard, bounded); err != nil {
		return bad(err)
	}
	return nil
}
