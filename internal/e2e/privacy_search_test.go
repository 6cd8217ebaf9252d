package e2e

import (
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	bin "encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"hash/crc64"
	"hash/fnv"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/zeebo/blake3"
)

// content is what must not be found in anything that a fleet leaves: texts, token
// sequences, and everything that can be computed from them.
type content struct {
	needles map[string]string // what to search for -> what it is
}

func newContent() *content { return &content{needles: map[string]string{}} }

// The shortest piece of a text, and of a token sequence, that counts as a leak.
const (
	leakRunes  = 10
	leakTokens = 4
)

func (c *content) needle(s, what string) {
	if len(s) >= 8 {
		c.needles[s] = what
	}
}

// text forbids a text: every part of leakRunes characters, as it is and as logs
// and JSON escape it; and its digests and encodings.
func (c *content) text(s, what string) {
	runes := []rune(s)
	if len(runes) < leakRunes {
		return
	}
	for i := 0; i < len(runes); i += leakRunes / 2 {
		part := string(runes[i:min(i+leakRunes, len(runes))])
		if i > 0 && len([]rune(part)) < leakRunes {
			part = string(runes[len(runes)-leakRunes:])
		}
		quoted, _ := json.Marshal(part)
		for _, form := range []string{part, string(quoted[1 : len(quoted)-1]), trimQuotes(strconv.Quote(part)), trimQuotes(strconv.QuoteToASCII(part))} {
			c.needle(form, "a piece of "+what)
		}
	}
	c.raw([]byte(s), what)
}

func trimQuotes(s string) string { return s[1 : len(s)-1] }

// tokens forbids a token sequence: any leakTokens of them in a row, as lists are
// commonly printed; and digests and encodings of the ids.
func (c *content) tokens(ids []int32, what string) {
	if len(ids) < leakTokens {
		return
	}
	for i := 0; i+leakTokens <= len(ids); i++ {
		words := make([]string, leakTokens)
		for j := range words {
			words[j] = strconv.Itoa(int(ids[i+j]))
		}
		for _, sep := range []string{",", ", ", " ", ";", "\n"} {
			// The separator around them keeps 1,2,3,4 from being found in 11,2,3,45.
			c.needle(sep+strings.Join(words, sep)+sep, "token ids of "+what)
		}
		if i == 0 {
			for _, sep := range []string{",", ", ", " "} {
				c.needle("["+strings.Join(words, sep)+sep, "token ids of "+what)
			}
		}
	}
	var b32, b64 []byte
	for _, id := range ids {
		b32 = bin.LittleEndian.AppendUint32(b32, uint32(id))
		b64 = bin.LittleEndian.AppendUint64(b64, uint64(id))
	}
	c.raw(b32, "the ids of "+what)
	c.raw(b64, "the ids of "+what)
}

// raw forbids bytes in hexadecimal and base 64, and their digests.
func (c *content) raw(b []byte, what string) {
	c.encoded(b[:min(len(b), 24)], what)
	s1, s256, s512, m5 := sha1.Sum(b), sha256.Sum256(b), sha512.Sum512(b), md5.Sum(b)
	b3 := blake3.Sum256(b)
	for name, sum := range map[string][]byte{
		"SHA-1": s1[:], "SHA-256": s256[:], "SHA-512": s512[:], "MD5": m5[:], "BLAKE3": b3[:],
	} {
		c.encoded(sum[:8], "the "+name+" of "+what) // a cut digest is one too
	}
	f := fnv.New64a()
	_, _ = f.Write(b)
	for name, sum := range map[string]uint64{
		"CRC-32": uint64(crc32.ChecksumIEEE(b)), "CRC-32C": uint64(crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))),
		"CRC-64": crc64.Checksum(b, crc64.MakeTable(crc64.ECMA)), "FNV": f.Sum64(),
	} {
		what := "the " + name + " of " + what
		c.needle(fmt.Sprintf("%08x", sum), what)
		c.needle(fmt.Sprintf("%08X", sum), what)
		c.needle(strconv.FormatUint(sum, 10), what)
	}
}

func (c *content) encoded(b []byte, what string) {
	c.needle(hex.EncodeToString(b), what+" in hexadecimal")
	c.needle(strings.ToUpper(hex.EncodeToString(b)), what+" in hexadecimal")
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 { // where the bytes may begin in a longer encoding
			s := enc.EncodeToString(append(make([]byte, shift), b...))
			c.needle(s[(shift*8+5)/6:len(s)-1], what+" in base 64")
		}
	}
}

