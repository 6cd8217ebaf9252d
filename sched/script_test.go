package sched

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/block"
	"github.com/tandem-llm/tandem/kv/kvtest"
	"github.com/tandem-llm/tandem/kv/radix"
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
	text, err := os.ReadFile("testdata/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for verb := range verbs {
		if !strings.Contains(string(text), "`"+verb) {
			t.Errorf("testdata/README.md does not mention `%s`", verb)
		}
	}
}

// scene is a scheduler, the time, and the running step.
type scene struct {
	t    *testing.T
	s    *Scheduler
	m    kv.Manager
	now  time.Duration
	step Step
	out  strings.Builder
}

func (s *scene) run(t *testing.T, d *datadriven.TestData) string {
	s.t = t
	s.out.Reset()
	switch d.Cmd {
	case "scheduler":
		s.make(d)
	case "do":
		for _, line := range strings.Split(d.Input, "\n") {
			words := strings.Fields(line)
			verb := verbs[words[0]]
			if verb == nil {
				t.Fatalf("%s: unknown verb %s", d.Pos, words[0])
			}
			fmt.Fprintln(&s.out, line)
			verb(s, kvtest.Parse(s.t, words[1:]))
			for _, n := range s.s.Notices(nil) {
				fmt.Fprintf(&s.out, "  %s %v", name(n.ID), n.Kind)
				if n.Kind != NoteFreed && n.Kind != NoteRefused {
					fmt.Fprintf(&s.out, ", %d tokens", n.Tokens)
				}
				fmt.Fprintln(&s.out)
			}
			if err := s.s.check(); err != nil {
				t.Fatalf("%s: %s: %v", d.Pos, line, err)
			}
		}
	default:
		t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
	return s.out.String()
}

func (s *scene) make(d *datadriven.TestData) {
	shape := kv.Config{Blocks: 16, BlockTokens: 4}
	cfg := Config{Budget: 16, Page: 4, Running: 4}
	tree := false
	for _, a := range d.CmdArgs {
		n := 0
		if len(a.Vals) > 0 {
			n = kvtest.Number(s.t, a.Vals[0])
		}
		switch a.Key {
		case "radix":
			tree = true
		case "blocks":
			shape.Blocks = n
		case "slots":
			shape.Slots = n
		case "running":
			cfg.Running = n
		case "budget":
			cfg.Budget = n
		case "chunk":
			cfg.Chunk = n
		case "headroom":
			cfg.Headroom = n
		case "prefills-first":
			cfg.Priority = PrefillsFirst
		case "no-recompute":
			cfg.NoRecompute = true
		case "source":
			cfg.Source.Blocks = n
		case "destination":
			cfg.Destination.Blocks = n
		default:
			s.t.Fatalf("%s: unknown argument %s", d.Pos, a.Key)
		}
	}
	var err error
	if tree {
		s.m, err = radix.New(shape)
	} else {
		s.m, err = block.New(shape)
	}
	if err == nil {
		s.s, err = New(cfg, s.m)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.now = 0
}

func id(name string) (id handoff.ID) {
	copy(id[:], name)
	return id
}

func name(id handoff.ID) string { return strings.TrimRight(string(id[:]), "\x00") }

func (s *scene) name(ref Ref) string { return name(s.s.requests[ref].id) }

// keys are those of a prompt whose blocks are letters.
func (s *scene) keys(prompt string) (keys []kv.Key) {
	c := kv.NewChain(kv.Salt{}, 1)
	for _, letter := range prompt {
		keys = c.Tokens([]int32{letter}, keys)
	}
	return keys
}

func (s *scene) prompt(a kvtest.Args) (keys []kv.Key, tokens int) {
	keys = s.keys(a.Values["prompt"])
	return keys, a.Int("tokens", len(keys)*s.m.Config().BlockTokens)
}

func (s *scene) request(a kvtest.Args) Request {
	keys, tokens := s.prompt(a)
	return Request{Prompt: tokens, MaxTokens: a.Int("max", 4), Held: slices.Contains(a.Names, "held"), Keys: keys}
}

func (s *scene) say(o Outcome) { fmt.Fprintf(&s.out, "  %v\n", o) }

func (s *scene) refs(a kvtest.Args, key string) (refs []Ref) {
	if a.Values[key] == "" {
		return nil
	}
	for _, n := range strings.Split(a.Values[key], ",") {
		ref, ok := s.s.Find(id(n))
		if !ok {
			s.t.Fatalf("no request %s", n)
		}
		refs = append(refs, ref)
	}
	return refs
}

func (s *scene) plan() {
	s.step = s.s.Plan(s.now)
	if s.step.Empty() {
		fmt.Fprintln(&s.out, "  nothing to compute")
		return
	}
	for i, d := range s.step.Decodes {
		fmt.Fprintf(&s.out, "%s%s at %d", []string{"  decode ", ", "}[min(i, 1)], s.name(d.Ref), d.Pos)
		if i == len(s.step.Decodes)-1 {
			fmt.Fprintln(&s.out)
		}
	}
	for _, c := range s.step.Chunks {
		fmt.Fprintf(&s.out, "  chunk %s %d to %d%s\n", s.name(c.Ref), c.First, c.End, map[bool]string{true: ", the last"}[c.Last])
	}
}

var verbs map[string]func(s *scene, a kvtest.Args)

func init() { // verbs and scene refer to each other
	verbs = map[string]func(s *scene, a kvtest.Args){
		"submit": func(s *scene, a kvtest.Args) {
			_, o := s.s.Submit(s.now, id(a.Names[0]), s.request(a))
			s.say(o)
		},
		"reserve": func(s *scene, a kvtest.Args) {
			keys, tokens := s.prompt(a)
			_, o := s.s.Reserve(s.now, id(a.Names[0]), Reservation{
				Prompt: tokens, MaxTokens: a.Int("max", 4), Keys: keys, Deadline: time.Duration(a.Int("deadline", 0)),
			})
			s.say(o)
		},
		"rebind": func(s *scene, a kvtest.Args) {
			_, o := s.s.Rebind(s.now, id(a.Names[0]), id(a.Names[1]), s.request(a))
			s.say(o)
		},
		"activate": func(s *scene, a kvtest.Args) { s.say(s.s.Activate(s.now, id(a.Names[0]))) },
		"cancel":   func(s *scene, a kvtest.Args) { s.say(s.s.Cancel(s.now, id(a.Names[0]))) },
		"release":  func(s *scene, a kvtest.Args) { s.say(s.s.Release(s.now, id(a.Names[0]))) },
		"touch":    func(s *scene, a kvtest.Args) { s.say(s.s.Touch(id(a.Names[0]))) },
		"quiet":    func(s *scene, a kvtest.Args) { s.say(s.s.Quiet(s.now, id(a.Names[0]))) },
		"keys": func(s *scene, a kvtest.Args) {
			s.say(s.s.Keys(s.now, id(a.Names[0]), s.keys(a.Values["prompt"])))
		},
		"plan": func(s *scene, _ kvtest.Args) { s.plan() },
		"done": func(s *scene, a kvtest.Args) {
			s.say(s.s.Done(s.now, Results{Finished: s.refs(a, "finished"), Failed: s.refs(a, "failed")}))
		},
		"step": func(s *scene, a kvtest.Args) {
			s.plan()
			if !s.step.Empty() {
				s.s.Done(s.now, Results{Finished: s.refs(a, "finished"), Failed: s.refs(a, "failed")})
			}
		},
		"steady": func(s *scene, a kvtest.Args) {
			fmt.Fprintf(&s.out, "  %d\n", s.s.Steady(kvtest.Number(s.t, a.Names[0])))
		},
		"skip": func(s *scene, a kvtest.Args) { fmt.Fprintf(&s.out, "  %d\n", s.s.Skip(kvtest.Number(s.t, a.Names[0]))) },
		"at":   func(s *scene, a kvtest.Args) { s.now = time.Duration(kvtest.Number(s.t, a.Names[0])) },
		"idle": func(s *scene, _ kvtest.Args) {
			fmt.Fprintf(&s.out, "  idle %v, drained %v\n", s.s.Idle(), s.s.Drained())
		},
		"ask": func(s *scene, a kvtest.Args) {
			for _, n := range a.Names {
				ref, ok := s.s.Find(id(n))
				if !ok {
					fmt.Fprintf(&s.out, "  %s gone\n", n)
					continue
				}
				i := s.s.Info(ref)
				fmt.Fprintf(&s.out, "  %s %v, %d of %d tokens computed, %d generated\n", n, i.State, i.Computed, i.Target, i.Tokens)
			}
		},
		"blocks": func(s *scene, a kvtest.Args) {
			ref, _ := s.s.Find(id(a.Names[0]))
			fmt.Fprintf(&s.out, "  %v\n", s.m.Blocks(s.s.Info(ref).Seq, nil))
		},
		"snapshot": func(s *scene, _ kvtest.Args) {
			n := s.m.Snapshot()
			fmt.Fprintf(&s.out, "  active %d, pinned %d, reserved %d, cached %d, free %d; %d sequences, headroom %d\n", n.Active, n.Pinned, n.Reserved, n.Cached, n.Free, n.Slots, n.Headroom)
		},
	}
}
