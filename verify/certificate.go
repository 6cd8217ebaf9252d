package verify

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/zeebo/blake3"
)

// CertificateSchema is the version of the certificate's format.
const CertificateSchema = 1

// maxCertificate bounds a certificate that is read, in bytes.
const maxCertificate = 8 << 20

// ErrCertificate: a certificate that cannot be made, or is none.
var ErrCertificate = errors.New("verify: certificate refused")

// Certificate says that a model's sequences were verified to move exactly, with which engine, and by which
// cells. It is evidence, not a secret and not a signature: Digest shows that it was not edited by accident.
type Certificate struct {
	Schema int       `json:"schema"`
	Tandem string    `json:"tandem"`
	Made   time.Time `json:"made"`
	// Model says which model, Identities what two workers must share, one for each KV type that was verified.
	Model      Model      `json:"model"`
	Identities []Identity `json:"identities"`
	// Source and Destination are the two processes. Where a pair's backends or threads are others, it is
	// verified for tokens, not for bits.
	Source      Side `json:"source"`
	Destination Side `json:"destination"`
	// OtherThreads is the destination's other number of threads in cells of that name, 0 without such cells.
	OtherThreads int `json:"other_threads,omitempty"`
	// Quick says that only the small matrix ran, Partial that cells were left out on request, and Caps which
	// prompt lengths were left out, and why.
	Quick   bool   `json:"quick"`
	Partial bool   `json:"partial"`
	Caps    []Cap  `json:"caps,omitempty"`
	Steps   int    `json:"steps"`
	Seed    uint64 `json:"seed"`
	// KVTypes, Lanes and Lengths are what was asked for.
	KVTypes []string `json:"kv_types"`
	Lanes   []string `json:"lanes"`
	Lengths []int    `json:"lengths"`
	// LongestPrompt is the longest prompt verified, in tokens.
	LongestPrompt int `json:"longest_prompt"`
	// Passed and Explained list cells by name; Skipped those that were not run, with the reason, cells not built
	// and not applicable included.
	Passed    []string  `json:"passed"`
	Explained []string  `json:"explained,omitempty"`
	Skipped   []LeftOut `json:"skipped,omitempty"`
	// Digest is the BLAKE3 of the document without it, in hexadecimal.
	Digest string `json:"digest"`
}

// LeftOut is a cell that was not run.
type LeftOut struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Reason string `json:"reason"`
}

// Certify makes the certificate of a report. It refuses a report that is not OK, or in which no sequence was
// moved.
func Certify(r *Report) (*Certificate, error) {
	if !r.OK() {
		return nil, fmt.Errorf("%w: %d cells failed, %d are unfinished, %d passed", ErrCertificate, r.Counts[Failed], r.Counts[Unfinished], r.Counts[Passed])
	}
	c := &Certificate{
		Schema: CertificateSchema, Tandem: r.Tandem, Made: r.Started, Model: r.Model, Identities: r.Identities,
		Source: r.Source, Destination: r.Destination, OtherThreads: r.OtherThreads, Quick: r.Quick, Caps: r.Caps, Steps: r.Steps, Seed: r.Seed,
		Partial: r.Match != "", KVTypes: r.KVTypes, Lanes: r.Lanes, Lengths: r.Lengths,
	}
	moved := false
	for i := range r.Cells {
		cell := &r.Cells[i]
		switch cell.Status {
		case Passed:
			c.Passed = append(c.Passed, cell.Name)
		case Explained:
			c.Explained = append(c.Explained, cell.Name)
		default:
			c.Skipped = append(c.Skipped, LeftOut{cell.Name, cell.Status, cell.Reason})
			continue
		}
		if cell.Params != nil {
			moved = true
			c.LongestPrompt = max(c.LongestPrompt, cell.Params.Tokens)
		}
	}
	if !moved {
		return nil, fmt.Errorf("%w: no sequence was moved", ErrCertificate)
	}
	var err error
	c.Digest, err = c.sum()
	return c, err
}

// sum is the digest of everything but itself.
func (c *Certificate) sum() (string, error) {
	plain := *c
	plain.Digest = ""
	b, err := json.Marshal(&plain)
	if err != nil {
		return "", err
	}
	d := blake3.Sum256(b)
	return hex.EncodeToString(d[:]), nil
}

// check reports what in a certificate contradicts itself.
func (c *Certificate) check() error {
	no := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrCertificate, fmt.Sprintf(format, args...))
	}
	switch {
	case c.Schema != CertificateSchema:
		return no("schema %d, this build reads %d", c.Schema, CertificateSchema)
	case len(c.Identities) == 0 || len(c.Passed) == 0 || c.LongestPrompt < 1:
		return no("it certifies nothing")
	case c.Source.Build == "" || c.Destination.Build == "" || c.Made.IsZero():
		return no("it does not say with what or when it was made")
	}
	for _, l := range c.Skipped {
		if l.Status == Failed || l.Status == Unfinished || l.Status == Passed || l.Status == Explained || l.Reason == "" {
			return no("cell %q was left out as %q", l.Name, l.Status)
		}
	}
	for _, id := range c.Identities {
		s, err := id.State()
		if err != nil {
			return err
		}
		if s.Weights.Hex() != c.Model.Weights || s.Architecture != c.Model.Architecture {
			return no("its identities are not its model's")
		}
	}
	sum, err := c.sum()
	if err != nil {
		return err
	}
	if sum != c.Digest {
		return no("its digest is another's: it was edited or damaged; verify the model again")
	}
	return nil
}

// CertificatePath is where a model's certificate is kept by default: below the user's configuration directory,
// by the file's name and the first digits of the weights' digest.
func CertificatePath(m Model) (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("verify: no place for the certificate, name a file: %w", err)
	}
	name := strings.TrimSuffix(m.File, filepath.Ext(m.File))
	if len(m.Weights) >= 12 {
		name += "-" + m.Weights[:12]
	}
	return filepath.Join(dir, "tandem", "certificates", name+".json"), nil
}

// Write writes the certificate to a file, by way of a temporary one beside it.
func (c *Certificate) Write(path string) error {
	if err := c.check(); err != nil {
		return err
	}
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".certificate-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(append(b, '\n'))
	if err = errors.Join(err, tmp.Chmod(0o644), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}

// ReadCertificate reads and checks a certificate: the schema, that every field is known, that it contradicts
// itself nowhere, and its digest. Errors match ErrCertificate, or the file's.
func ReadCertificate(path string) (*Certificate, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxCertificate+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxCertificate {
		return nil, fmt.Errorf("%w: %s is larger than %d bytes", ErrCertificate, path, maxCertificate)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	c := &Certificate{}
	if err := dec.Decode(c); err != nil {
		return nil, fmt.Errorf("%w: %s: %v", ErrCertificate, path, err)
	}
	if dec.Decode(&struct{}{}) != io.EOF { //nolint:errorlint // anything else is more text
		return nil, fmt.Errorf("%w: %s: something follows it", ErrCertificate, path)
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}
