package worker

import (
	"fmt"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/sample"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/text"
)

// finish says why an answer ended, in the words of the OpenAI interface. The
// zero value means that it goes on.
type finish string

const (
	finishNone   finish = ""
	finishStop   finish = "stop"   // end of generation or a stop string
	finishLength finish = "length" // the token limit or the end of the context
)

// token is one token of an answer, with what a client may have asked about it.
type token struct {
	index   int // absolute, from the first token of the answer
	id      engine.Token
	piece   []byte // shared with the vocabulary
	logprob float32
	top     []sample.TopToken
	finish  finish
}

// generation is what continues one answer: the token history, the sampler, the
// stop strings and the limits. It moves between workers in the manifest, and
// what it samples next depends on nothing else than itself and the logits.
type generation struct {
	vocab   engine.Vocab
	params  state.Generation
	sampler *sample.Sampler
	stops   *text.Stream
	scratch []byte // text that the stop matcher releases and nobody needs here

	history []int32 // prompt, then every token of the answer
	prompt  int     // tokens of history that are the client's prompt
	context int     // positions one sequence may hold
}

// newGeneration starts an answer. history is the prompt followed by forced
// tokens: those that an earlier attempt already gave to the client, which are
// accepted and never sampled again.
func newGeneration(v engine.Vocab, g state.Generation, p sample.Params, history []int32, forced, context int) (*generation, error) {
	if forced < 0 || forced >= len(history) {
		return nil, fmt.Errorf("worker: %d forced tokens in a history of %d", forced, len(history))
	}
	s, err := sample.New(p, v.Size())
	if err != nil {
		return nil, err
	}
	prompt := len(history) - forced
	if err := s.Prime(history[:prompt]); err != nil {
		return nil, err
	}
	for _, t := range history[prompt:] {
		if err := s.Accept(t); err != nil {
			return nil, err
		}
	}
	return assembleGeneration(v, g, s, history, prompt, context)
}

// restoreGeneration continues the answer that a manifest describes.
func restoreGeneration(v engine.Vocab, m *state.Manifest, context int) (*generation, error) {
	s, err := sample.Restore(m.Sampler, v.Size())
	if err != nil {
		return nil, err
	}
	return assembleGeneration(v, m.Generation, s, m.History, int(m.Usage.Prompt), context)
}

func assembleGeneration(v engine.Vocab, g state.Generation, s *sample.Sampler, history []int32, prompt, context int) (*generation, error) {
	if prompt < 1 || prompt > len(history) {
		return nil, fmt.Errorf("worker: a prompt of %d tokens in a history of %d", prompt, len(history))
	}
	stops, err := text.NewStream(g.Stop)
	if err != nil {
		return nil, err
	}
	gen := &generation{vocab: v, params: g, sampler: s, stops: stops, history: history, prompt: prompt, context: context}
	for _, t := range history[prompt:] {
		gen.scratch, _ = gen.stops.Feed(gen.scratch[:0], v.Piece(t))
	}
	return gen, nil
}

// emitted is the number of tokens of the answer so far.
func (g *generation) emitted() int { return len(g.history) - g.prompt }

// next samples the token that follows history, accepts it, and says whether the
// answer ends with it.
func (g *generation) next(logits []float32) (token, error) {
	c, err := g.sampler.Sample(logits)
	if err != nil {
		return token{}, err
	}
	t := token{index: g.emitted(), id: c.Token, piece: g.vocab.Piece(c.Token)}
	if g.params.Logprobs {
		t.logprob = c.Logprob
		t.top = append([]sample.TopToken(nil), c.Top...)
	}
	if err := g.sampler.Accept(c.Token); err != nil {
		return token{}, err
	}
	g.history = append(g.history, c.Token)
	t.finish = g.ends(t)
	return t, nil
}

// ends decides whether t, already in history, is the last token.
func (g *generation) ends(t token) finish {
	var stopped bool
	if g.vocab.IsEOG(t.id) {
		if !g.params.IgnoreEOS && g.emitted() > int(g.params.MinTokens) {
			return finishStop
		}
	} else if g.scratch, stopped = g.stops.Feed(g.scratch[:0], t.piece); stopped {
		return finishStop
	}
	// The last token sampled needs no cell: it is never computed.
	if g.emitted() >= int(g.params.MaxTokens) || len(g.history) > g.context {
		return finishLength
	}
	return finishNone
}

// first describes the last token of history for the manifest.
func (g *generation) first(t token) state.First {
	f := state.First{Index: uint32(t.index)}
	if g.params.Logprobs {
		f.Logprob = t.logprob
		for _, alt := range t.top {
			f.Top = append(f.Top, state.TopToken{Token: alt.Token, Logprob: alt.Logprob})
		}
	}
	return f
}

// restoredFirst is the inverse of first, in a restored generation.
func (g *generation) restoredFirst(f state.First) token {
	id := g.history[len(g.history)-1]
	t := token{index: int(f.Index), id: id, piece: g.vocab.Piece(id), logprob: f.Logprob}
	for _, alt := range f.Top {
		t.top = append(t.top, sample.TopToken{Token: alt.Token, Logprob: alt.Logprob})
	}
	return t
}

// mostTokens is the number of tokens that may still follow a history, emitted of
// whose tokens are of the answer: as many as the client wants and the context has
// positions for. The last one needs none: it is never computed.
func mostTokens(history, emitted, maxTokens, context int) int {
	return max(1, min(maxTokens-emitted, context-history+1))
}

// fact is the finish reason in the words of the machines.
func (f finish) fact() handoff.Finish {
	switch f {
	case finishStop:
		return handoff.FinishStop
	case finishLength:
		return handoff.FinishLength
	}
	return 0
}
