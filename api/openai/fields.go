package openai

import "slices"

// Endpoint is one of the two generating endpoints.
type Endpoint int

const (
	Chat       Endpoint = iota // POST /v1/chat/completions
	Completion                 // POST /v1/completions
)

// Use says what becomes of a field.
type Use string

const (
	Used     Use = "used"     // takes effect
	Harmless Use = "harmless" // validated, has no effect on the answer
	Limited  Use = "limited"  // only the values that ask for what the server does anyway
	Refused  Use = "refused"  // any value but null is answered with 400
)

// Field is one line of the field table.
type Field struct {
	Name string
	On   []Endpoint // the endpoints that know the field; elsewhere it is unknown
	Use  Use
	Note string // for the user: what is accepted, or why it is refused
}

var (
	both = []Endpoint{Chat, Completion}
	chat = []Endpoint{Chat}
	comp = []Endpoint{Completion}
)

const (
	noTools  = "This server does not run tools or functions."
	textOnly = "This server serves text only."
)

// fields is the one definition of which request fields exist. Decoding dispatches on it and the
// API documentation is checked against it.
var fields = []Field{
	{"model", both, Used, "required; an id that GET /v1/models lists"},
	{"messages", chat, Used, "required; 1 to 2048 messages with role system, developer, user or assistant and text content"},
	{"prompt", comp, Used, "required; a string, an array of token ids, or an array of up to 64 of either"},
	{"max_completion_tokens", chat, Used, "at least 1; default: what the context allows"},
	{"max_tokens", both, Used, "at least 1; chat: another name of max_completion_tokens; completions: default 16"},
	{"n", both, Used, "1 to 64; sample i uses seed + i"},
	{"stream", both, Used, "server-sent events"},
	{"stream_options", both, Used, "only with stream; include_usage; include_obfuscation may only be false"},
	{"stop", both, Used, "a string or up to 4 strings"},
	{"seed", both, Used, "64-bit integer; default: random"},
	{"temperature", both, Used, "0 to 2, default 1; 0 is greedy"},
	{"top_p", both, Used, "0 to 1, default 1"},
	{"frequency_penalty", both, Used, "-2 to 2, default 0"},
	{"presence_penalty", both, Used, "-2 to 2, default 0"},
	{"logit_bias", both, Used, "token id to bias, -100 to 100, at most 1024 entries"},
	{"logprobs", both, Used, "chat: a boolean; completions: 0 to 5"},
	{"top_logprobs", chat, Used, "0 to 20, only with logprobs"},

	{"top_k", both, Used, "extension: keep the k most likely tokens; 0 or -1 is off"},
	{"min_p", both, Used, "extension: 0 to 1, default 0"},
	{"repetition_penalty", both, Used, "extension: 0.01 to 2, default 1"},
	{"ignore_eos", both, Used, "extension: generate past end-of-generation tokens"},
	{"return_token_ids", both, Used, "extension: report the ids of the generated tokens as token_ids of each choice"},

	{"user", both, Harmless, "a string"},
	{"safety_identifier", chat, Harmless, "a string"},
	{"prompt_cache_key", chat, Harmless, "a string"},
	{"metadata", chat, Harmless, "an object of strings"},
	{"parallel_tool_calls", chat, Harmless, "a boolean; there are no tool calls"},

	{"store", chat, Limited, "false: nothing is stored"},
	{"service_tier", chat, Limited, `"auto" or "default"`},
	{"modalities", chat, Limited, `["text"]`},
	{"response_format", chat, Limited, `{"type":"text"}`},
	{"echo", comp, Limited, "false"},
	{"best_of", comp, Limited, "1"},

	{"tools", chat, Refused, noTools},
	{"tool_choice", chat, Refused, noTools},
	{"functions", chat, Refused, noTools},
	{"function_call", chat, Refused, noTools},
	{"web_search_options", chat, Refused, noTools},
	{"audio", chat, Refused, textOnly},
	{"moderation", chat, Refused, "This server does not moderate."},
	{"prediction", chat, Refused, "This server does not take predicted outputs."},
	{"reasoning_effort", chat, Refused, "This server cannot control reasoning."},
	{"verbosity", chat, Refused, "This server cannot control verbosity."},
	{"prompt_cache_retention", chat, Refused, "This server gives no promise about caching."},
	{"prompt_cache_options", chat, Refused, "This server gives no promise about caching."},
	{"suffix", comp, Refused, "This server does not insert text."},
}

// Fields returns the table of all known request fields: what is not in it is refused as unknown.
func Fields() []Field { return slices.Clone(fields) }

// lookup returns the table's line for a field of an endpoint.
func lookup(on Endpoint, name string) (Field, bool) {
	for _, f := range fields {
		if f.Name == name && slices.Contains(f.On, on) {
			return f, true
		}
	}
	return Field{}, false
}
