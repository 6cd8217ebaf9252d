package gateway

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/api/openai"
	"github.com/tandem-llm/tandem/chat"
	"github.com/tandem-llm/tandem/engine"
)

// prompter turns prompts into tokens. It is immutable and safe for concurrent use.
type prompter struct {
	vocab    engine.Vocab
	template string
	options  chat.Options
	controls []string // texts of control tokens, longest first
}

func newPrompter(v engine.Vocab, template string) *prompter {
	p := &prompter{vocab: v, template: template, options: chat.Options{
		AddGenerationPrompt: true, BOS: tokenText(v, v.BOS()), EOS: tokenText(v, v.EOS()),
	}}
	for id := range engine.Token(v.Size()) {
		if text := v.Text(id); v.IsControl(id) && text != "" {
			p.controls = append(p.controls, text)
		}
	}
	slices.SortFunc(p.controls, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b))
	})
	p.controls = slices.Compact(p.controls)
	return p
}

// chat renders messages and turns them into tokens. The text of a control token inside a message is
// only text: a user cannot end a turn or speak as somebody else.
func (p *prompter) chat(messages []openai.Message) ([]int32, *openai.Error) {
	messages, marks := p.disarm(messages)
	list := make([]chat.Message, len(messages))
	for i, m := range messages {
		if m.Role == openai.RoleDeveloper {
			m.Role = openai.RoleSystem // its newer name, which templates do not know
		}
		list[i] = chat.Message{Role: m.Role, Content: m.Content, Name: m.Name}
	}
	text, err := chat.Render(p.template, list, p.options)
	if err != nil {
		return nil, templateError(err)
	}
	var tokens []int32
	for text != "" {
		before, literal := text, ""
		before, literal, text = marks.cut(text)
		for i, part := range []string{before, literal} {
			if part == "" {
				continue
			}
			list, err := p.vocab.Tokenize(part, false, i == 0)
			if err != nil {
				return nil, badRequest(openai.CodeInvalidValue, "messages", "The messages could not be turned into tokens.")
			}
			tokens = append(tokens, list...)
		}
	}
	return p.whole(tokens, "messages")
}

func tokenText(v engine.Vocab, id engine.Token) string {
	if id < 0 {
		return ""
	}
	return v.Text(id)
}

// templateError is what the client is told of a rendering that failed.
func templateError(err error) *openai.Error {
	switch {
	case errors.Is(err, chat.ErrMessages):
		// Templates refuse what their model was not trained for.
		return badRequest(openai.CodeInvalidValue, "messages",
			"The model's chat template refuses the messages. Check the roles and their order.")
	case errors.Is(err, chat.ErrTooLarge):
		return badRequest(openai.CodeTooLarge, "messages", "There are too many messages, or too much text in them.")
	case errors.Is(err, chat.ErrNoTemplate):
		return badRequest(openai.CodeUnsupported, "messages", "This model has no chat template: use POST /v1/completions.")
	}
	return badRequest(openai.CodeUnsupported, "messages", "This model's chat template cannot be used: use POST /v1/completions.")
}

// text turns the prompt of a text completion into tokens. The text of control tokens stands for
// them, as in token arrays: whoever writes the prompt decides all of it.
func (p *prompter) text(prompt openai.Prompt) ([]int32, *openai.Error) {
	if prompt.Tokens != nil {
		for _, id := range prompt.Tokens {
			if int(id) >= p.vocab.Size() {
				return nil, badRequest(openai.CodeInvalidValue, "prompt", "A token id of the prompt is outside the model's vocabulary.")
			}
		}
		return prompt.Tokens, nil
	}
	tokens, err := p.vocab.Tokenize(prompt.Text, false, true)
	if err != nil {
		return nil, badRequest(openai.CodeInvalidValue, "prompt", "The prompt could not be turned into tokens.")
	}
	return p.whole(tokens, "prompt")
}

// whole puts exactly one BOS in front where the model wants one. Rendered chats usually begin with
// it, prompts may, and a second one would be a prompt that no model was trained on.
func (p *prompter) whole(tokens []int32, param string) ([]int32, *openai.Error) {
	if bos := p.vocab.BOS(); p.vocab.AddBOS() && bos >= 0 && (len(tokens) == 0 || tokens[0] != bos) {
		tokens = slices.Insert(tokens, 0, bos)
	}
	if len(tokens) == 0 {
		return nil, badRequest(openai.CodeInvalidValue, param, "The prompt is empty.")
	}
	return tokens, nil
}

// marks stand in rendered text for control-token texts that a message contained.
type marks struct {
	prefix string // unguessable; empty when there are none
	texts  []string
}

const markEnd = "\uE001"

// disarm replaces the text of control tokens in messages by marks. Most messages have none and are
// returned as they are.
func (p *prompter) disarm(messages []openai.Message) ([]openai.Message, marks) {
	found := false
	for _, m := range messages {
		for _, c := range p.controls {
			if found = found || strings.Contains(m.Content, c) || strings.Contains(m.Name, c); found {
				break
			}
		}
	}
	if !found {
		return messages, marks{}
	}
	k := marks{prefix: "\uE000" + rand.Text(), texts: p.controls}
	pairs := make([]string, 0, 2*len(p.controls))
	for i, c := range p.controls {
		pairs = append(pairs, c, fmt.Sprintf("%s%d%s", k.prefix, i, markEnd))
	}
	r := strings.NewReplacer(pairs...)
	out := slices.Clone(messages)
	for i := range out {
		out[i].Content, out[i].Name = r.Replace(out[i].Content), r.Replace(out[i].Name)
	}
	return out, k
}

// cut returns the text before the first mark, what that mark stands for, and the rest.
func (k marks) cut(text string) (before, literal, rest string) {
	if k.prefix == "" {
		return text, "", ""
	}
	before, after, found := strings.Cut(text, k.prefix)
	if !found {
		return text, "", ""
	}
	number, rest, _ := strings.Cut(after, markEnd)
	var i int
	if _, err := fmt.Sscanf(number, "%d", &i); err == nil && i >= 0 && i < len(k.texts) {
		literal = k.texts[i]
	}
	return before, literal, rest
}
