package workload

import (
	"bytes"
	"encoding/json"
	"math"
)

// field is what a line can say about a request.
type field uint8

const (
	fieldOther   field = iota
	fieldMillis        // arrival
	fieldSeconds       // arrival
	fieldInput
	fieldOutput
	fieldHashes
	fieldHashTokens
	fieldSession
	fieldTurn
	fieldTenant
)

// fieldOf knows both spellings: those of Mooncake's published traces, and our
// own. A switch on a converted slice does not allocate.
func fieldOf(key []byte) field {
	switch string(key) {
	case "timestamp":
		return fieldMillis
	case "arrival":
		return fieldSeconds
	case "input_length", "input":
		return fieldInput
	case "output_length", "output":
		return fieldOutput
	case "hash_ids", "hashes":
		return fieldHashes
	case "hash_tokens":
		return fieldHashTokens
	case "session":
		return fieldSession
	case "turn":
		return fieldTurn
	case "tenant":
		return fieldTenant
	}
	return fieldOther
}

// maxDepth is how deep values of unknown keys may nest, and maxTenant how long
// a tenant's name may be.
const (
	maxDepth  = 64
	maxTenant = 256
)

// jsonParser reads lines that are one JSON object each. encoding/json takes
// several times as long for the long lists of ids.
type jsonParser struct {
	hashTokens int
	tenants    map[string]string // names seen, so that a request need not allocate its own
}

// maxTenants is how many names are kept.
const maxTenants = 4096

func (p *jsonParser) parse(line []byte, into *record) *LineError {
	s := scanner{text: line}
	into.reset(p.hashTokens)
	if !s.take('{') {
		return malformed(Syntax, "expected a JSON object")
	}
	var seen [fieldTenant + 1]bool
	for more := !s.take('}'); more; {
		key, plain, ok := s.str()
		if !ok || !s.take(':') {
			return malformed(Syntax, "expected a key and a value")
		}
		what := fieldOther
		if plain {
			what = fieldOf(key)
		}
		if s.null() {
			what = fieldOther // as good as not there
		} else if e := p.value(&s, what, into); e != nil {
			return e
		}
		seen[what] = true
		switch {
		case s.take(','):
		case s.take('}'):
			more = false
		default:
			return malformed(Syntax, "expected a comma or the end of the object")
		}
	}
	if s.space(); len(s.text) > s.at {
		return malformed(Syntax, "something follows the object")
	}
	switch {
	case !seen[fieldMillis] && !seen[fieldSeconds]:
		return malformed(Missing, "timestamp or arrival")
	case !seen[fieldInput]:
		return malformed(Missing, "input_length or input")
	case !seen[fieldOutput]:
		return malformed(Missing, "output_length or output")
	}
	return into.check()
}

// value reads the value of a field.
func (p *jsonParser) value(s *scanner, what field, into *record) *LineError {
	q := &into.request
	var ok bool
	switch what {
	case fieldOther:
		if !s.skip(maxDepth) {
			return malformed(Syntax, "not a JSON value")
		}
	case fieldMillis:
		if into.nanos, ok = parseTime(s.number(), nanosPerMilli); !ok {
			return malformed(OutOfRange, "timestamp is not a number of milliseconds")
		}
	case fieldSeconds:
		if into.nanos, ok = parseTime(s.number(), nanosPerSecond); !ok {
			return malformed(OutOfRange, "arrival is not a number of seconds")
		}
	case fieldInput:
		return tokens(s.number(), &q.Input, "input")
	case fieldOutput:
		return tokens(s.number(), &q.Output, "output")
	case fieldHashTokens:
		return tokens(s.number(), &q.HashTokens, "hash_tokens")
	case fieldTurn:
		return tokens(s.number(), &q.Turn, "turn")
	case fieldHashes:
		return p.hashes(s, into)
	case fieldSession:
		if q.Session, ok = parseCount(s.number(), math.MaxUint64); !ok {
			return malformed(OutOfRange, "session is not a whole number")
		}
	case fieldTenant:
		return p.tenant(s, q)
	}
	return nil
}

// isMooncake reports whether a line has the names of Mooncake's traces.
func isMooncake(line []byte) bool { return bytes.Contains(line, []byte(`"input_length"`)) }

