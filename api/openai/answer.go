package openai

import (
	"bytes"
	"encoding/json"
)

// Finish reasons.
const (
	FinishStop   = "stop"   // an end-of-generation token or a stop string
	FinishLength = "length" // max tokens or the context's end
)

// Usage counts the tokens of a request over all its samples. Each prompt counts once.
type Usage struct {
	PromptTokens     int // tokens of the prompts
	CachedTokens     int // of them, taken from a prefix cache
	CompletionTokens int // generated tokens, end-of-generation tokens included
}

type usageBody struct {
	PromptTokens     int               `json:"prompt_tokens"`
	CompletionTokens int               `json:"completion_tokens"`
	TotalTokens      int               `json:"total_tokens"`
	PromptDetails    promptDetails     `json:"prompt_tokens_details"`
	Details          completionDetails `json:"completion_tokens_details"`
}

type promptDetails struct {
	Cached int `json:"cached_tokens"`
	Audio  int `json:"audio_tokens"`
}

type completionDetails struct {
	Reasoning int `json:"reasoning_tokens"`
	Audio     int `json:"audio_tokens"`
	Accepted  int `json:"accepted_prediction_tokens"`
	Rejected  int `json:"rejected_prediction_tokens"`
}

func (u Usage) body() *usageBody {
	return &usageBody{
		PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens,
		TotalTokens:   u.PromptTokens + u.CompletionTokens,
		PromptDetails: promptDetails{Cached: u.CachedTokens},
	}
}

// Choice is one finished sample.
type Choice struct {
	Index    int
	Text     string
	Finish   string     // one of the Finish constants
	Logprobs []Logprob  // the sample's tokens; nil when not asked for
	Asked    bool       // logprobs were asked for
	Offset   TextOffset // completions only: where the first token's text begins
	TokenIDs []int32    // every token of the sample, when asked for
}

// Head is what every document of one answer repeats.
type Head struct {
	ID           string // chatcmpl-… or cmpl-…
	Created      int64  // Unix seconds
	Model        string
	Fingerprint  string // identifies weights and build; equal fingerprint and seed repeat an answer
	IncludeUsage bool   // stream events carry a usage member
}

type chatAnswer struct {
	ID          string       `json:"id"`
	Object      string       `json:"object"`
	Created     int64        `json:"created"`
	Model       string       `json:"model"`
	Choices     []chatChoice `json:"choices"`
	Usage       *usageBody   `json:"usage"`
	ServiceTier string       `json:"service_tier"`
	Fingerprint string       `json:"system_fingerprint"`
}

type chatChoice struct {
	Index    int           `json:"index"`
	Message  chatMessage   `json:"message"`
	Logprobs *chatLogprobs `json:"logprobs"`
	Finish   string        `json:"finish_reason"`
	TokenIDs []int32       `json:"token_ids,omitempty"`
}

type chatMessage struct {
	Role        string   `json:"role"`
	Content     string   `json:"content"`
	Refusal     *string  `json:"refusal"`
	Annotations []string `json:"annotations"`
}

// ChatAnswer renders a whole chat completion.
func (h Head) ChatAnswer(choices []Choice, u Usage) []byte {
	out := chatAnswer{
		ID: h.ID, Object: "chat.completion", Created: h.Created, Model: h.Model,
		Choices: make([]chatChoice, 0, len(choices)), Usage: u.body(),
		ServiceTier: "default", Fingerprint: h.Fingerprint,
	}
	for _, c := range choices {
		out.Choices = append(out.Choices, chatChoice{
			Index:    c.Index,
			Message:  chatMessage{Role: RoleAssistant, Content: c.Text, Annotations: []string{}},
			Logprobs: newChatLogprobs(c.Asked, c.Logprobs),
			Finish:   c.Finish,
			TokenIDs: c.TokenIDs,
		})
	}
	return encode(out)
}

type textAnswer struct {
	ID          string          `json:"id"`
	Object      string          `json:"object"`
	Created     int64           `json:"created"`
	Model       string          `json:"model"`
	Choices     []textChoice    `json:"choices"`
	Usage       json.RawMessage `json:"usage,omitempty"`
	Fingerprint string          `json:"system_fingerprint"`
}

type textChoice struct {
	Text     string        `json:"text"`
	Index    int           `json:"index"`
	Logprobs *textLogprobs `json:"logprobs"`
	Finish   *string       `json:"finish_reason"`
	TokenIDs []int32       `json:"token_ids,omitempty"`
}

// TextAnswer renders a whole text completion.
func (h Head) TextAnswer(choices []Choice, u Usage) []byte {
	out := textAnswer{
		ID: h.ID, Object: "text_completion", Created: h.Created, Model: h.Model,
		Choices: make([]textChoice, 0, len(choices)), Usage: encode(u.body()), Fingerprint: h.Fingerprint,
	}
	for _, c := range choices {
		out.Choices = append(out.Choices, textChoice{
			Text: c.Text, Index: c.Index, Finish: &c.Finish, TokenIDs: c.TokenIDs,
			Logprobs: newTextLogprobs(c.Asked, c.Logprobs, c.Offset),
		})
	}
	return encode(out)
}

type modelList struct {
	Object string      `json:"object"`
	Data   []modelBody `json:"data"`
}

type modelBody struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

// Model renders one model of GET /v1/models/{id}. created is in Unix seconds.
func Model(id string, created int64) []byte {
	return encode(modelBody{id, "model", created, "tandem"})
}

// Models renders the answer of GET /v1/models.
func Models(created int64, ids ...string) []byte {
	list := modelList{Object: "list", Data: []modelBody{}}
	for _, id := range ids {
		list.Data = append(list.Data, modelBody{id, "model", created, "tandem"})
	}
	return encode(list)
}

// encode marshals without escaping <, > and &: the documents are never embedded in HTML. The types
// of this package always marshal.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return []byte(`{"error":{"message":"The answer could not be encoded.","type":"server_error","param":null,"code":"internal_error"}}`)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
}
