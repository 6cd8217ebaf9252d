package openai

import "encoding/json"

// Done is the event that ends a stream. A stream that failed ends with an error event instead.
const Done = "data: [DONE]\n\n"

// KeepAlive is a comment that clients skip.
const KeepAlive = ": keep-alive\n\n"

// AppendEvent appends one server-sent event that carries a document. A document has no line break
// of its own.
func AppendEvent(dst, document []byte) []byte {
	dst = append(dst, "data: "...)
	dst = append(dst, document...)
	return append(dst, "\n\n"...)
}

// Delta is the next part of one sample's stream.
type Delta struct {
	Index    int
	Text     string
	Asked    bool       // logprobs were asked for
	Logprobs []Logprob  // the tokens whose text this part completes
	Offset   TextOffset // completions only: where the first token's text begins
	Finish   string     // set in the last part only
	TokenIDs []int32    // tokens that came with this part, when asked for
}

type chatChunk struct {
	ID          string          `json:"id"`
	Object      string          `json:"object"`
	Created     int64           `json:"created"`
	Model       string          `json:"model"`
	ServiceTier string          `json:"service_tier"`
	Fingerprint string          `json:"system_fingerprint"`
	Choices     []chunkChoice   `json:"choices"`
	Usage       json.RawMessage `json:"usage,omitempty"`
}

type chunkChoice struct {
	Index    int           `json:"index"`
	Delta    chatDelta     `json:"delta"`
	Logprobs *chatLogprobs `json:"logprobs"`
	Finish   *string       `json:"finish_reason"`
	TokenIDs []int32       `json:"token_ids,omitempty"`
}

type chatDelta struct {
	Role    string          `json:"role,omitempty"`
	Content *string         `json:"content,omitempty"`
	Refusal json.RawMessage `json:"refusal,omitempty"`
}

// null is a member that is present and null; an empty RawMessage is absent.
var null = json.RawMessage("null")

func (h Head) chatChunk(choices []chunkChoice) chatChunk {
	c := chatChunk{
		ID: h.ID, Object: "chat.completion.chunk", Created: h.Created, Model: h.Model,
		ServiceTier: "default", Fingerprint: h.Fingerprint, Choices: choices,
	}
	if h.IncludeUsage {
		c.Usage = null
	}
	return c
}

// ChatStart renders the first event of a sample: the role and empty content.
func (h Head) ChatStart(index int) []byte {
	empty := ""
	return encode(h.chatChunk([]chunkChoice{{
		Index: index,
		Delta: chatDelta{Role: RoleAssistant, Content: &empty, Refusal: null},
	}}))
}

// ChatDelta renders a part of a sample: its text, or its finish reason, or both in two events. Use
// it with at least one of them.
func (h Head) ChatDelta(d Delta) []byte {
	c := chunkChoice{Index: d.Index, TokenIDs: d.TokenIDs}
	if d.Text != "" || len(d.Logprobs) > 0 || len(d.TokenIDs) > 0 {
		c.Delta.Content = &d.Text
		c.Logprobs = newChatLogprobs(d.Asked, d.Logprobs)
	}
	if d.Finish != "" {
		c.Finish = &d.Finish
	}
	return encode(h.chatChunk([]chunkChoice{c}))
}

// ChatUsage renders the event that carries usage and no choice.
func (h Head) ChatUsage(u Usage) []byte {
	c := h.chatChunk([]chunkChoice{})
	c.Usage = encode(u.body())
	return encode(c)
}

func (h Head) textChunk(choices []textChoice) textAnswer {
	c := textAnswer{
		ID: h.ID, Object: "text_completion", Created: h.Created, Model: h.Model,
		Choices: choices, Fingerprint: h.Fingerprint,
	}
	if h.IncludeUsage {
		c.Usage = null
	}
	return c
}

// TextDelta renders a part of a sample of a text completion.
func (h Head) TextDelta(d Delta) []byte {
	c := textChoice{Text: d.Text, Index: d.Index, TokenIDs: d.TokenIDs}
	if len(d.Logprobs) > 0 {
		c.Logprobs = newTextLogprobs(d.Asked, d.Logprobs, d.Offset)
	}
	if d.Finish != "" {
		c.Finish = &d.Finish
	}
	return encode(h.textChunk([]textChoice{c}))
}

// TextUsage renders the event that carries usage and no choice.
func (h Head) TextUsage(u Usage) []byte {
	c := h.textChunk([]textChoice{})
	c.Usage = encode(u.body())
	return encode(c)
}
