// Package sample chooses the next token from a model's logits, exactly
// repeatably and with a state that can move to another process.
//
// A [Sampler] belongs to one sequence. For each position the owner calls
// [Sampler.Sample] with the logits and then [Sampler.Accept] with the token it
// keeps; only Accept changes state. A token that is given rather than drawn (one
// already shown to the client before a retry) is accepted without Sample and
// leaves the same state behind.
//
// # What is computed
//
// Logits are transformed in this order:
//
//  1. repetition penalty (positive logits divided by it, negative multiplied),
//     then frequency and presence penalties subtracted;
//  2. logit bias added;
//  3. temperature: logits divided by it; zero means the largest logit wins, the
//     lowest token id on ties, and steps 4 to 6 do not matter;
//  4. top-k: the k likeliest tokens stay;
//  5. top-p: of those, the fewest likeliest tokens with at least p of their
//     probability stay;
//  6. min-p: tokens at least min-p times as likely as the likeliest stay.
//
// The bias comes after the penalties so that it means the same whatever has
// been said so far: the repetition penalty is multiplicative and would scale
// it. Temperature comes before the truncations, so top-p and min-p cut the
// distribution that is sampled from; this is what vLLM and Hugging Face do and
// what clients of the OpenAI interface expect. llama-server by default adds the
// bias first and applies temperature last, after truncating the distribution at
// temperature 1: at temperatures other than 1 the same top_p keeps more or
// fewer tokens there. Repetition counts the prompt too; frequency and presence
// count generated tokens only, as OpenAI and vLLM do (llama-server counts the
// prompt in all three).
//
// Log-probabilities are those of the model: the log-softmax of the logits as
// they came, before any of these steps, as OpenAI reports them.
//
// # Exactness
//
// Ties are ordered by token id, weights are 44-bit fixed-point integers whose
// sums do not depend on the order of addition, and randomness is a function of
// (seed, number of accepted tokens), so the same logits, parameters and history
// give the same token in any process, on any architecture and after any number
// of state moves. A token less likely than 2^-45 times the likeliest is never
// drawn.
//
// The package is part of the pure core: no clock, goroutine, I/O or global
// random source.
package sample

import (
	"errors"
	"fmt"
	"math"
)

// Limits on parameters.
const (
	MaxVocab       = 1 << 19 // the largest published vocabularies have 2^18
	MaxTemperature = 100
	MaxPenalty     = 2   // presence and frequency, either sign
	MaxRepetition  = 100 // and its reciprocal
	MaxBias        = 100 // either sign
	MaxBiases      = 1024
	MaxWindow      = 1 << 16
	MaxTopLogprobs = 20
)

var (
	// ErrParams matches every error about a parameter; the message names it as
	// clients know it.
	ErrParams = errors.New("sample: bad parameter")
	// ErrLogits matches errors about logits: NaN, infinite, or the wrong number.
	// The engine computed garbage; the sequence must be failed, not continued.
	ErrLogits = errors.New("sample: bad logits")
	// ErrToken matches errors about a token id outside the vocabulary.
	ErrToken = errors.New("sample: token outside the vocabulary")
	// ErrState matches errors about a marshalled state.
	ErrState = errors.New("sample: bad state")
)

// Params are one request's sampling parameters. The zero value is greedy
// sampling.
type Params struct {
	// Temperature, in [0, MaxTemperature]; 0 is greedy.
	Temperature float32
	// TopK is the number of likeliest tokens kept; 0, or anything not below the
	// vocabulary size, keeps all.
	TopK int
	// TopP, in [0, 1]; 0 and 1 keep all.
	TopP float32
	// MinP, in [0, 1]; 0 keeps all.
	MinP float32
	// Seed selects the sequence of random numbers.
	Seed uint64
	// RepetitionPenalty, in [1/MaxRepetition, MaxRepetition]; 0 and 1 are off.
	RepetitionPenalty float32
	// PresencePenalty and FrequencyPenalty, in [-MaxPenalty, MaxPenalty]; 0 is off.
	PresencePenalty  float32
	FrequencyPenalty float32
	// PenaltyWindow is the number of last tokens the penalties look at, at most
	// MaxWindow; 0 looks at all.
	PenaltyWindow int
	// LogitBias is added to single tokens' logits, each in [-MaxBias, MaxBias], at
	// most MaxBiases of them.
	LogitBias map[int32]float32
	// Logprobs asks for the chosen token's log-probability, TopLogprobs for that
	// many likeliest tokens beside it, at most MaxTopLogprobs; it needs Logprobs.
	Logprobs    bool
	TopLogprobs int
}

