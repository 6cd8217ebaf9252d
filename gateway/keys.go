package gateway

import (
	"bufio"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Limits of a key file.
const (
	maxKeys    = 10_000
	maxKeyLine = 1_024
	minKey     = 16 // bytes; shorter keys can be guessed
)

// DefaultTenant is the tenant of every request when no API keys are configured.
const DefaultTenant = "default"

// ErrKeys is wrapped by every error about a key file.
var ErrKeys = errors.New("bad API key file")

// Keys maps API keys to tenants. Only digests of the keys are kept. It is immutable.
type Keys struct {
	list []apiKey
}

type apiKey struct {
	digest [sha256.Size]byte
	tenant string
}

// ParseKeys reads a key file: one "tenant key" pair a line, separated by blanks; empty lines and
// lines that begin with # are skipped. A tenant may have several keys, a key has one tenant. Errors
// wrap ErrKeys and name the line, never the key.
func ParseKeys(r io.Reader) (*Keys, error) {
	k := &Keys{}
	seen := make(map[[sha256.Size]byte]bool)
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, maxKeyLine), maxKeyLine)
	line := 0
	for s.Scan() {
		line++
		fields := strings.Fields(s.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("gateway: %w: line %d: want a tenant and a key, separated by a blank", ErrKeys, line)
		}
		tenant, key := fields[0], fields[1]
		if !validTenant(tenant) {
			return nil, fmt.Errorf("gateway: %w: line %d: a tenant is 1 to 64 letters, digits, '.', '_' or '-'", ErrKeys, line)
		}
		if len(key) < minKey {
			return nil, fmt.Errorf("gateway: %w: line %d: a key needs at least %d characters", ErrKeys, line, minKey)
		}
		digest := sha256.Sum256([]byte(key))
		if seen[digest] {
			return nil, fmt.Errorf("gateway: %w: line %d: the key is given twice", ErrKeys, line)
		}
		if len(k.list) == maxKeys {
			return nil, fmt.Errorf("gateway: %w: line %d: more than %d keys", ErrKeys, line, maxKeys)
		}
		seen[digest] = true
		k.list = append(k.list, apiKey{digest, tenant})
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("gateway: %w: line %d: %w", ErrKeys, line+1, err)
	}
	if len(k.list) == 0 {
		return nil, fmt.Errorf("gateway: %w: no key in it; leave the option out to serve without keys", ErrKeys)
	}
	return k, nil
}

// tenant returns the tenant of a presented key. It compares digests, all of them and in constant
// time each, so that time tells nothing about how close a guess was.
func (k *Keys) tenant(presented string) (string, bool) {
	if k == nil {
		return DefaultTenant, true
	}
	digest := sha256.Sum256([]byte(presented))
	tenant, ok := "", 0
	for i := range k.list {
		if eq := subtle.ConstantTimeCompare(k.list[i].digest[:], digest[:]); eq == 1 {
			tenant, ok = k.list[i].tenant, 1
		}
	}
	return tenant, ok == 1
}

func validTenant(s string) bool {
	if len(s) == 0 || len(s) > 64 {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
