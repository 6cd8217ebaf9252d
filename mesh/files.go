package mesh

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Files in a mesh directory. A CA directory holds CAFile and CAKeyFile; an identity's holds CAFile, CertFile and KeyFile.
// The same directory may hold both.
const (
	CAFile    = "ca.pem"
	CAKeyFile = "ca.key"
	CertFile  = "cert.pem"
	KeyFile   = "key.pem"
)

// maxFile bounds what is read from any of the files.
const maxFile = 64 << 10

const (
	blockCert = "CERTIFICATE"
	blockKey  = "PRIVATE KEY"
)

// Save writes the CA to dir, made with mode 0700 when missing. The key file has mode 0600 from the moment it exists.
func (ca *CA) Save(dir string) error {
	key, err := x509.MarshalPKCS8PrivateKey(ca.key)
	if err != nil {
		return &Error{Kind: ErrFiles, Detail: "encoding the CA key", Cause: err}
	}
	// The key goes first: a directory with a certificate is complete.
	return writeAll(dir, []file{
		{CAKeyFile, 0o600, blockKey, key},
		{CAFile, 0o644, blockCert, ca.cert.Raw},
	})
}

// LoadCA reads a CA that Save wrote. clock is as for NewCA.
func LoadCA(dir string, clock func() time.Time) (*CA, error) {
	cert, err := readCert(dir, CAFile)
	if err != nil {
		return nil, err
	}
	key, err := readKey(dir, CAKeyFile)
	if err != nil {
		return nil, err
	}
	pub, ok := cert.PublicKey.(ed25519.PublicKey)
	if !cert.IsCA || !ok || !pub.Equal(key.Public()) {
		return nil, &Error{Kind: ErrFiles, Detail: fmt.Sprintf("%s and %s in %s are not one CA", CAFile, CAKeyFile, dir)}
	}
	return &CA{cert: cert, key: key, clock: orNow(clock)}, nil
}

// PEM returns the CA's certificate alone, which is public.
func (ca *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: blockCert, Bytes: ca.cert.Raw})
}

// Save writes the identity (its certificate, its key, the CA's certificate) to dir, made with mode 0700 when missing. The
// key file has mode 0600 from the moment it exists.
func (id *Identity) Save(dir string) error {
	key, err := x509.MarshalPKCS8PrivateKey(id.cert.PrivateKey)
	if err != nil {
		return &Error{Kind: ErrFiles, Detail: "encoding the key", Cause: err}
	}
	return writeAll(dir, []file{
		{KeyFile, 0o600, blockKey, key},
		{CAFile, 0o644, blockCert, id.ca.Raw},
		{CertFile, 0o644, blockCert, id.leaf.Raw},
	})
}

// Load reads an identity that Save wrote, and checks that its parts belong together. clock is the time at which peers
// are verified; nil means time.Now.
func Load(dir string, clock func() time.Time) (*Identity, error) {
	ca, err := readCert(dir, CAFile)
	if err != nil {
		return nil, err
	}
	if !ca.IsCA {
		return nil, &Error{Kind: ErrFiles, Detail: fmt.Sprintf("%s in %s is not a CA certificate", CAFile, dir)}
	}
	leaf, err := readCert(dir, CertFile)
	if err != nil {
		return nil, err
	}
	key, err := readKey(dir, KeyFile)
	if err != nil {
		return nil, err
	}
	return newIdentity(ca, leaf, key, clock)
}

// file is one PEM file to write.
type file struct {
	name  string
	mode  os.FileMode
	block string
	der   []byte
}

func writeAll(dir string, files []file) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return &Error{Kind: ErrFiles, Detail: "making the directory", Cause: err}
	}
	for _, f := range files {
		if err := writeFile(filepath.Join(dir, f.name), f); err != nil {
			return &Error{Kind: ErrFiles, Detail: "writing " + f.name, Cause: err}
		}
	}
	return nil
}

// writeFile writes beside and renames, so that a reader or a crash never sees half a file, and so that an old file with a
// wider mode is replaced rather than filled.
func writeFile(path string, f file) (err error) {
	t, err := os.CreateTemp(filepath.Dir(path), "."+f.name+".*") // CreateTemp makes 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(t.Name()))
		}
	}()
	if err := pem.Encode(t, &pem.Block{Type: f.block, Bytes: f.der}); err != nil {
		return errors.Join(err, t.Close())
	}
	if err := errors.Join(t.Chmod(f.mode), t.Sync(), t.Close()); err != nil {
		return err
	}
	return os.Rename(t.Name(), path)
}

func readBlock(dir, name, block string) ([]byte, error) {
	fail := func(detail string, cause error) error {
		return &Error{Kind: ErrFiles, Detail: fmt.Sprintf("%s in %s: %s", name, dir, detail), Cause: cause}
	}
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, fail("cannot be opened", err)
	}
	defer f.Close() // read only: nothing to lose
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fail("cannot be read", err)
	}
	if len(data) > maxFile {
		return nil, fail(fmt.Sprintf("longer than %d bytes", maxFile), nil)
	}
	b, _ := pem.Decode(data)
	if b == nil || b.Type != block {
		return nil, fail("holds no PEM "+block, nil)
	}
	return b.Bytes, nil
}

func readCert(dir, name string) (*x509.Certificate, error) {
	der, err := readBlock(dir, name, blockCert)
	if err != nil {
		return nil, err
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, &Error{Kind: ErrFiles, Detail: fmt.Sprintf("%s in %s is no certificate", name, dir), Cause: err}
	}
	return c, nil
}

func readKey(dir, name string) (ed25519.PrivateKey, error) {
	der, err := readBlock(dir, name, blockKey)
	if err != nil {
		return nil, err
	}
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, &Error{Kind: ErrFiles, Detail: fmt.Sprintf("%s in %s is no private key", name, dir), Cause: err}
	}
	key, ok := k.(ed25519.PrivateKey)
	if !ok {
		return nil, &Error{Kind: ErrFiles, Detail: fmt.Sprintf("%s in %s is not an Ed25519 key", name, dir)}
	}
	return key, nil
}