// Validate checks the parameters against a vocabulary of that many tokens. The
// error matches [ErrParams].
func (p *Params) Validate(vocab int) error {
	bad := func(name string, value any, want string) error {
		return fmt.Errorf("%w: %s is %v, want %s", ErrParams, name, value, want)
	}
	// Written so that NaN fails.
	within := func(v, lo, hi float32) bool { return v >= lo && v <= hi }
	switch {
	case vocab < 1 || vocab > MaxVocab:
		return bad("vocabulary size", vocab, fmt.Sprintf("1 to %d", MaxVocab))
	case !within(p.Temperature, 0, MaxTemperature):
		return bad("temperature", p.Temperature, fmt.Sprintf("0 to %d", MaxTemperature))
	case p.TopK < 0:
		return bad("top_k", p.TopK, "0 or more")
	case !within(p.TopP, 0, 1):
		return bad("top_p", p.TopP, "0 to 1")
	case !within(p.MinP, 0, 1):
		return bad("min_p", p.MinP, "0 to 1")
	case p.RepetitionPenalty != 0 && !within(p.RepetitionPenalty, 1.0/MaxRepetition, MaxRepetition):
		return bad("repetition_penalty", p.RepetitionPenalty, fmt.Sprintf("0 (off) or %g to %d", 1.0/MaxRepetition, MaxRepetition))
	case !within(p.PresencePenalty, -MaxPenalty, MaxPenalty):
		return bad("presence_penalty", p.PresencePenalty, fmt.Sprintf("%d to %d", -MaxPenalty, MaxPenalty))
	case !within(p.FrequencyPenalty, -MaxPenalty, MaxPenalty):
		return bad("frequency_penalty", p.FrequencyPenalty, fmt.Sprintf("%d to %d", -MaxPenalty, MaxPenalty))
	case p.PenaltyWindow < 0 || p.PenaltyWindow > MaxWindow:
		return bad("penalty window", p.PenaltyWindow, fmt.Sprintf("0 to %d", MaxWindow))
	case len(p.LogitBias) > MaxBiases:
		return bad("number of logit_bias entries", len(p.LogitBias), fmt.Sprintf("at most %d", MaxBiases))
	case p.TopLogprobs < 0 || p.TopLogprobs > MaxTopLogprobs:
		return bad("top_logprobs", p.TopLogprobs, fmt.Sprintf("0 to %d", MaxTopLogprobs))
	case p.TopLogprobs > 0 && !p.Logprobs:
		return bad("top_logprobs", p.TopLogprobs, "0 unless logprobs is set")
	}
	for id, v := range p.LogitBias {
		// The message does not say which token: ids are content.
		if id < 0 || int(id) >= vocab {
			return fmt.Errorf("%w: logit_bias names a token outside the vocabulary of %d", ErrParams, vocab)
		}
		if !within(v, -MaxBias, MaxBias) {
			return bad("a logit_bias", v, fmt.Sprintf("%d to %d", -MaxBias, MaxBias))
		}
	}
	return nil
}

// penalized reports whether history matters.
func (p *Params) penalized() bool {
	return (p.RepetitionPenalty != 0 && p.RepetitionPenalty != 1) || p.PresencePenalty != 0 || p.FrequencyPenalty != 0
}

// TopToken is one of the likeliest tokens of a position.
type TopToken struct {
	Token   int32
	Logprob float32 // natural logarithm, of the unmodified distribution
}

// Choice is the outcome of one Sample.
type Choice struct {
	Token int32
	// Logprob of Token in the unmodified distribution; NaN unless asked for.
	Logprob float32
	// Top holds the likeliest tokens of the unmodified distribution, likeliest
	// first, as many as asked for. It is overwritten by the next Sample.
	Top []TopToken
}

// bias is one entry of Params.LogitBias.
type bias struct {
	token int32
	value float32
}

