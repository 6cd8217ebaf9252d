package gateway

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/tandem-llm/tandem/api/openai"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/route"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/telemetry/otlp"
)

// call is one HTTP request for an answer: a number of prompts with a number of samples each.
type call struct {
	endpoint openai.Endpoint
	tenant   string
	how
	gen      openai.Generation
	samples  int
	prompts  [][]int32 // tokens, after admission
	params   *buspb.Generation
	arrival  time.Duration
	admitted time.Duration
	parent   otlp.Parent
	head     openai.Head
	out      *outbox
	requests []*request
}

// newCall checks what concerns the model, and prepares everything but the requests.
func (g *Gateway) newCall(e openai.Endpoint, tenant string, how how, want *asked, arrival time.Duration) (*call, *openai.Error) {
	gen := want.gen
	samples := want.prompts * gen.N
	if samples > g.cfg.MaxActive {
		return nil, badRequest(openai.CodeInvalidValue, "n", "Prompts times samples are more than the "+
			strconv.Itoa(g.cfg.MaxActive)+" that this server runs at once.")
	}
	for _, b := range gen.LogitBias {
		if int(b.Token) >= g.cfg.Vocab.Size() {
			return nil, badRequest(openai.CodeInvalidValue, "logit_bias", "A token id in 'logit_bias' is outside the model's vocabulary.")
		}
	}
	buffered := g.cfg.MaxBuffered
	if !gen.Stream {
		buffered = math.MaxInt // the call itself reads it, and a client gets it whole
	}
	prefix := "chatcmpl-"
	if e == openai.Completion {
		prefix = "cmpl-"
	}
	return &call{
		endpoint: e, tenant: tenant, how: how, gen: gen, samples: samples, arrival: arrival,
		params: generationParams(gen),
		head: openai.Head{
			ID: newID(prefix), Created: time.Now().Unix(), Model: gen.Model,
			Fingerprint: g.fleet.anyFingerprint(), IncludeUsage: gen.IncludeUsage,
		},
		out: newOutbox(buffered),
	}, nil
}

// param names the field that a prompt came from.
func (c *call) param() string {
	if c.endpoint == openai.Chat {
		return "messages"
	}
	return "prompt"
}

// limits returns the most tokens that each prompt may be answered with, or why one cannot be
// answered at all.
func (g *Gateway) limits(c *call) ([]int, *openai.Error) {
	context := g.fleet.longest(c.mode)
	if context == 0 { // nobody who could serve this was ever there
		return nil, placeError(c.mode, g.fleet.check(c.mode, route.Request{}))
	}
	out := make([]int, len(c.prompts))
	for i, p := range c.prompts {
		limit := c.gen.MaxTokens
		if len(p) >= context || len(p)+limit > context {
			return nil, errContext(context, len(p), limit, c.param())
		}
		if limit == 0 {
			limit = context - len(p)
			if g.cfg.DefaultMaxTokens > 0 {
				limit = min(limit, g.cfg.DefaultMaxTokens)
			}
		}
		out[i] = limit
	}
	return out, nil
}

// begin makes and starts a request for every sample. Sample i of each prompt uses seed + i.
func (g *Gateway) begin(c *call) *openai.Error {
	limits, oerr := g.limits(c)
	if oerr != nil {
		return oerr
	}
	var seed uint64
	if c.gen.Seed != nil {
		seed = uint64(*c.gen.Seed)
	} else {
		var b [8]byte
		rand.Read(b[:])
		seed = binary.LittleEndian.Uint64(b[:])
	}
	now := g.now()
	deadline := now + g.cfg.RequestTimeout
	if at, limited := c.deadline(); limited {
		if deadline = min(deadline, at); deadline <= now {
			return errDeadline()
		}
	}
	for i, prompt := range c.prompts {
		for n := range c.gen.N {
			asm, err := newAssembler(c.gen.Stop, c.gen.Logprobs)
			if err != nil {
				return badRequest(openai.CodeInvalidValue, "stop", "Invalid 'stop': a string is empty, too long, or no valid UTF-8.")
			}
			index := i*c.gen.N + n
			c.requests = append(c.requests, &request{
				g: g, key: c.head.ID + "." + strconv.Itoa(index), tenant: c.tenant, how: c.how, index: index,
				out: c.out, prompt: prompt, params: withSeed(c.params, seed+uint64(n)), maxTokens: limits[i],
				arrival: c.arrival, admitted: c.admitted, parent: c.parent, why: telemetry.RetryNone, deadline: deadline, asm: asm, tokenIDs: c.gen.ReturnTokenIDs,
			})
		}
	}
	for _, q := range c.requests {
		q.start()
	}
	return nil
}

// generationParams translates what the client asked for. Seed, prompt and limit come later.
func generationParams(gen openai.Generation) *buspb.Generation {
	s := &buspb.Sampling{
		Temperature: gen.Temperature, TopP: gen.TopP, TopK: uint32(gen.TopK), MinP: gen.MinP,
		RepetitionPenalty: gen.RepetitionPenalty, PresencePenalty: gen.PresencePenalty, FrequencyPenalty: gen.FrequencyPenalty,
	}
	if gen.TopP == 0 {
		s.TopP, s.TopK = 1, 1 // the smallest nucleus is the likeliest token; on the bus 0 means off
	}
	if len(gen.LogitBias) > 0 {
		s.LogitBias = make(map[int32]float32, len(gen.LogitBias))
		for _, b := range gen.LogitBias {
			s.LogitBias[b.Token] = b.Bias
		}
	}
	return &buspb.Generation{
		Sampling: s, Stop: gen.Stop, IgnoreEos: gen.IgnoreEOS,
		Logprobs: gen.Logprobs, TopLogprobs: uint32(gen.TopLogprobs),
	}
}

