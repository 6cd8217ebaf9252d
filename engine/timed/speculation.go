package timed

import (
	"errors"

	"github.com/tandem-llm/tandem/internal/splitmix"
)

// The kinds of speculation.
const (
	// MTP drafts with the model's own multi-token-prediction layers, in every step.
	MTP = "mtp"
	// Suffix proposes what followed the same tokens before; it costs the engine
	// nothing, and finds something only in a part of the steps.
	Suffix = "suffix"
)

// MaxDraft is the most tokens that one step may propose for one sequence.
const MaxDraft = 64

// Speculation says how many tokens a step yields for one sequence when it verifies
// proposals.
type Speculation struct {
	// Kind is MTP or Suffix.
	Kind string `yaml:"kind" json:"kind"`
	// Draft is the number of tokens proposed at a time.
	Draft int `yaml:"draft" json:"draft"`
	// Accept is the probability that a proposed token is accepted, given that those
	// before it were: one for each position; the last one counts for all further.
	Accept []float64 `yaml:"accept" json:"accept"`
	// Hit is the part of the steps that have a proposal, for Suffix; 0 means 1.
	Hit float64 `yaml:"hit,omitempty" json:"hit,omitempty"`
}

// Check says what is wrong with the values.
func (s *Speculation) Check() error {
	switch {
	case s.Kind != MTP && s.Kind != Suffix:
		return errors.New(`timed: the kind of speculation is "mtp" or "suffix"`)
	case s.Draft < 1 || s.Draft > MaxDraft:
		return errors.New("timed: speculation drafts 1 to 64 tokens")
	case len(s.Accept) == 0 || len(s.Accept) > MaxDraft:
		return errors.New("timed: speculation needs an acceptance probability for 1 to 64 positions")
	case !(s.Hit >= 0 && s.Hit <= 1) || s.Kind == MTP && s.Hit != 0:
		return errors.New("timed: hit is the part of the steps with a proposal, from 0 to 1, for suffix speculation only")
	}
	for _, p := range s.Accept {
		if !(p >= 0 && p <= 1) {
			return errors.New("timed: acceptance probabilities are from 0 to 1")
		}
	}
	return nil
}

func (s *Speculation) accept(i int) float64 { return s.Accept[min(i, len(s.Accept)-1)] }

func (s *Speculation) hit() float64 {
	if s.Hit == 0 {
		return 1
	}
	return s.Hit
}

// Expected is the mean number of tokens that a step yields for one sequence, at
// least 1.
func (s *Speculation) Expected() float64 {
	mean, all := 1.0, s.hit()
	for i := range s.Draft {
		all = float64(all * s.accept(i))
		mean += all
	}
	return mean
}

// Draw says what happens to a sequence in one step: how many tokens are proposed
// (rows of Batch.Drafts), and how many tokens the step yields, from 1 to
// drafted + 1. It is a pure function of its arguments: the same request has the
// same sequence of draws whatever else happens, also after a retry.
func (s *Speculation) Draw(seed, request, step uint64) (drafted, tokens int) {
	x := splitmix.Mix(splitmix.Mix(splitmix.Mix(seed)^request) ^ step)
	next := func(p float64) bool {
		x += splitmix.Step
		return float64(splitmix.Mix(x)>>11)*0x1p-53 < p
	}
	if s.Kind == Suffix && !next(s.hit()) {
		return 0, 1
	}
	tokens = 1
	for tokens <= s.Draft && next(s.accept(tokens-1)) {
		tokens++
	}
	return s.Draft, tokens
}
