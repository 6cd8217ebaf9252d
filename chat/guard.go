package chat

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of a template's source.
const (
	maxTag      = 16 << 10 // bytes of one tag
	maxBrackets = 32       // brackets inside brackets
	maxBlocks   = 200      // blocks inside blocks
	maxOps      = 256      // joining operators in one tag
	maxIndent   = 64
	maxNumber   = 1_000_000
)

// Filters and methods that may be called. Missing ones build text of unbounded
// size out of small arguments, or change lists behind the guard's back.
var (
	filters = set("abs capitalize count d default dictsort e escape first float from_json fromjson indent int items" +
		" join last length list lower map max min reject rejectattr replace reverse round safe select selectattr" +
		" sort string sum title tojson trim unique upper wordcount")
	methods = set("capitalize count endswith find get items keys lower lstrip replace rsplit rstrip split splitlines" +
		" startswith strip title upper values")
	statements = set("if elif else endif for endfor set endset macro endmacro call endcall filter endfilter" +
		" break continue generation endgeneration")
)

func set(names string) map[string]bool {
	m := map[string]bool{}
	for n := range strings.FieldsSeq(names) {
		m[n] = true
	}
	return m
}

func refuse(line int, format string, args ...any) error {
	return fmt.Errorf("%w: line %d: %s", ErrTemplate, line, fmt.Sprintf(format, args...))
}

// guard vets a template and inserts the calls that bound its run:
//
//	{% for … %}    is followed by   {% set __ = __pass(n) %}
//	{% macro … %}  is followed by   {% set __ = __enter(n) %}
//	{% endmacro %} is preceded by   {% set __ = __leave() %}
//	{% set x = v %}   becomes       {% set x = __keep(v) %}
//	{{ v }}           becomes       {{ __emit(v) }}
//
// where n is the bytes of plain text in the block. The inserted tags take over
// the whitespace control of the tag they adjoin, so that the text comes out the
// same.
func guard(source string) (string, error) {
	switch {
	case len(source) > MaxTemplate:
		return "", fmt.Errorf("%w: %d bytes, at most %d", ErrTemplate, len(source), MaxTemplate)
	case !utf8.ValidString(source):
		return "", fmt.Errorf("%w: it is not valid UTF-8", ErrTemplate)
	}
	g := guarder{line: 1}
	for rest := source; ; {
		text, tag, ok := nextTag(rest)
		g.text(text)
		if !ok {
			break
		}
		rest = rest[len(text)+len(tag.source):]
		if err := g.tag(&tag); err != nil {
			return "", err
		}
		g.line += strings.Count(tag.source, "\n")
	}
	if len(g.blocks) > 0 {
		return "", refuse(g.line, "a block that is not closed")
	}
	return strings.Join(g.out, ""), nil
}

// guarder is the state of one rewriting.
type guarder struct {
	out    []string
	line   int
	plain  int // bytes of plain text so far
	blocks []block
}

// block is a block that is open.
type block struct {
	word, right string
	call        int // index in out of the call that states its plain text, -1
	plain       int // guarder.plain at its beginning
}

func (g *guarder) text(s string) {
	g.out = append(g.out, s)
	g.plain += len(s)
	g.line += strings.Count(s, "\n")
}

func (g *guarder) tag(t *tag) error {
	if t.kind == '#' {
		g.out = append(g.out, t.source)
		return nil
	}
	if !t.closed {
		return refuse(g.line, "a tag that does not end")
	}
	v := vetter{line: g.line}
	if err := v.vet(t.body); err != nil {
		return err
	}
	if t.kind == '{' {
		g.out = append(g.out, fmt.Sprintf("{{%s %s(%s) %s}}", t.left, fnEmit, t.body, t.right))
		return nil
	}
	word, args := firstWord(t.body)
	switch {
	case !statements[word]:
		return refuse(g.line, "the statement %q is not supported", word)
	case strings.HasPrefix(word, "end"):
		return g.end(t, word)
	case word == "set":
		return g.set(t, args)
	}
	g.out = append(g.out, t.source)
	switch word {
	case "for", "macro", "call", "if", "filter":
		return g.begin(t, word)
	}
	return nil
}

