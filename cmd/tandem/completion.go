package main

import (
	"fmt"
	"sort"
	"strings"

	"github.com/alecthomas/kong"
)

// completeVerb is the hidden first argument with which the completion scripts
// ask the program itself for candidates, so that they never grow stale.
const completeVerb = "__complete"

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (c *completionCmd) Run(a *app) error {
	_, err := fmt.Fprint(a.stdout, completionScripts[c.Shell])
	return err
}

var completionScripts = map[string]string{
	"bash": `# eval "$(tandem completion bash)"
_tandem() {
  local IFS=$'\n'
  COMPREPLY=( $(tandem ` + completeVerb + ` "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null) )
}
complete -o default -F _tandem tandem
`,
	"zsh": `# eval "$(tandem completion zsh)"
_tandem() {
  local -a candidates
  candidates=("${(@f)$(tandem ` + completeVerb + ` "${(@)words[2,$CURRENT]}" 2>/dev/null)}")
  [[ -n "$candidates" ]] && compadd -- $candidates || _files
}
compdef _tandem tandem
`,
	"fish": `# tandem completion fish | source
complete -c tandem -a '(tandem ` + completeVerb + ` (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
`,
}

// complete lists the candidates for the last of words: subcommands, flags, or
// the values of an enumerated flag.
func complete(model *kong.Application, words []string) []string {
	if len(words) == 0 {
		words = []string{""}
	}
	last := words[len(words)-1]
	node := model.Node
	flags := map[string]*kong.Flag{}
	collect := func(n *kong.Node) {
		for _, f := range n.Flags {
			if !f.Hidden {
				flags["--"+f.Name] = f
			}
		}
	}
	collect(node)
	for _, w := range words[:len(words)-1] {
		for _, child := range node.Children {
			if child.Name == w {
				node = child
				collect(node)
				break
			}
		}
	}
	// bash makes a word of its own of the = in --flag=value, zsh and fish do not.
	if name, value, ok := strings.Cut(last, "="); ok && flags[name] != nil {
		var out []string
		for _, v := range withPrefix(enumValues(flags[name].Value), value) {
			out = append(out, name+"="+v)
		}
		return out
	}
	before := words[:len(words)-1]
	if last == "=" {
		last = ""
	} else if n := len(before); n > 1 && before[n-1] == "=" {
		before = before[:n-1]
	}
	if n := len(before); n > 0 {
		if f := flags[before[n-1]]; f != nil && !f.IsBool() {
			return withPrefix(enumValues(f.Value), last)
		}
	}
	var out []string
	if strings.HasPrefix(last, "-") {
		for name := range flags {
			out = append(out, name)
		}
		return withPrefix(out, last)
	}
	for _, child := range node.Children {
		if !child.Hidden {
			out = append(out, child.Name)
		}
	}
	for _, arg := range node.Positional {
		out = append(out, enumValues(arg)...)
	}
	return withPrefix(out, last)
}

func enumValues(v *kong.Value) []string {
	if v.Enum == "" {
		return nil
	}
	return strings.Split(v.Enum, ",")
}

func withPrefix(words []string, prefix string) []string {
	var out []string
	for _, w := range words {
		if strings.HasPrefix(w, prefix) {
			out = append(out, w)
		}
	}
	sort.Strings(out)
	return out
}
