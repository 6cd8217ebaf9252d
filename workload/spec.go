package workload

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Spec describes a generator. Times are seconds, lengths are tokens.
type Spec struct {
	// Arrivals is how sessions start (a request is a session of one turn):
	// poisson, gamma, bursty and constant at Rate, or closed, where Sessions are
	// always alive and an ended one is replaced.
	Arrivals Arrivals `yaml:"arrivals" json:"arrivals"`
	Rate     float64  `yaml:"rate,omitempty" json:"rate,omitempty"`         // mean sessions per second; not for closed
	CV       float64  `yaml:"cv,omitempty" json:"cv,omitempty"`             // gamma: coefficient of variation of the gaps; 1 is poisson
	On       float64  `yaml:"on,omitempty" json:"on,omitempty"`             // bursty: mean seconds of a burst, within which all arrivals lie
	Off      float64  `yaml:"off,omitempty" json:"off,omitempty"`           // bursty: mean seconds between bursts
	Sessions int      `yaml:"sessions,omitempty" json:"sessions,omitempty"` // closed: sessions alive at a time

	// Requests and Seconds end the source; one of them is needed. At Seconds
	// and later nothing arrives.
	Requests int     `yaml:"requests,omitempty" json:"requests,omitempty"`
	Seconds  float64 `yaml:"seconds,omitempty" json:"seconds,omitempty"`
	Seed     uint64  `yaml:"seed,omitempty" json:"seed,omitempty"`

	Input  Dist `yaml:"input" json:"input"`   // new tokens of a prompt: without shared prefix and earlier turns
	Output Dist `yaml:"output" json:"output"` // generated tokens

	// Turns of a session. Each turn's prompt is the last prompt, its answer and
	// Input new tokens, and arrives Think seconds after the last turn ended.
	Turns Dist `yaml:"turns,omitempty" json:"turns,omitzero"` // none: 1
	Think Dist `yaml:"think,omitempty" json:"think,omitzero"` // none: 0
	// Context ends a session before a turn of more than so many tokens, prompt
	// and answer. A first turn is shortened. 0: no limit.
	Context int `yaml:"context,omitempty" json:"context,omitempty"`

	// Groups of sessions begin with a prefix of their own, of Prefix tokens.
	Groups int     `yaml:"groups,omitempty" json:"groups,omitempty"`
	Prefix Dist    `yaml:"prefix,omitempty" json:"prefix,omitzero"`
	Zipf   float64 `yaml:"zipf,omitempty" json:"zipf,omitempty"` // group k is drawn with weight k^-Zipf; 0: all alike

	HashTokens int `yaml:"hash_tokens,omitempty" json:"hash_tokens,omitempty"` // tokens per block id; 0: MooncakeBlock
	Tenants    int `yaml:"tenants,omitempty" json:"tenants,omitempty"`         // sessions, or whole groups, belong to so many tenants; 0: no tenants
}

// Arrivals is how sessions start.
type Arrivals string

// The kinds of arrivals.
const (
	Poisson  Arrivals = "poisson"  // gaps are exponential
	Gamma    Arrivals = "gamma"    // gaps are gamma with a coefficient of variation CV
	Bursty   Arrivals = "bursty"   // poisson during bursts, nothing between them
	Constant Arrivals = "constant" // gaps are equal, the first request comes at 0
	Closed   Arrivals = "closed"   // a session follows another that ended
)

// Limits of what a Spec may ask for, so that a typing error does not take all
// memory.
const (
	maxSessions = 1 << 22
	maxGroups   = 1 << 20
	maxTenancy  = 1 << 20
	maxRate     = 1e9 // per second
	maxSeconds  = 9e6 // 104 days: what virtual time holds
)

// SpecError says which field of a Spec makes no sense.
type SpecError struct {
	Field  string // by its name in YAML
	Reason string // what it must be
}

// Error names the field and what it must be.
func (e *SpecError) Error() string { return "workload: " + e.Field + " " + e.Reason }

// ParseSpec reads the text form: the kind of arrivals, then key=value pairs by
// the names of the YAML fields, with spaces between them. The error is a
// *SpecError.
func ParseSpec(text string) (Spec, error) {
	var s Spec
	words := strings.Fields(text)
	if len(words) == 0 {
		return s, &SpecError{"arrivals", "must come first: " + kinds}
	}
	s.Arrivals = Arrivals(words[0])
	v := reflect.ValueOf(&s).Elem()
	seen := map[string]bool{}
	for _, word := range words[1:] {
		key, value, found := strings.Cut(word, "=")
		if !found {
			return Spec{}, &SpecError{word, "is not of the form key=value"}
		}
		index := slices.Index(keys, key)
		switch {
		case index <= 0: // arrivals is not given by its name
			return Spec{}, &SpecError{key, "is no key: choose from " + strings.Join(keys[1:], ", ")}
		case seen[key]:
			return Spec{}, &SpecError{key, "is given twice"}
		}
		seen[key] = true
		if err := setField(v.Field(index), value); err != nil {
			return Spec{}, &SpecError{key, err.Error()}
		}
	}
	return s, s.check()
}