func (g *guarder) begin(t *tag, word string) error {
	b := block{word: word, right: t.right, call: -1, plain: g.plain}
	if word == "for" || word == "macro" || word == "call" {
		b.call = len(g.out)
		g.out = append(g.out, "") // its text is known at the end
	}
	if g.blocks = append(g.blocks, b); len(g.blocks) > maxBlocks {
		return refuse(g.line, "more than %d blocks inside each other", maxBlocks)
	}
	return nil
}

func (g *guarder) end(t *tag, word string) error {
	if word == "endgeneration" {
		g.out = append(g.out, t.source)
		return nil
	}
	n := len(g.blocks) - 1
	if n < 0 || "end"+g.blocks[n].word != word {
		return refuse(g.line, "%q closes nothing", word)
	}
	b := g.blocks[n]
	g.blocks = g.blocks[:n]
	fn := fnEnter
	switch b.word {
	case "for":
		fn = fnPass
	case "macro", "call":
		g.out = append(g.out, fmt.Sprintf("{%%%s set __ = %s() %%}", t.left, fnLeave))
	}
	if b.call >= 0 {
		g.out[b.call] = fmt.Sprintf("{%% set __ = %s(%d) %s%%}", fn, g.plain-b.plain, b.right)
	}
	g.out = append(g.out, t.source)
	return nil
}

// set rewrites an assignment to one name. A block assignment's text has been
// bounded on its way there.
func (g *guarder) set(t *tag, args string) error {
	if name, value, ok := assignment(args); ok {
		g.out = append(g.out, fmt.Sprintf("{%%%s set %s = %s(%s) %s%%}", t.left, name, fnKeep, value, t.right))
		return nil
	}
	if strings.ContainsAny(args, "=,|") {
		return refuse(g.line, "an assignment that is not to one name")
	}
	g.out = append(g.out, t.source)
	return g.begin(t, "set")
}

// tag is one {{ }}, {% %} or {# #}.
type tag struct {
	kind        byte // '{', '%' or '#'
	left, right string
	source      string // all of it, delimiters included
	body        string
	closed      bool
}

// nextTag cuts the text before the first tag, and the tag.
func nextTag(s string) (text string, t tag, ok bool) {
	at := 0
	for {
		i := strings.IndexByte(s[at:], '{')
		if i < 0 || at+i+1 >= len(s) {
			return s, tag{}, false
		}
		at += i
		if k := s[at+1]; k == '{' || k == '%' || k == '#' {
			t.kind = k
			break
		}
		at++
	}
	end := map[byte]string{'{': "}}", '%': "%}", '#': "#}"}[t.kind]
	i := at + 2
	if i < len(s) && s[i] == '-' {
		t.left = "-"
		i++
	}
	start := i
	for i < len(s) {
		switch c := s[i]; {
		case t.kind != '#' && (c == '\'' || c == '"'):
			i = skipString(s, i)
			continue
		case strings.HasPrefix(s[i:], end):
			t.body, t.closed = s[start:i], true
		case c == '-' && strings.HasPrefix(s[i+1:], end):
			t.body, t.right, t.closed = s[start:i], "-", true
			i++
		default:
			i++
			continue
		}
		t.source = s[at : i+len(end)]
		return s[:at], t, true
	}
	t.source = s[at:]
	return s[:at], t, true
}

// skipString returns the index after the string literal that begins at i.
func skipString(s string, i int) int {
	quote := s[i]
	for i++; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case quote:
			return i + 1
		}
	}
	return len(s)
}

func firstWord(s string) (word, rest string) {
	s = strings.TrimLeft(s, " \t\r\n")
	i := 0
	for i < len(s) && isName(s[i]) {
		i++
	}
	return s[:i], s[i:]
}

