package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the generated part of docs/cli.md")

const (
	cliDoc   = "../../docs/cli.md"
	docBegin = "<!-- flags: this part is generated; go test ./cmd/tandem -update -->\n"
	docEnd   = "<!-- /flags -->\n"
)

// TestDocumentedCommands keeps docs/cli.md equal to what --help says.
func TestDocumentedCommands(t *testing.T) {
	var c cli
	parser, err := kong.New(&c, kong.Name("tandem"), kong.DefaultEnvars("TANDEM"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(cliDoc)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), docBegin)
	got, after, ok2 := strings.Cut(rest, docEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no generated part", cliDoc)
	}
	var want strings.Builder
	document(&want, parser.Model.Node)
	if *update {
		if err := os.WriteFile(cliDoc, []byte(before+docBegin+want.String()+docEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if d := cmp.Diff(want.String(), got); d != "" {
		t.Errorf("%s: go test ./cmd/tandem -update rewrites it\n%s", cliDoc, d)
	}
	table, _, _ := strings.Cut(before, "\n## ")
	for _, n := range parser.Model.Children {
		if !n.Hidden && !strings.Contains(table, "`tandem "+n.Name) {
			t.Errorf("the table of commands in %s leaves out tandem %s", cliDoc, n.Name)
		}
	}
	for _, code := range []int{exitOK, exitFailure, exitUsage, exitSignal} {
		if !strings.Contains(before+after, fmt.Sprintf("\n| %d | ", code)) {
			t.Errorf("%s does not say what exit code %d means", cliDoc, code)
		}
	}
}

// document writes the reference of a command and of those below it.
func document(w *strings.Builder, n *kong.Node) {
	if n.Type == kong.CommandNode && len(n.Children) == 0 {
		fmt.Fprintf(w, "\n### tandem %s\n\n%s\n", commandPath(n), n.Help)
		for _, arg := range n.Positional {
			fmt.Fprintf(w, "\n`%s`: %s\n", arg.Summary(), arg.Help)
		}
		var rows []string
		for _, f := range n.Flags {
			if f.Hidden || f.Name == "help" {
				continue
			}
			name := "`--" + f.Name
			if !f.IsBool() {
				name += "=" + f.FormatPlaceHolder()
			}
			name += "`"
			if f.Short != 0 {
				name += ", `-" + string(f.Short) + "`"
			}
			fallback := ""
			switch {
			case f.Required:
				fallback = "required"
			case f.HasDefault:
				fallback = "`" + f.Default + "`"
				name = "`--" + f.Name + "`"
			}
			rows = append(rows, fmt.Sprintf("| %s | `%s` | %s | %s |\n", name, strings.Join(f.Envs, "`, `"), fallback, f.Help))
		}
		if len(rows) > 0 {
			w.WriteString("\n| flag | environment | default | meaning |\n|---|---|---|---|\n")
			w.WriteString(strings.Join(rows, ""))
		}
	}
	for _, child := range n.Children {
		if !child.Hidden {
			document(w, child)
		}
	}
}

// TestEveryFlagIsTold keeps flags from appearing without help, and settings of
// `up` from being lost on the way to the processes that need them.
func TestEveryFlagIsTold(t *testing.T) {
	var c cli
	parser, err := kong.New(&c, kong.Name("tandem"), kong.DefaultEnvars("TANDEM"))
	if err != nil {
		t.Fatal(err)
	}
	node := func(name string) *kong.Node {
		for _, child := range parser.Model.Children {
			if child.Name == name {
				return child
			}
		}
		t.Fatalf("no command %s", name)
		return nil
	}
	var all func(n *kong.Node)
	all = func(n *kong.Node) {
		for _, f := range n.Flags {
			if f.Help == "" {
				t.Errorf("tandem %s: --%s has no help", commandPath(n), f.Name)
			}
		}
		for _, child := range n.Children {
			all(child)
		}
	}
	all(parser.Model.Node)

	f := &fleet{cmd: &upCmd{Prefill: 1, Decode: 1}, dir: "run", bus: "tls://127.0.0.1:1"}
	f.cmd.Mode, f.cmd.TraceDir, f.cmd.DumpState, f.cmd.APIKeys = "colocated", "traces", "dumps", "keys"
	f.cmd.OTLP = "http://127.0.0.1:4318"
	told := map[string][]string{"gateway": f.gatewayArgs(), "worker": f.workerArgs(fleetWorker{"prefill-0", "prefill"})}
	// An external bus was not asked for, and the data plane stays on this machine.
	own := map[string][]string{"gateway": {"help", "nats"}, "worker": {"help", "listen", "advertise"}}
	for name, args := range told {
		for _, flag := range node(name).Flags {
			given := slices.ContainsFunc(args, func(a string) bool {
				return a == "--"+flag.Name || strings.HasPrefix(a, "--"+flag.Name+"=")
			})
			if !given && !slices.Contains(own[name], flag.Name) {
				t.Errorf("tandem up does not pass --%s to its %s", flag.Name, name)
			}
		}
	}
}