// String returns the text form.
func (s Spec) String() string {
	var b strings.Builder
	b.WriteString(string(s.Arrivals))
	v := reflect.ValueOf(s)
	for i, key := range keys[1:] {
		if f := v.Field(i + 1); !f.IsZero() {
			fmt.Fprintf(&b, " %s=%v", key, f.Interface())
		}
	}
	return b.String()
}

// keys are the names of the fields, in their order.
var keys = func() []string {
	var names []string
	for f := range reflect.TypeFor[Spec]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		names = append(names, name)
	}
	return names
}()

const kinds = "poisson, gamma, bursty, constant or closed"

func setField(field reflect.Value, text string) error {
	switch into := field.Addr().Interface().(type) {
	case *Dist:
		d, err := ParseDist(text)
		if err != nil {
			return fmt.Errorf("is no distribution: %s", strings.TrimPrefix(err.Error(), "workload: "))
		}
		*into = d
	case *float64:
		v, err := parseNumber(text)
		if err != nil {
			return fmt.Errorf("is no number of at least 0")
		}
		*into = v
	case *int:
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil || v < 0 {
			return fmt.Errorf("is no whole number of at least 0")
		}
		*into = int(v)
	case *uint64:
		v, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return fmt.Errorf("is no whole number of 64 bits")
		}
		*into = v
	}
	return nil
}

// check returns the first thing that makes no sense, as a *SpecError.
func (s *Spec) check() error {
	bad := func(field, reason string) error { return &SpecError{field, reason} }
	between := func(v, low, high float64) bool { return low <= v && v <= high } // false for NaN
	number := func(v int, high int) bool { return 0 <= v && v <= high }
	switch s.Arrivals {
	case Poisson, Gamma, Bursty, Constant, Closed:
	default:
		return bad("arrivals", "must be "+kinds)
	}
	only := func(set bool, field string, kind Arrivals) error {
		if set && s.Arrivals != kind {
			return bad(field, fmt.Sprintf("belongs to %s arrivals, not to %s", kind, s.Arrivals))
		}
		if !set && s.Arrivals == kind {
			return bad(field, fmt.Sprintf("is needed for %s arrivals", kind))
		}
		return nil
	}
	for _, err := range []error{
		only(s.CV != 0, "cv", Gamma), only(s.On != 0, "on", Bursty), only(s.Off != 0, "off", Bursty), only(s.Sessions != 0, "sessions", Closed),
	} {
		if err != nil {
			return err
		}
	}
	if s.Arrivals == Closed {
		if s.Rate != 0 {
			return bad("rate", "does not go with closed arrivals: sessions and think set the rate")
		}
	} else if !between(s.Rate, 1e-6, maxRate) {
		return bad("rate", "must be from 1e-6 to 1e9 sessions per second")
	}
	switch {
	case s.CV != 0 && !between(s.CV, 1e-3, 1e3):
		return bad("cv", "must be from 0.001 to 1000")
	case s.On != 0 && !between(s.On, 1e-6, maxSeconds):
		return bad("on", "must be from 1e-6 to 9e6 seconds")
	case s.Off != 0 && !between(s.Off, 1e-6, maxSeconds):
		return bad("off", "must be from 1e-6 to 9e6 seconds")
	case s.On != 0 && s.Rate*(s.On+s.Off) < 1e-3:
		return bad("on", "and off are so short that a burst has less than 0.001 sessions: use poisson")
	case !number(s.Sessions, maxSessions):
		return bad("sessions", "must be from 1 to 4194304")
	case s.Requests < 0:
		return bad("requests", "must not be negative")
	case !between(s.Seconds, 0, maxSeconds):
		return bad("seconds", "must be from 0 to 9e6")
	case s.Requests == 0 && s.Seconds == 0:
		return bad("requests", "or seconds must say where it ends")
	case s.Input.IsZero():
		return bad("input", "is needed: tokens of a prompt")
	case s.Output.IsZero():
		return bad("output", "is needed: tokens of an answer")
	case !s.Think.IsZero() && s.Turns.IsZero() && s.Arrivals != Closed:
		return bad("think", "needs turns: without them nothing follows")
	case s.Think.high > maxSeconds && !math.IsInf(s.Think.high, 1):
		return bad("think", "must be at most 9e6 seconds")
	case s.Context != 0 && s.Context < 2 || !number(s.Context, maxTokens):
		return bad("context", "must be from 2 to 2^30 tokens")
	case !number(s.Groups, maxGroups):
		return bad("groups", "must be from 1 to 1048576")
	case s.Groups != 0 && s.Prefix.IsZero():
		return bad("prefix", "is needed: tokens that a group shares")
	case s.Groups == 0 && !s.Prefix.IsZero():
		return bad("prefix", "needs groups: how many different prefixes there are")
	case s.Groups == 0 && s.Zipf != 0:
		return bad("zipf", "needs groups")
	case !between(s.Zipf, 0, 10):
		return bad("zipf", "must be from 0 to 10")
	case !number(s.HashTokens, maxDrawn):
		return bad("hash_tokens", "must be from 1 to 16777216")
	case !number(s.Tenants, maxTenancy):
		return bad("tenants", "must be from 1 to 1048576")
	}
	return nil
}
