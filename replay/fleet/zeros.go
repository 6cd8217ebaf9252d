package fleet

import (
	"fmt"
	"slices"
	"time"
)

// notZero are the fields, by their place, that 0 would leave at a default that is
// not 0. Whoever writes 0 means it, and a sweep over such a field must not show the
// default's figures beside it.
var notZero = map[string][]string{
	"":              {"speedup"},
	"pools":         {"count"},
	"pools.memory":  {"block_tokens", "fraction", "source_share"},
	"pools.split":   {"gbps", "activation_bytes"},
	"links.default": {"gbps", "segment"},
	"links.between": {"gbps", "segment"},
	"route":         {"affinity"},
	"gateway":       {"timeout", "patience", "lease", "place_wait", "detect"},
	"worker":        {"lease", "quarantine"},
	"cancels":       {"within"},
	// Of a step; chunk and context are bounds, of which 0 is none.
	"pools.schedule": {"budget", "running", "waiting"},
}

// zeros refuses such a 0 in a decoded description: doc lies at place, which people
// know as shown.
func zeros(doc any, place, shown string) error {
	switch node := doc.(type) {
	case []any:
		for i, item := range node {
			if err := zeros(item, place, fmt.Sprintf("%s[%d]", shown, i)); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, key := range notZero[place] {
			if zero(node[key]) {
				return fmt.Errorf("%s is 0, which it cannot be: leave it out for the default", join(shown, key))
			}
		}
		keys := make([]string, 0, len(node))
		for key := range node {
			keys = append(keys, key)
		}
		slices.Sort(keys) // the same error every time
		for _, key := range keys {
			if err := zeros(node[key], join(place, key), join(shown, key)); err != nil {
				return err
			}
		}
	}
	return nil
}

func join(place, key string) string {
	if place == "" {
		return key
	}
	return place + "." + key
}

// zero reports whether a scalar is the number or the time 0.
func zero(v any) bool {
	switch v := v.(type) {
	case int:
		return v == 0
	case float64:
		return v == 0
	case string:
		d, err := time.ParseDuration(v)
		return err == nil && d == 0
	}
	return false
}
