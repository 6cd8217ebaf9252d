package state

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite testdata/*.hex; only when the schema version changes")

// The bytes of schema 1 never change: a build that wrote others would not understand its peers.
func TestGoldenBytes(t *testing.T) {
	lim := DefaultLimits()
	d := deliver(t, testInventory(t), 0, 1, 0, 8, testTokens)
	header := func(i int) []byte {
		b := make([]byte, HeaderSize)
		d.units[i].h.Encode(b)
		return b
	}
	m, err := d.manifest.Encode(testKey(), &lim)
	if err != nil {
		t.Fatal(err)
	}
	key := testKey()
	idDigest := testIdentity().Digest()
	for _, g := range []struct {
		name   string
		bytes  []byte
		decode func([]byte) (any, error)
		want   any
	}{
		{"header_page", header(0), func(b []byte) (any, error) { return DecodeUnitHeader(b, &lim) }, d.units[0].h},
		{"header_snapshot", header(2), func(b []byte) (any, error) { return DecodeUnitHeader(b, &lim) }, d.units[2].h},
		{"identity", testIdentity().Encode(), func(b []byte) (any, error) { return DecodeIdentity(b, &lim) }, testIdentity()},
		{"identity_digest", idDigest[:], nil, nil},
		{"binding", testBinding().Encode(), func(b []byte) (any, error) { return DecodeBinding(b, &lim) }, testBinding()},
		{"digest_key", key[:], nil, nil},
		{"manifest", m, func(b []byte) (any, error) { return DecodeManifest(b, testKey(), &lim) }, &d.manifest},
	} {
		t.Run(g.name, func(t *testing.T) {
			file := filepath.Join("testdata", g.name+".hex")
			if *update {
				if err := os.WriteFile(file, []byte(dump(g.bytes)), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			text := readFile(t, file)
			if diff := cmp.Diff(text, dump(g.bytes)); diff != "" {
				t.Errorf("encoding changed: %s", diff)
			}
			if g.decode == nil {
				return
			}
			b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
			if err != nil {
				t.Fatal(err)
			}
			got, err := g.decode(b)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(g.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// dump writes 16 bytes a line.
func dump(b []byte) string {
	var s strings.Builder
	for i, x := range b {
		if i > 0 && i%16 == 0 {
			s.WriteByte('\n')
		} else if i > 0 {
			s.WriteByte(' ')
		}
		s.WriteString(hex.EncodeToString([]byte{x}))
	}
	s.WriteByte('\n')
	return s.String()
}