// Sampler draws the tokens of one sequence. It is used by one goroutine at a time.
type Sampler struct {
	p      Params
	vocab  int
	biases []bias // of p.LogitBias, by token
	// index counts accepted tokens; it is the random generator's counter.
	index uint64
	hist  history
	work  *Workspace
	top   []TopToken
}

// New returns a sampler for a vocabulary of that many tokens. The error matches
// [ErrParams]. It copies what it keeps of p.
func New(p Params, vocab int) (*Sampler, error) {
	if err := p.Validate(vocab); err != nil {
		return nil, err
	}
	s := &Sampler{p: p, vocab: vocab, biases: sortedBiases(p.LogitBias)}
	s.p.LogitBias = nil
	if p.TopLogprobs > 0 {
		s.top = make([]TopToken, 0, min(p.TopLogprobs, vocab))
	}
	if p.penalized() {
		s.hist = newHistory(vocab, p.PenaltyWindow)
	}
	return s, nil
}

// Use makes the sampler compute in w, which the samplers of one goroutine can
// share; each has its own otherwise. No result of Sample refers to w.
func (s *Sampler) Use(w *Workspace) { s.work = w }

// Index returns the number of tokens accepted, prompt tokens not counted.
func (s *Sampler) Index() uint64 { return s.index }

// Params returns the parameters the sampler was made with.
func (s *Sampler) Params() Params {
	p := s.p
	if len(s.biases) > 0 {
		p.LogitBias = make(map[int32]float32, len(s.biases))
		for _, b := range s.biases {
			p.LogitBias[b.token] = b.value
		}
	}
	return p
}

// Vocab returns the vocabulary size the sampler was made for.
func (s *Sampler) Vocab() int { return s.vocab }

// Prime tells the sampler the prompt, which the repetition penalty counts. It
// must be called before the first Accept, and may be called in parts. The error
// matches [ErrToken]; the sampler is unchanged then.
func (s *Sampler) Prime(prompt []int32) error {
	for i, t := range prompt {
		if t < 0 || int(t) >= s.vocab {
			return fmt.Errorf("%w of %d, at prompt position %d", ErrToken, s.vocab, i)
		}
	}
	if s.index > 0 {
		return fmt.Errorf("%w: prompt given after %d generated tokens", ErrState, s.index)
	}
	if s.hist.active() {
		for _, t := range prompt {
			s.hist.push(t, false)
		}
	}
	return nil
}

// Accept tells the sampler that token is now part of the sequence, whether
// Sample chose it or not. The error matches [ErrToken]; the sampler is
// unchanged then.
func (s *Sampler) Accept(token int32) error {
	if token < 0 || int(token) >= s.vocab {
		return fmt.Errorf("%w of %d, as generated token %d", ErrToken, s.vocab, s.index)
	}
	if s.hist.active() {
		s.hist.push(token, true)
	}
	s.index++
	return nil
}

// Sample chooses a token from the logits, one per token of the vocabulary. It
// changes nothing: called again with the same logits it chooses the same token.
// It neither keeps nor modifies logits and allocates nothing once its workspace
// has its size. The error matches [ErrLogits].
func (s *Sampler) Sample(logits []float32) (Choice, error) {
	if len(logits) != s.vocab {
		return Choice{}, fmt.Errorf("%w: %d of them, want %d", ErrLogits, len(logits), s.vocab)
	}
	best, ok := argmax(logits)
	if !ok {
		return Choice{}, fmt.Errorf("%w: not finite", ErrLogits)
	}
	c := Choice{Token: best, Logprob: float32(math.NaN())}
	if s.p.Temperature > 0 || len(s.biases) > 0 || s.hist.active() {
		c.Token = s.draw(logits)
	}
	if s.p.Logprobs {
		lse := logSumExp(logits, logits[best])
		c.Logprob = float32(float64(logits[c.Token]) - lse)
		c.Top = s.topTokens(logits, lse)
	}
	return c, nil
}

// argmax returns the largest logit's lowest index, or false if any logit is NaN
// or infinite.
func argmax(logits []float32) (int32, bool) {
	const exponent = 0xff << 23 // all ones: NaN or infinite
	best, at, finite := logits[0], 0, true
	for i, l := range logits {
		if math.Float32bits(l)&exponent == exponent {
			finite = false
			break
		}
		if l > best {
			best, at = l, i
		}
	}
	return int32(at), finite
}
