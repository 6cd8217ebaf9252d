package handoff

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScripts runs testdata/*.txt. testdata/README.md documents the verbs.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			s := &scene{}
			datadriven.RunTest(t, file, s.run)
		})
	}
}

// TestScriptVerbsAreDocumented keeps the README complete.
func TestScriptVerbsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("testdata/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(eventNames[1:], messageNames[:]...) {
		if !strings.Contains(string(text), "`"+name) {
			t.Errorf("testdata/README.md does not mention `%s`", name)
		}
	}
}

// scene is what one script acts on: a model world, and three bare machines.
type scene struct {
	w   world
	out strings.Builder
	src Source
	dst Destination
	req Request
}

func (s *scene) run(t *testing.T, d *datadriven.TestData) string {
	s.out.Reset()
	switch d.Cmd {
	case "world":
		cfg := config{parts: 1, tokens: 2}
		for _, a := range d.CmdArgs {
			switch a.Key {
			case "policy":
				must(t, cfg.policy.UnmarshalText([]byte(a.Vals[0])))
			case "retry":
				must(t, cfg.retry.UnmarshalText([]byte(a.Vals[0])))
				cfg.retries = 1
			case "parts":
				cfg.parts = uint8(number(t, a.Vals[0]))
			case "tokens":
				cfg.tokens = uint8(number(t, a.Vals[0]))
			case "stuck":
				cfg.stuck = true
			case "onfail":
				must(t, cfg.onfail.UnmarshalText([]byte(a.Vals[0])))
			default:
				t.Fatalf("%s: unknown argument %s", d.Pos, a.Key)
			}
		}
		s.w = newWorld(cfg)
	case "machines":
		s.src, s.dst, s.req = Source{}, Destination{}, Request{}
	case "do":
		for _, line := range strings.Split(d.Input, "\n") {
			s.do(t, d, line)
		}
	case "tell":
		for _, line := range strings.Split(d.Input, "\n") {
			s.tell(t, d, line)
		}
	case "held":
		for _, h := range s.w.held() {
			fmt.Fprintln(&s.out, h)
		}
		if s.out.Len() == 0 {
			return "nothing\n"
		}
	default:
		t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
	return s.out.String()
}

func (s *scene) do(t *testing.T, d *datadriven.TestData, line string) {
	fmt.Fprintln(&s.out, line)
	for _, e := range s.w.enabled(nil) {
		if e.String() != line {
			continue
		}
		r := &runner{w: &s.w, trace: func(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }}
		r.do(e)
		r.check()
		if r.err != nil {
			t.Errorf("%s: %s: %v", d.Pos, line, r.err)
		}
		return
	}
	fmt.Fprintln(&s.out, "  cannot happen now")
}

func (s *scene) tell(t *testing.T, d *datadriven.TestData, line string) {
	words := strings.Fields(line)
	if len(words) < 2 {
		t.Fatalf("%s: want: role Fact [key=value]...", d.Pos)
	}
	var kind FactKind
	must(t, kind.UnmarshalText([]byte(words[1])))
	fmt.Fprintln(&s.out, line)
	switch words[0] {
	case "source":
		f := SourceFact{Kind: kind}
		if kind == FactDispatched {
			f = dispatched(DestinationFirst)
		}
		now := setFields(t, &f, words[2:])
		before := s.src.state
		acts, res, err := s.src.Apply(now, f, nil)
		fmt.Fprintf(&s.out, "  %s%s\n", stateChange(before, s.src.state, res, err), actionText(acts))
	case "destination":
		f := DestinationFact{Kind: kind}
		if kind == FactRouted {
			f = routed(DestinationFirst)
		}
		now := setFields(t, &f, words[2:])
		before := s.dst.state
		acts, res, err := s.dst.Apply(now, f, nil)
		fmt.Fprintf(&s.out, "  %s%s\n", stateChange(before, s.dst.state, res, err), actionText(acts))
	case "request":
		f := RequestFact{Kind: kind}
		if kind == FactAdmitted {
			f.Deadline, f.Patience = requestDeadline, attemptPatience
		}
		now := setFields(t, &f, words[2:])
		before := s.req.state
		acts, res, err := s.req.Apply(now, f, nil)
		fmt.Fprintf(&s.out, "  %s%s\n", stateChange(before, s.req.state, res, err), actionText(acts))
	default:
		t.Fatalf("%s: no machine %s", d.Pos, words[0])
	}
}

// setFields sets the fields of *fact that key=value words name (lower-case field
// names; handoff=N is the model's N-th id) and returns the time of at=.
func setFields(t *testing.T, fact any, words []string) (now time.Duration) {
	t.Helper()
	v := reflect.ValueOf(fact).Elem()
	for _, word := range words {
		key, val, ok := strings.Cut(word, "=")
		if !ok {
			val = "true"
		}
		if key == "at" {
			now = duration(t, val)
			continue
		}
		field := v.FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, strings.ReplaceAll(key, "-", "")) })
		if !field.IsValid() {
			t.Fatalf("%s has no field %s", v.Type(), key)
		}
		switch x := field.Addr().Interface().(type) {
		case *time.Duration:
			*x = duration(t, val)
		case *ID:
			*x = attemptID(uint8(number(t, val)))
		case *bool:
			*x = val == "true"
		case *uint8:
			*x = All
			if val != "all" {
				*x = uint8(number(t, val))
			}
		case *int:
			*x = number(t, val)
		case *uint64:
			*x = uint64(number(t, val))
		case interface{ UnmarshalText([]byte) error }:
			must(t, x.UnmarshalText([]byte(val)))
		default:
			t.Fatalf("field %s has a type that scripts cannot set", key)
		}
	}
	return now
}

// actionText writes actions: the kind, then every field that is set.
func actionText[A any](acts []A) string {
	var b strings.Builder
	for i, a := range acts {
		b.WriteString([]string{": ", ", "}[min(i, 1)])
		v := reflect.ValueOf(a)
		for j := range v.NumField() {
			f := v.Field(j)
			if f.IsZero() {
				continue
			}
			switch x := f.Interface().(type) {
			case ActionKind:
				b.WriteString(x.String())
			case ID:
				fmt.Fprintf(&b, " %s=%d", strings.ToLower(v.Type().Field(j).Name), attemptOf(x))
			case bool:
				fmt.Fprintf(&b, " %s", strings.ToLower(v.Type().Field(j).Name))
			default:
				fmt.Fprintf(&b, " %s=%v", strings.ToLower(v.Type().Field(j).Name), x)
			}
		}
	}
	return b.String()
}

func stateChange[S interface {
	comparable
	String() string
}](before, after S, res Result, err error) string {
	switch {
	case err != nil:
		return strings.TrimPrefix(err.Error(), "handoff: ")
	case res == NoOp:
		return "no-op in " + after.String()
	case before == after:
		return after.String()
	}
	return before.String() + " -> " + after.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	must(t, err)
	return n
}

func duration(t *testing.T, s string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s)
	must(t, err)
	return d
}
