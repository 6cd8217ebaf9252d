package workload

// Spec describes a generator. Times are seconds, lengths are tokens.
type Spec struct {
	// Arrivals is how sessions start (a request is a session of one turn):
	// poisson, gamma, bursty and constant at Rate, or closed, where Sessions are
	// always alive and an ended one is replaced.
	Arrivals string  `yaml:"arrivals" json:"arrivals"`
	Rate     float64 `yaml:"rate,omitempty" json:"rate,omitempty"`         // mean sessions per second; not for closed
	CV       float64 `yaml:"cv,omitempty" json:"cv,omitempty"`             // gamma: coefficient of variation of the gaps; 1 is poisson
	On       float64 `yaml:"on,omitempty" json:"on,omitempty"`             // bursty: mean seconds of a burst, within which all arrivals lie
	Off      float64 `yaml:"off,omitempty" json:"off,omitempty"`           // bursty: mean seconds between bursts
	Sessions int     `yaml:"sessions,omitempty" json:"sessions,omitempty"` // closed: sessions alive at a time

	// Requests and Seconds end the source; one of them is needed. After Seconds
	// nothing arrives.
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

	HashTokens int `yaml:"hash_tokens,omitempty" json:"hash_tokens,omitempty"` // tokens per block id; 0: 512
	Tenants    int `yaml:"tenants,omitempty" json:"tenants,omitempty"`         // sessions, or whole groups, belong to so many tenants; 0: no tenants
}

// Dist is a distribution of lengths or seconds. Its text form is a number, or
//
//	uniform:LOW:HIGH
//	normal:MEAN:SD[:LOW:HIGH]
//	lognormal:MEAN:SD[:LOW:HIGH]
//	exponential:MEAN[:LOW:HIGH]
//	empirical:VALUE[*WEIGHT],VALUE[*WEIGHT],…
//
// Low and high cut the distribution off: what lies outside is drawn again. The
// mean is that before the cut.
type Dist struct {
	kind      string
	mean, sd  float64
	low, high float64
	values    []float64
	weights   []float64
}

// ParseSpec reads the text form: the kind of arrivals, then key=value pairs by
// the names of the YAML fields.
func ParseSpec(text string) (Spec, error) { return Spec{}, nil }

// ParseDist reads the text form of a distribution.
func ParseDist(text string) (Dist, error) { return Dist{}, nil }

// Generator is a Source that draws requests.
type Generator struct{ Source }

// New returns a generator. The error names the field that makes no sense.
func New(s Spec) (*Generator, error) { return nil, nil }

// IsZero reports whether d is no distribution at all.
func (d Dist) IsZero() bool { return d.kind == "" }