// secrets finds what looks like a ticket, a key, a digest or a list of token ids,
// whatever it was made from. Ids of requests and handoffs are shorter or have
// dashes in them.
var secrets = []struct {
	what string
	re   *regexp.Regexp
}{
	{"32 hexadecimal digits in a row", regexp.MustCompile(`[0-9a-fA-F]{32,}`)},
	{"40 characters of base 64 in a row", regexp.MustCompile(`[0-9A-Za-z+_]{40,}`)},
	{"a list of integers", regexp.MustCompile(`\b[0-9]{1,6}(?:(?:, ?| |;)[0-9]{1,6}){7,}\b`)},
	{"a list of escaped bytes", regexp.MustCompile(`(?:\\x[0-9a-f]{2}){4,}`)},
}

// find returns what of the content is in data, and everything that looks secret.
func (c *content) find(data []byte) []string {
	found := map[string]string{} // one example of each
	for needle, what := range c.needles {
		if i := bytes.Index(data, []byte(needle)); i >= 0 {
			found[what] = around(data, i, len(needle))
		}
	}
	for _, s := range secrets {
		if at := s.re.FindIndex(data); at != nil {
			found[s.what] = around(data, at[0], at[1]-at[0])
		}
	}
	var list []string
	for what, where := range found {
		list = append(list, what+": "+where)
	}
	sort.Strings(list)
	return list
}

func around(data []byte, at, n int) string {
	return fmt.Sprintf("%q", data[max(0, at-60):min(len(data), at+n+60)])
}

// TestSearchFindsContent shows that the search of TestNoContentLeaks would find a
// leak in each form that it claims to know.
func TestSearchFindsContent(t *testing.T) {
	const text = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich"
	ids := []int32{90, 119, 246, 108, 102, 32, 66, 111, 120, 107}
	c := newContent()
	c.text(text, "the prompt")
	c.tokens(ids, "the prompt")
	sum := sha256.Sum256([]byte(text))
	b3 := blake3.Sum256([]byte(text))
	var raw []byte
	for _, id := range ids {
		raw = bin.LittleEndian.AppendUint32(raw, uint32(id))
	}
	rawSum := blake3.Sum256(raw)
	for what, leak := range map[string]string{
		"whole text":           text,
		"a piece":              "msg=\"… jagen Viktor quer…\"",
		"escaped by JSON":      `{"x":"Boxk\u00e4mpfer jagen"}`,
		"escaped by Go":        strconv.QuoteToASCII(text),
		"in base 64":           base64.StdEncoding.EncodeToString([]byte("a prefix " + text)),
		"ids as JSON":          "[90,119,246,108,102,32]",
		"ids inside a list":    "1 102 32 66 111 7",
		"ids by Go":            fmt.Sprint(ids),
		"SHA-256":              fmt.Sprintf("%x", sum),
		"BLAKE3, cut":          fmt.Sprintf("%x", b3[:8]),
		"CRC-32C":              fmt.Sprintf("crc=%08x", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli))),
		"CRC-32 in decimal":    fmt.Sprint(crc32.ChecksumIEEE([]byte(text))),
		"BLAKE3 of ids":        base64.RawURLEncoding.EncodeToString(rawSum[:]),
		"bytes of ids":         hex.EncodeToString(raw),
		"any ticket":           "ticket=" + hex.EncodeToString(b3[:]),
		"any ticket, base 64":  strings.Repeat("Ab3", 14),
		"any ticket, by Go":    fmt.Sprint(b3[:]),
		"any ids":              "500, 501, 502, 503, 504, 505, 506, 507",
		"bytes, escaped by Go": fmt.Sprintf("%q", b3[:]),
	} {
		if len(c.find([]byte("time=1 level=DEBUG "+leak+" process=x\n"))) == 0 {
			t.Errorf("not found: %s: %s", what, leak)
		}
	}
	const innocent = `time=2026-01-02T03:04:05.678Z level=INFO msg="request ended" request=chatcmpl-X43MPA2YEM3YU7SCO3264JOADG.0 took=24.928064ms
{"seq":17,"now_ns":1796017478062123456,"handoff":"019ad2f1-7b1c-7c3e-9d52-0123456789ab","first":0,"end":512,"bytes":1056768}
`
	if got := c.find([]byte(innocent)); len(got) != 0 {
		t.Errorf("found in an innocent log: %v", got)
	}
}
