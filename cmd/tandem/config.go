package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// configPaths returns the configuration files to read: the one that --config or
// TANDEM_CONFIG names, or else the default ones, of which the later wins. An
// empty name means that none is read. kong learns of configuration before it
// parses, so the flag is looked for here.
//
// --config of `tandem replay` names a fleet, which is another kind of file.
func configPaths(args []string) ([]string, error) {
	path, named := os.LookupEnv(configEnv)
	from := configEnv
	if commandOf(args) == "replay" {
		return defaultConfigPaths(), nil
	}
	for i, a := range args {
		if a == "--" {
			break
		}
		if a == "--config" && i+1 < len(args) {
			path, named, from = args[i+1], true, a
		} else if value, ok := strings.CutPrefix(a, "--config="); ok {
			path, named, from = value, true, "--config"
		}
	}
	switch {
	case !named:
		return defaultConfigPaths(), nil
	case path == "":
		return nil, nil
	}
	// kong passes over a file that it cannot open, which is right only for the default ones.
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return []string{path}, f.Close()
}

// commandOf returns the command of a command line: the first argument that is no flag and
// no value of one. Before the command there can be no other flag with a value than --config.
func commandOf(args []string) string {
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "--config":
			i++
		case !strings.HasPrefix(a, "-"):
			return a
		}
	}
	return ""
}

const configEnv = "TANDEM_CONFIG"

func defaultConfigPaths() []string {
	paths := []string{"/etc/tandem/config.yaml"}
	if dir, err := os.UserConfigDir(); err == nil {
		paths = append(paths, filepath.Join(dir, "tandem", "config.yaml"))
	}
	return paths
}

// maxConfigBytes bounds a configuration file; a real one has a few hundred bytes.
const maxConfigBytes = 1 << 20

type configResolver struct {
	name   string
	values map[string]any
}

// loadConfig reads a YAML mapping. Keys at the top apply to every command that
// has a flag of that name; keys below a command's path ("worker", "model new")
// apply to that command and win.
func loadConfig(r io.Reader) (kong.Resolver, error) {
	name := "configuration"
	if f, ok := r.(*os.File); ok {
		name = f.Name()
	}
	raw, err := io.ReadAll(io.LimitReader(r, maxConfigBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(raw) > maxConfigBytes {
		return nil, fmt.Errorf("%s: larger than %d bytes; is it the right file?", name, maxConfigBytes)
	}
	values := map[string]any{}
	if err := yaml.Unmarshal(raw, &values); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &configResolver{name: name, values: values}, nil
}

// Validate refuses keys that no command knows, so that a typo is an error and
// not a setting that silently does nothing.
func (c *configResolver) Validate(app *kong.Application) error {
	known := map[string]bool{}
	commands := map[string]map[string]bool{}
	var walk func(n *kong.Node, path string)
	walk = func(n *kong.Node, path string) {
		flags := map[string]bool{}
		for _, f := range n.Flags {
			known[f.Name], flags[f.Name] = true, true
		}
		if path != "" {
			commands[path] = flags
		}
		for _, child := range n.Children {
			walk(child, strings.TrimSpace(path+" "+child.Name))
		}
	}
	walk(app.Node, "")
	for key, value := range c.values {
		flags, isCommand := commands[key]
		section, isSection := value.(map[string]any)
		switch {
		case isCommand && isSection:
			for sub := range section {
				if !flags[sub] {
					return fmt.Errorf("%s: command %q has no flag %q; `tandem %s --help` lists them", c.name, key, sub, key)
				}
			}
		case known[key] && !isSection:
		default:
			return fmt.Errorf("%s: unknown key %q; keys are flag names or command names", c.name, key)
		}
	}
	return nil
}

// Resolve returns the value for one flag, or nil where the file has none or the
// environment has one: kong asks after it read the environment.
func (c *configResolver) Resolve(_ *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
	for _, name := range flag.Envs {
		if _, ok := os.LookupEnv(name); ok {
			return nil, nil
		}
	}
	if node := parent.Node(); node != nil && node.Type == kong.CommandNode {
		if section, ok := c.values[commandPath(node)].(map[string]any); ok {
			if v, ok := section[flag.Name]; ok {
				return scalar(v), nil
			}
		}
	}
	v, ok := c.values[flag.Name]
	if _, isSection := v.(map[string]any); !ok || isSection {
		return nil, nil
	}
	return scalar(v), nil
}

func commandPath(n *kong.Node) string {
	var names []string
	for ; n != nil && n.Type == kong.CommandNode; n = n.Parent {
		names = append(names, n.Name)
	}
	slices.Reverse(names)
	return strings.Join(names, " ")
}

// scalar gives kong the textual form it decodes for every flag type.
func scalar(v any) any {
	switch v := v.(type) {
	case []any:
		words := make([]string, len(v))
		for i := range v {
			words[i] = fmt.Sprint(v[i])
		}
		return strings.Join(words, ",")
	case bool, string:
		return v
	default:
		return fmt.Sprint(v)
	}
}