func isName(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// assignment splits "name = value" or "ns.name = value".
func assignment(s string) (name, value string, ok bool) {
	name, value, ok = strings.Cut(s, "=")
	name = strings.TrimSpace(name)
	if !ok || name == "" || strings.HasPrefix(value, "=") {
		return "", "", false
	}
	for i := range len(name) {
		if !isName(name[i]) && name[i] != '.' {
			return "", "", false
		}
	}
	return name, value, true
}

// vetter reads the tokens of one tag and refuses what cannot be bounded.
type vetter struct {
	line, depth, ops, replaces int
}

func (v *vetter) vet(body string) error {
	if len(body) > maxTag {
		return refuse(v.line, "a tag of more than %d bytes", maxTag)
	}
	prev := "" // the token before, with "." and "|" kept
	for i := 0; i < len(body); {
		c := body[i]
		switch {
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
			i++
			continue
		case c == '\'' || c == '"':
			i = skipString(body, i)
			prev = "''"
			continue
		case c >= '0' && c <= '9':
			end := i
			for end < len(body) && body[end] >= '0' && body[end] <= '9' {
				end++
			}
			if n, err := strconv.Atoi(body[i:end]); err != nil || n > maxNumber {
				return refuse(v.line, "a number above %d", maxNumber)
			}
			i, prev = end, "0"
			continue
		case isName(c):
			end := i
			for end < len(body) && isName(body[end]) {
				end++
			}
			if err := v.name(body[i:end], prev, body[end:]); err != nil {
				return err
			}
			i, prev = end, "a"
			continue
		case strings.IndexByte("([{", c) >= 0:
			if v.depth++; v.depth > maxBrackets {
				return refuse(v.line, "more than %d brackets inside each other", maxBrackets)
			}
		case strings.IndexByte(")]}", c) >= 0:
			if v.depth--; v.depth < 0 {
				return refuse(v.line, "a bracket that closes nothing")
			}
		case c == '*':
			return refuse(v.line, "multiplication, which also repeats text, is not supported")
		case c == '~' || c == '+':
			if v.ops++; v.ops > maxOps {
				return refuse(v.line, "more than %d operators in one tag", maxOps)
			}
		case c >= utf8.RuneSelf:
			return refuse(v.line, "a character that is not part of the language")
		}
		prev = string(c)
		i++
	}
	if v.depth != 0 {
		return refuse(v.line, "a bracket that is not closed")
	}
	return nil
}

// name checks a name by what stands before it.
func (v *vetter) name(name, prev, after string) error {
	after = strings.TrimLeft(after, " \t\r\n")
	called := strings.HasPrefix(after, "(")
	switch {
	case strings.HasPrefix(name, "__"):
		return refuse(v.line, "the name %q is reserved", name)
	case prev == "|" && !filters[name]:
		return refuse(v.line, "the filter %q is not supported", name)
	case prev == "." && called && !methods[name]:
		return refuse(v.line, "the method %q is not supported", name)
	}
	switch {
	case name == "replace" && called && (prev == "|" || prev == "."):
		if v.replaces++; v.replaces > 4 || !tameReplace(after) {
			return refuse(v.line, "a replacement that makes text grow, or of computed text, is not supported")
		}
	case name == "join" && called && prev == "|":
		if !shortLiteral(after[1:]) {
			return refuse(v.line, "joining with computed text is not supported")
		}
	case name == "indent":
		if n, ok := literalAfter(after); (called || ok) && (!ok || n > maxIndent) {
			return refuse(v.line, "indenting by more than %d, or by a computed number, is not supported", maxIndent)
		}
	}
	return nil
}

// tameReplace reports whether call begins with two string literals of which the
// second is not much longer than the first.
func tameReplace(call string) bool {
	args := strings.TrimLeft(call[1:], " \t\r\n")
	old, rest, ok := cutLiteral(args)
	if !ok || old == 0 {
		return false
	}
	rest = strings.TrimLeft(rest, " \t\r\n")
	if !strings.HasPrefix(rest, ",") {
		return false
	}
	now, _, ok := cutLiteral(strings.TrimLeft(rest[1:], " \t\r\n"))
	return ok && now <= 8*old
}

func shortLiteral(args string) bool {
	n, _, ok := cutLiteral(strings.TrimLeft(args, " \t\r\n"))
	return ok && n <= 64 || strings.HasPrefix(strings.TrimLeft(args, " \t\r\n"), ")")
}

// cutLiteral returns the length of the string literal s begins with.
func cutLiteral(s string) (n int, rest string, ok bool) {
	if s == "" || s[0] != '\'' && s[0] != '"' {
		return 0, s, false
	}
	end := skipString(s, 0)
	return max(end-2, 0), s[end:], true
}

// literalAfter reads the number of "(4", "=4" or "(width=4".
func literalAfter(s string) (int, bool) {
	s = strings.TrimLeft(s, "(= \t")
	s = strings.TrimPrefix(s, "width")
	s = strings.TrimLeft(s, "= \t")
	end := 0
	for end < len(s) && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	n, err := strconv.Atoi(s[:end])
	return n, err == nil
}