// hashes reads the list of ids into the record's own memory.
func (p *jsonParser) hashes(s *scanner, into *record) *LineError {
	into.hashed = true
	into.hashes = into.hashes[:0]
	if !s.take('[') {
		return malformed(Syntax, "expected a list of block ids")
	}
	if s.take(']') {
		return nil
	}
	for {
		id, ok := parseID(s.number())
		if !ok {
			return malformed(OutOfRange, "a block id is not a whole number of 64 bits")
		}
		into.hashes = append(into.hashes, id)
		if s.take(',') {
			continue
		}
		if !s.take(']') {
			return malformed(Syntax, "the list of block ids does not end")
		}
		return nil
	}
}

func (p *jsonParser) tenant(s *scanner, q *Request) *LineError {
	s.space()
	first := s.at
	name, plain, ok := s.str()
	if !ok {
		return malformed(Syntax, "tenant is not a string")
	}
	if !plain {
		var unquoted string
		if err := json.Unmarshal(s.text[first:s.at], &unquoted); err != nil {
			return malformed(Syntax, "tenant is not a string")
		}
		name = []byte(unquoted)
	}
	if len(name) > maxTenant {
		return malformed(OutOfRange, "tenant is longer than 256 bytes")
	}
	known, ok := p.tenants[string(name)]
	if !ok {
		known = string(bytes.ToValidUTF8(name, []byte("\uFFFD")))
		if len(p.tenants) < maxTenants {
			p.tenants[string(name)] = known
		}
	}
	q.Tenant = known
	return nil
}

// tokens reads a count of at least 1.
func tokens(text []byte, into *int, name string) *LineError {
	n, ok := parseCount(text, maxTokens)
	if !ok || n == 0 {
		return malformed(OutOfRange, name+" is not a whole number from 1 to 2^30")
	}
	*into = int(n)
	return nil
}

// scanner walks over JSON. Its methods skip the space before what they look
// for; those that fail leave it anywhere.
type scanner struct {
	text []byte
	at   int
}

func (s *scanner) space() {
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return
		}
	}
}

// take consumes c if it is next.
func (s *scanner) take(c byte) bool {
	s.space()
	if s.at < len(s.text) && s.text[s.at] == c {
		s.at++
		return true
	}
	return false
}

// word consumes w if it is next.
func (s *scanner) word(w string) bool {
	s.space()
	if bytes.HasPrefix(s.text[s.at:], []byte(w)) {
		s.at += len(w)
		return true
	}
	return false
}

func (s *scanner) null() bool { return s.word("null") }

// number returns the characters that numbers are made of, which may be none.
func (s *scanner) number() []byte {
	s.space()
	first := s.at
	for s.at < len(s.text) {
		switch c := s.text[s.at]; {
		case isDigit(c), c == '-', c == '+', c == '.', c == 'e', c == 'E':
			s.at++
			continue
		}
		break
	}
	return s.text[first:s.at]
}

// str consumes a string and returns what is between its quotes; plain says
// that it has no escapes.
func (s *scanner) str() (inside []byte, plain, ok bool) {
	if !s.take('"') {
		return nil, false, false
	}
	first := s.at
	plain = true
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case '"':
			s.at++
			return s.text[first : s.at-1], plain, true
		case '\\':
			plain = false
			s.at++
		}
		s.at++
	}
	s.at = len(s.text)
	return nil, false, false
}

// skip consumes any value.
func (s *scanner) skip(depth int) bool {
	if depth == 0 {
		return false
	}
	switch {
	case s.take('{'):
		for more := !s.take('}'); more; {
			if _, _, ok := s.str(); !ok || !s.take(':') || !s.skip(depth-1) {
				return false
			}
			if more = s.take(','); !more && !s.take('}') {
				return false
			}
		}
		return true
	case s.take('['):
		for more := !s.take(']'); more; {
			if !s.skip(depth - 1) {
				return false
			}
			if more = s.take(','); !more && !s.take(']') {
				return false
			}
		}
		return true
	case s.word("true"), s.word("false"), s.word("null"):
		return true
	}
	if s.at < len(s.text) && s.text[s.at] == '"' {
		_, _, ok := s.str()
		return ok
	}
	return len(s.number()) > 0
}
