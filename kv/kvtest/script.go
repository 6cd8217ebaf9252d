package kvtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
)

// common are the scripts that every manager runs, from its own directory.
const common = "../kvtest/testdata/"

// Scripts runs the scripts that all managers share, then the manager's own
// testdata/*.txt, and sees that the README.md documents all verbs.
func Scripts(t *testing.T, make func(kv.Config) (kv.Manager, error)) {
	for _, pattern := range []string{common + "*.txt", "testdata/*.txt"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal("no scripts", pattern, err)
		}
		for _, file := range files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
				s := &scene{t: t, make: make}
				datadriven.RunTest(t, file, s.run)
			})
		}
	}
	text, err := os.ReadFile(common + "README.md")
	if err != nil {
		t.Fatal(err)
	}
	for verb := range verbs {
		if !strings.Contains(string(text), "`"+verb) {
			t.Errorf("README.md does not mention `%s`", verb)
		}
	}
}

// scene is what one script acts on.
type scene struct {
	t     *testing.T
	make  func(kv.Config) (kv.Manager, error)
	m     kv.Manager
	seqs  map[string]kv.Seq
	names map[kv.Key]string // of keys: the prompt up to there
	out   strings.Builder
}

func (s *scene) run(t *testing.T, d *datadriven.TestData) string {
	s.t = t
	s.out.Reset()
	switch d.Cmd {
	case "manager":
		cfg := kv.Config{Blocks: 8, BlockTokens: 4, Slots: 8, Events: true}
		for _, a := range d.CmdArgs {
			n := 1
			if len(a.Vals) > 0 {
				n = Number(s.t, a.Vals[0])
			}
			switch a.Key {
			case "blocks":
				cfg.Blocks = n
			case "slots":
				cfg.Slots = n
			case "align":
				cfg.Align = n
			case "mark-bytes":
				cfg.Marked, cfg.MarkBytes = true, int64(n)
			default:
				t.Fatalf("%s: unknown argument %s", d.Pos, a.Key)
			}
		}
		var err error
		if s.m, err = s.make(cfg); err != nil {
			t.Fatal(err)
		}
		s.seqs, s.names = map[string]kv.Seq{}, map[kv.Key]string{}
	case "do":
		for _, line := range strings.Split(d.Input, "\n") {
			words := strings.Fields(line)
			verb := verbs[words[0]]
			if verb == nil {
				t.Fatalf("%s: unknown verb %s", d.Pos, words[0])
			}
			fmt.Fprintln(&s.out, line)
			verb(s, Parse(s.t, words[1:]))
			for _, e := range s.m.Events(nil) {
				fmt.Fprintf(&s.out, "  %v %s\n", e.Kind, s.names[e.Key])
			}
		}
	default:
		t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
	return s.out.String()
}

// Args are the words of a script's verb: names, and values after a key. The scripts of
// every package that stands on a manager are read alike.
type Args struct {
	t      testing.TB
	Names  []string
	Values map[string]string
}

// Parse reads the words after a verb. A value that should be a number and is not
// ends the test.
func Parse(t testing.TB, words []string) Args {
	a := Args{t: t, Values: map[string]string{}}
	for _, w := range words {
		if key, value, ok := strings.Cut(w, "="); ok {
			a.Values[key] = value
		} else {
			a.Names = append(a.Names, w)
		}
	}
	return a
}

// Int is the number behind a key, or otherwise.
func (a Args) Int(key string, otherwise int) int {
	if text, ok := a.Values[key]; ok {
		return Number(a.t, text)
	}
	return otherwise
}

// Number reads a number of a script.
func Number(t testing.TB, text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (a Args) name(i int) string {
	if i < len(a.Names) {
		return a.Names[i]
	}
	return ""
}

// id makes an id of a name; "0" is the zero id.
func id(name string) (id handoff.ID) {
	if name != "0" {
		copy(id[:], name)
	}
	return id
}

// keys are those of a prompt whose blocks are letters.
func (s *scene) keys(prompt string) (keys []kv.Key) {
	c := kv.NewChain(kv.Salt{}, 1)
	for i, letter := range prompt {
		keys = c.Tokens([]int32{letter}, keys)
		s.names[keys[i]] = prompt[:i+1]
	}
	return keys
}

func (s *scene) need(a Args) kv.Need {
	keys := s.keys(a.Values["prompt"])
	n := kv.Need{Tokens: a.Int("tokens", len(keys)*s.m.Config().BlockTokens), Keys: keys}
	n.Limit = a.Int("limit", n.Tokens+a.Int("headroom", 0))
	n.Headroom = a.Int("headroom", 0)
	return n
}

func (s *scene) say(o kv.Outcome) { fmt.Fprintf(&s.out, "  %v\n", o) }

func (s *scene) made(name string, seq kv.Seq, cached int, o kv.Outcome) {
	if o != kv.OK && o != kv.Duplicate {
		s.say(o)
		return
	}
	s.seqs[name] = seq
	fmt.Fprintf(&s.out, "  %v, %d tokens are here\n", o, cached)
}

var verbs map[string]func(s *scene, a Args)

func init() { // verbs and scene refer to each other
	verbs = map[string]func(s *scene, a Args){
		"start": func(s *scene, a Args) {
			seq, cached, o := s.m.Start(s.need(a))
			s.made(a.name(0), seq, cached, o)
		},
		"reserve": func(s *scene, a Args) {
			seq, cached, o := s.m.Reserve(id(a.name(0)), s.need(a))
			s.made(a.name(0), seq, cached, o)
		},
		"activate": func(s *scene, a Args) {
			_, o := s.m.Activate(id(a.name(0)), s.keys(a.Values["prompt"]))
			s.say(o)
		},
		"grow": func(s *scene, a Args) {
			room, o := s.m.Grow(s.seqs[a.name(0)], a.Int("tokens", 0))
			fmt.Fprintf(&s.out, "  %v, room for %d\n", o, room)
		},
		"publish": func(s *scene, a Args) {
			keys := s.keys(a.Values["prompt"])
			s.say(s.m.Publish(s.seqs[a.name(0)], a.Int("tokens", len(keys)*s.m.Config().BlockTokens), keys))
		},
		"hold":    func(s *scene, a Args) { s.say(s.m.Hold(id(a.name(0)), s.seqs[a.name(1)])) },
		"resume":  func(s *scene, a Args) { s.say(s.m.Resume(s.seqs[a.name(0)], s.need(a))) },
		"rekey":   func(s *scene, a Args) { s.say(s.m.Rekey(id(a.name(0)), id(a.name(1)))) },
		"free":    func(s *scene, a Args) { s.say(s.m.Free(s.seqs[a.name(0)])) },
		"release": func(s *scene, a Args) { s.say(s.m.Release(id(a.name(0)))) },
		"touch":   func(s *scene, a Args) { s.say(s.m.Touch(s.seqs[a.name(0)])) },
		"quiet":   func(s *scene, a Args) { s.say(s.m.Quiet(s.seqs[a.name(0)])) },
		"mark": func(s *scene, a Args) {
			s.say(s.m.Mark(s.seqs[a.name(0)], a.Int("tokens", 0), int64(a.Int("bytes", 0))))
		},
		"evict": func(s *scene, a Args) {
			fmt.Fprintf(&s.out, "  %d\n", s.m.Evict(Number(s.t, a.name(0))))
		},
		"reset": func(s *scene, _ Args) { s.say(s.m.Reset()) },
		"match": func(s *scene, a Args) {
			fmt.Fprintf(&s.out, "  %d tokens\n", s.m.Match(s.need(a), slices.Contains(a.Names, "reserve")))
		},
		"blocks": func(s *scene, a Args) {
			fmt.Fprintf(&s.out, "  %v\n", s.m.Blocks(s.seqs[a.name(0)], nil))
		},
		"snapshot": func(s *scene, _ Args) {
			n := s.m.Snapshot()
			fmt.Fprintf(&s.out, "  active %d, pinned %d, reserved %d, cached %d, free %d; %d sequences, headroom %d", n.Active, n.Pinned, n.Reserved, n.Cached, n.Free, n.Slots, n.Headroom)
			if n.Marks > 0 {
				fmt.Fprintf(&s.out, ", marks %d bytes", n.Marks)
			}
			fmt.Fprintln(&s.out)
		},
	}
}
