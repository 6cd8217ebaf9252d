package serve

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
)

// body is a request as every OpenAI-compatible server reads it.
type body struct {
	Model         string         `json:"model"`
	Prompt        any            `json:"prompt,omitempty"` // string or []int
	Messages      []message      `json:"messages,omitempty"`
	MaxTokens     int            `json:"max_tokens"`
	Temperature   float64        `json:"temperature"` // 0: greedy
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options"`
	IgnoreEOS     bool           `json:"ignore_eos,omitempty"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// request is one that is ready to be sent.
type request struct {
	body   []byte
	output int // tokens asked for
}

// prompts makes the requests of one run. Each prompt is new from its first word
// on, so that no server answers from a prefix that it has.
type prompts struct {
	load  Load
	model string
	rand  *rand.Rand
}

func newPrompts(load Load, model string, run uint64) *prompts {
	return &prompts{load: load, model: model, rand: rand.New(rand.NewPCG(load.Seed, run))}
}

func (p *prompts) next() request {
	n, output := p.load.Prompt.draw(p.rand), p.load.Output.draw(p.rand)
	switch {
	case p.load.Vocab > 0:
		return p.request(body{Prompt: p.ids(n)}, output)
	case p.load.Chat:
		return p.request(body{Messages: []message{{"user", p.text(n)}}}, output)
	}
	return p.request(body{Prompt: p.text(n)}, output)
}

// request completes a body that has its prompt.
func (p *prompts) request(b body, output int) request {
	b.Model, b.MaxTokens, b.Stream, b.IgnoreEOS = p.model, output, true, p.load.IgnoreEOS
	b.StreamOptions = &streamOptions{IncludeUsage: true}
	raw, err := json.Marshal(b)
	if err != nil {
		panic(err) // strings and numbers
	}
	return request{body: raw, output: output}
}

// ids are random tokens.
func (p *prompts) ids(n int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = p.rand.IntN(p.load.Vocab)
	}
	return ids
}

func (p *prompts) text(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[p.rand.IntN(len(words))])
	}
	return b.String()
}

// words are common ones, most of them one token in most vocabularies.
var words = strings.Fields(`
	the of and to in is you that it he was for on are as with his they at be this have from or one had by word but
	not what all were we when your can said there use an each which she do how their if will up other about out many
	then them these so some her would make like him into time has look two more write go see number no way could
	people my than first water been call who oil its now find long down day did get come made may part over new
	sound take only little work know place year live me back give most very after thing our just name good sentence
	man think say great where help through much before line right too mean old any same tell boy follow came want
	show also around form three small set put end does another well large must big even such because turn here why
	ask went men read need land different home us move try kind hand picture again change off play spell air away
	animal house point page letter mother answer found study still learn should world`)
