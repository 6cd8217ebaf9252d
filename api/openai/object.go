package openai

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Structural limits of a body. They bound work and memory for any input, and are far above what a
// request with supported fields needs.
const (
	maxDepth   = 16    // nesting levels
	maxMembers = 4_096 // members of one object
	maxName    = 64    // bytes of a client's field name that an error repeats
)

// member is one field of an object: its decoded name and its raw, valid JSON value.
type member struct {
	name string
	raw  []byte
}

// null reports whether the value is null, which means the same as leaving the field out.
func (m member) null() bool { return string(m.raw) == "null" }

// parse checks a whole body and returns the members of its only value, an object.
func parse(body []byte) ([]member, *Error) {
	if !utf8.Valid(body) {
		return nil, invalid(CodeInvalidJSON, "", "The request body is not valid UTF-8.")
	}
	if !json.Valid(body) { // also refuses anything behind the value
		return nil, invalid(CodeInvalidJSON, "", "The request body is not one valid JSON value.")
	}
	s := scanner{data: body}
	s.space()
	if s.data[s.pos] != '{' {
		return nil, invalid(CodeInvalidJSON, "", "The request body must be a JSON object.")
	}
	if err := s.check("", 0); err != nil {
		return nil, err
	}
	return members(body), nil
}

// scanner walks JSON that json.Valid accepted, so it never has to report a syntax error.
type scanner struct {
	data []byte
	pos  int
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return
		}
	}
}

// text returns the raw string literal at the scanner and steps over it.
func (s *scanner) text() []byte {
	start := s.pos
	for s.pos++; s.data[s.pos] != '"'; s.pos++ {
		if s.data[s.pos] == '\\' {
			s.pos++
		}
	}
	s.pos++
	return s.data[start:s.pos]
}

// scalar steps over a number, true, false or null.
func (s *scanner) scalar() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ',', '}', ']', ' ', '\t', '\r', '\n':
			return
		}
		s.pos++
	}
}

// check walks the value at the scanner and refuses duplicate names, too many members and too deep
// nesting anywhere below path.
func (s *scanner) check(path string, depth int) *Error {
	s.space()
	switch s.data[s.pos] {
	case '"':
		s.text()
		return nil
	case '{', '[':
	default:
		s.scalar()
		return nil
	}
	if depth == maxDepth {
		return invalid(CodeInvalidJSON, path, "The request body is nested deeper than %d levels.", maxDepth)
	}
	if s.data[s.pos] == '[' {
		return s.checkArray(path, depth)
	}
	return s.checkObject(path, depth)
}

func (s *scanner) checkArray(path string, depth int) *Error {
	s.pos++
	for i := 0; ; i++ {
		s.space()
		switch s.data[s.pos] {
		case ']':
			s.pos++
			return nil
		case ',':
			s.pos++
			s.space()
		}
		// Paths are built only where they can be needed: a long array of numbers stays cheap.
		var err *Error
		switch s.data[s.pos] {
		case '{', '[':
			err = s.check(path+"["+strconv.Itoa(i)+"]", depth+1)
		default:
			err = s.check("", depth+1)
		}
		if err != nil {
			return err
		}
	}
}

func (s *scanner) checkObject(path string, depth int) *Error {
	var seen map[string]struct{} // made at the first member: empty objects cost nothing
	s.pos++
	for {
		s.space()
		switch s.data[s.pos] {
		case '}':
			s.pos++
			return nil
		case ',':
			s.pos++
			s.space()
		}
		name := unquote(s.text())
		child := join(path, clip(name))
		if _, dup := seen[name]; dup {
			return invalid(CodeDuplicate, child, "Duplicate parameter: '%s' is given more than once.", child)
		}
		if len(seen) == maxMembers {
			return invalid(CodeInvalidValue, path, "An object in the request body has more than %d members.", maxMembers)
		}
		if seen == nil {
			seen = make(map[string]struct{})
		}
		seen[name] = struct{}{}
		s.space()
		s.pos++ // the colon
		if err := s.check(child, depth+1); err != nil {
			return err
		}
	}
}

// skip steps over the value at the scanner without looking into it.
func (s *scanner) skip() {
	depth := 0
	for {
		s.space()
		switch s.data[s.pos] {
		case '"':
			s.text()
		case '{', '[':
			depth++
			s.pos++
		case '}', ']':
			depth--
			s.pos++
		case ',', ':':
			s.pos++
			continue
		default:
			s.scalar()
		}
		if depth == 0 {
			return
		}
	}
}

// members splits an object that parse has checked.
func members(raw []byte) []member {
	s := scanner{data: raw}
	s.space()
	s.pos++
	var out []member
	for {
		s.space()
		switch s.data[s.pos] {
		case '}':
			return out
		case ',':
			s.pos++
			s.space()
		}
		name := unquote(s.text())
		s.space()
		s.pos++
		s.space()
		start := s.pos
		s.skip()
		out = append(out, member{name, raw[start:s.pos]})
	}
}

// elements splits an array that parse has checked. It returns false when the array has more than
// limit elements, having stored no more than that.
func elements(raw []byte, limit int) ([][]byte, bool) {
	s := scanner{data: raw}
	s.pos++
	var out [][]byte
	for {
		s.space()
		switch s.data[s.pos] {
		case ']':
			return out, true
		case ',':
			s.pos++
			s.space()
		}
		if len(out) == limit {
			return out, false
		}
		start := s.pos
		s.skip()
		out = append(out, raw[start:s.pos])
	}
}

// unquote decodes a valid string literal. Escaped lone surrogates become U+FFFD, as everywhere in
// encoding/json.
func unquote(raw []byte) string {
	var v string
	if err := json.Unmarshal(raw, &v); err != nil {
		return "" // not reachable: the literal was validated
	}
	return v
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// clip bounds a client's field name for use in an error.
func clip(name string) string {
	if len(name) > maxName {
		name = strings.ToValidUTF8(name[:maxName], "") + "…"
	}
	return name
}