// withSeed returns a copy that shares everything but the sampling.
func withSeed(p *buspb.Generation, seed uint64) *buspb.Generation {
	s := p.GetSampling()
	return &buspb.Generation{
		Sampling: &buspb.Sampling{
			Temperature: s.GetTemperature(), TopP: s.GetTopP(), TopK: s.GetTopK(), MinP: s.GetMinP(), Seed: seed,
			RepetitionPenalty: s.GetRepetitionPenalty(), PresencePenalty: s.GetPresencePenalty(),
			FrequencyPenalty: s.GetFrequencyPenalty(), PenaltyWindow: s.GetPenaltyWindow(), LogitBias: s.GetLogitBias(),
		},
		Stop: p.GetStop(), IgnoreEos: p.GetIgnoreEos(), Logprobs: p.GetLogprobs(), TopLogprobs: p.GetTopLogprobs(),
	}
}

// gone tells all requests of a call that nobody reads the answer any more.
func (c *call) gone() {
	for _, q := range c.requests {
		q.clientGone()
	}
}

// deadline is when the call must have ended, as its client wants it; false without its word.
func (c *call) deadline() (time.Duration, bool) {
	return c.arrival + c.timeout, c.timeout > 0
}

// admit waits for the call's turn.
func (g *Gateway) admit(ctx context.Context, c *call) (leave func(), oerr *openai.Error) {
	wait := g.cfg.QueueTimeout
	at, limited := c.deadline()
	if limited {
		wait = min(wait, at-g.now())
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	g.metrics.Queued(1)
	began := g.now()
	leave, err := g.gate.enter(ctx, c.tenant, c.samples)
	g.metrics.Queued(-1)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && limited && g.now() >= at:
		return nil, errDeadline()
	case err != nil:
		return nil, errQueue(err)
	}
	c.admitted = g.now()
	g.metrics.Waited(c.admitted - began)
	return leave, nil
}

// read turns the prompts into tokens, as many at once as there are processors: a burst of long prompts
// does not take them from the tokens that are being streamed.
func (g *Gateway) read(ctx context.Context, c *call, want *asked) *openai.Error {
	for i := range want.prompts {
		select {
		case g.readers <- struct{}{}:
		case <-ctx.Done():
			return errClientGone()
		}
		tokens, oerr := func() ([]int32, *openai.Error) {
			defer func() { <-g.readers }()
			return want.tokens(i)
		}()
		if oerr != nil {
			return oerr
		}
		c.prompts = append(c.prompts, tokens)
	}
	return nil
}

// collect reads a whole answer. It returns false when the client went away.
func (c *call) collect(ctx context.Context) ([]openai.Choice, openai.Usage, *openai.Error, bool) {
	choices := make([]openai.Choice, len(c.requests))
	texts := make([][]byte, len(c.requests))
	for i := range choices {
		choices[i] = openai.Choice{Index: i, Asked: c.gen.Logprobs}
	}
	var u usageSum
	var list taken
	for left := len(c.requests); left > 0; {
		select {
		case <-c.out.wake:
		case <-ctx.Done():
			return nil, openai.Usage{}, nil, false
		}
		c.out.take(&list)
		for _, d := range list.parts {
			texts[d.Index] = append(texts[d.Index], d.Text...)
			choices[d.Index].Logprobs = append(choices[d.Index].Logprobs, d.Logprobs...)
			choices[d.Index].TokenIDs = append(choices[d.Index].TokenIDs, d.TokenIDs...)
		}
		for _, e := range list.ends {
			if e.err != nil {
				return nil, openai.Usage{}, e.err, true
			}
			left--
			choices[e.index].Finish = e.finish
			u.add(e, c.gen.N)
		}
	}
	for i := range choices {
		choices[i].Text = string(texts[i])
	}
	return choices, u.Usage, nil, true
}

// usageSum adds up samples. A prompt counts once however many samples it has, and its cached tokens
// as its first sample found them.
type usageSum struct{ openai.Usage }

func (u *usageSum) add(e ending, samples int) {
	u.CompletionTokens += e.tokens
	if e.index%samples == 0 {
		u.PromptTokens += e.prompt.prompt
		u.CachedTokens += e.prompt.cached
	}
}

// answer writes a whole answer.
func (c *call) answer(w http.ResponseWriter, r *http.Request, writeTimeout time.Duration) *openai.Error {
	choices, usage, oerr, present := c.collect(r.Context())
	if !present {
		return errClientGone()
	}
	if oerr != nil {
		return oerr
	}
	doc := c.head.ChatAnswer
	if c.endpoint == openai.Completion {
		doc = c.head.TextAnswer
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	c.servedHeader(h)
	writeWithin(w, writeTimeout)
	w.Write(append(doc(choices, usage), '\n')) // a client that went away needs no error
	return nil
}

// servedHeader says how the call was served, where its samples agree.
func (c *call) servedHeader(h http.Header) {
	served := ""
	for _, q := range c.requests {
		q.mu.Lock()
		s := string(q.served)
		q.mu.Unlock()
		if served != "" && served != s {
			return
		}
		served = s
	}
	h.Set("Tandem-Served", served)
}
