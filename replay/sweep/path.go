package sweep

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrPath is what every *PathError wraps.
var ErrPath = errors.New("sweep: no such field")

// PathError says where a path does not fit the configuration.
type PathError struct {
	Path string
	Want string
}

// Error shows the path.
func (e *PathError) Error() string { return fmt.Sprintf("sweep: path %s: %s", e.Path, e.Want) }

// Unwrap returns ErrPath.
func (e *PathError) Unwrap() error { return ErrPath }

// Set gives the field at path a value in doc, which is made of map[string]any,
// []any and scalars, and returns doc, which it changes. Parts of a path are keys
// with points between them, and of lists [3] or the name of an item that has
// one: pools[0].count, pools.decode.count. Missing keys are made; a wrong one is
// for the reader of the configuration to refuse.
func Set(doc any, path, value string) (any, error) {
	parts, err := parsePath(path)
	if err != nil {
		return nil, err
	}
	return set(doc, path, parts, scalar(value))
}

// step is a key, or an index when key is empty.
type step struct {
	key   string
	index int
}

func parsePath(path string) ([]step, error) {
	var steps []step
	for part := range strings.SplitSeq(path, ".") {
		key, rest, _ := strings.Cut(part, "[")
		if key != "" {
			steps = append(steps, step{key: key})
		}
		if rest != "" {
			rest = "[" + rest
		}
		if key == "" && (rest == "" || len(steps) > 0) || strings.ContainsAny(key, "]= \t") {
			return nil, &PathError{path, "write it as key.key[0].key"}
		}
		for rest != "" {
			number, after, ok := strings.Cut(rest[1:], "]")
			i, err := strconv.Atoi(number)
			if !ok || rest[0] != '[' || err != nil || i < 0 {
				return nil, &PathError{path, "an index is a whole number in brackets"}
			}
			steps = append(steps, step{index: i})
			rest = after
		}
	}
	return steps, nil
}

func set(at any, path string, steps []step, value any) (any, error) {
	if len(steps) == 0 {
		switch at.(type) {
		case map[string]any, []any:
			return nil, &PathError{path, "leads to a group of fields; name one of them"}
		}
		return value, nil
	}
	s := steps[0]
	switch node := at.(type) {
	case nil:
		if s.key == "" {
			return nil, &PathError{path, fmt.Sprintf("there is no list with an item [%d]", s.index)}
		}
		return set(map[string]any{}, path, steps, value)
	case map[string]any:
		if s.key == "" {
			return nil, &PathError{path, fmt.Sprintf("[%d] of something that is no list", s.index)}
		}
		inner, err := set(node[s.key], path, steps[1:], value)
		if err != nil {
			return nil, err
		}
		node[s.key] = inner
		return node, nil
	case []any:
		i := s.index
		if s.key != "" {
			i = named(node, s.key)
		}
		if i < 0 {
			return nil, &PathError{path, fmt.Sprintf("no item of the list has the name %s", s.key)}
		}
		if i >= len(node) {
			return nil, &PathError{path, fmt.Sprintf("the list has %d items, so the last is [%d]", len(node), len(node)-1)}
		}
		inner, err := set(node[i], path, steps[1:], value)
		if err != nil {
			return nil, err
		}
		node[i] = inner
		return node, nil
	}
	return nil, &PathError{path, fmt.Sprintf("leads through a value (%v) that has no fields", at)}
}

// Get returns the value at a path as text, "" where there is none.
func Get(doc any, path string) string {
	steps, err := parsePath(path)
	if err != nil {
		return ""
	}
	for _, s := range steps {
		switch node := doc.(type) {
		case map[string]any:
			doc = node[s.key]
		case []any:
			i := s.index
			if s.key != "" {
				i = named(node, s.key)
			}
			if i < 0 || i >= len(node) {
				return ""
			}
			doc = node[i]
		default:
			return ""
		}
	}
	switch doc.(type) {
	case nil, map[string]any, []any:
		return ""
	}
	return fmt.Sprint(doc)
}

// named returns the index of the item with that name, -1 if there is none.
func named(list []any, name string) int {
	for i, item := range list {
		if m, ok := item.(map[string]any); ok && m["name"] == name {
			return i
		}
	}
	return -1
}

// scalar reads a value as YAML would: true, false, numbers, or text.
func scalar(s string) any {
	switch s {
	case "true":
		return true
	case "false":
		return false
	case "null":
		return nil
	}
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i
	}
	if strings.Trim(s, "0123456789+-.eE") == "" {
		if f, err := strconv.ParseFloat(s, 64); err == nil {
			return f
		}
	}
	return s
}

// clone copies a document, so that cells share nothing.
func clone(doc any) any {
	switch node := doc.(type) {
	case map[string]any:
		m := make(map[string]any, len(node))
		for k, v := range node {
			m[k] = clone(v)
		}
		return m
	case []any:
		l := make([]any, len(node))
		for i, v := range node {
			l[i] = clone(v)
		}
		return l
	}
	return doc
}
