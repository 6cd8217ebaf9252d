package openai

import (
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	client "github.com/openai/openai-go/v3"
)

const (
	chatStart = `{"model":"m","messages":[{"role":"user","content":"hi"}]`
	textStart = `{"model":"m","prompt":"hi"`
)

func ptr[T any](v T) *T { return &v }

func TestChatDefaults(t *testing.T) {
	got, err := DecodeChat([]byte(chatStart + `}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &ChatRequest{
		Generation: Generation{Model: "m", N: 1, Temperature: 1, TopP: 1, RepetitionPenalty: 1},
		Messages:   []Message{{Role: "user", Content: "hi"}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestChatEverything(t *testing.T) {
	got, err := DecodeChat([]byte(` {
		"model": "m", "n": 3, "max_completion_tokens": 7, "max_tokens": 7, "stream": true,
		"stream_options": {"include_usage": true, "include_obfuscation": false},
		"stop": ["a", "b", "a"], "seed": -5, "temperature": 0, "top_p": 0.5, "top_k": 40, "min_p": 0.25,
		"repetition_penalty": 1.5, "frequency_penalty": -2, "presence_penalty": 2,
		"logit_bias": {"12": -100, "3": 1.5}, "logprobs": true, "top_logprobs": 20, "ignore_eos": true, "return_token_ids": true,
		"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "metadata": {"a": "b"},
		"parallel_tool_calls": true, "store": false, "service_tier": "auto", "modalities": ["text"],
		"response_format": {"type": "text"}, "tools": null, "audio": null,
		"messages": [
			{"role": "system", "content": [{"type": "text", "text": "one"}, {"text": "two", "type": "text"}]},
			{"role": "developer", "content": ""},
			{"role": "user", "content": "\u00e9", "name": "ann"},
			{"role": "assistant", "content": "x", "refusal": null, "annotations": [], "tool_calls": null, "audio": null}
		]
	} `))
	if err != nil {
		t.Fatal(err)
	}
	want := &ChatRequest{
		Generation: Generation{
			Model: "m", N: 3, MaxTokens: 7, Stream: true, IncludeUsage: true,
			TopP: 0.5, TopK: 40, MinP: 0.25, RepetitionPenalty: 1.5, PresencePenalty: 2, FrequencyPenalty: -2,
			Seed: ptr(int64(-5)), LogitBias: []Bias{{3, 1.5}, {12, -100}}, Stop: []string{"a", "b"},
			IgnoreEOS: true, ReturnTokenIDs: true, Logprobs: true, TopLogprobs: 20,
		},
		Messages: []Message{
			{Role: "system", Content: "one\ntwo"},
			{Role: "developer"},
			{Role: "user", Content: "é", Name: "ann"},
			{Role: "assistant", Content: "x"},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestCompletionPrompts(t *testing.T) {
	for _, tc := range []struct {
		prompt string
		want   []Prompt
	}{
		{`"hi"`, []Prompt{{Text: "hi"}}},
		{`[1, 2 ,3]`, []Prompt{{Tokens: []int32{1, 2, 3}}}},
		{`["a","b"]`, []Prompt{{Text: "a"}, {Text: "b"}}},
		{`[[1],[2,3]]`, []Prompt{{Tokens: []int32{1}}, {Tokens: []int32{2, 3}}}},
		{`["a",[7]]`, []Prompt{{Text: "a"}, {Tokens: []int32{7}}}},
	} {
		got, err := DecodeCompletion([]byte(`{"model":"m","logprobs":0,"echo":false,"best_of":1,"prompt":` + tc.prompt + `}`))
		if err != nil {
			t.Errorf("%s: %v", tc.prompt, err)
			continue
		}
		want := &CompletionRequest{
			Generation: Generation{Model: "m", N: 1, MaxTokens: 16, Temperature: 1, TopP: 1, RepetitionPenalty: 1, Logprobs: true},
			Prompts:    tc.want,
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", tc.prompt, d)
		}
	}
}

// TestRefused is one line per way a request can be wrong: the field that is named, and the code.
func TestRefused(t *testing.T) {
	deep := strings.Repeat(`[`, maxDepth) + strings.Repeat(`]`, maxDepth)
	for _, tc := range []struct {
		on          Endpoint
		body, param string
		code        string
	}{
		{Chat, ``, "", CodeInvalidJSON},
		{Chat, `[]`, "", CodeInvalidJSON},
		{Chat, `"x"`, "", CodeInvalidJSON},
		{Chat, `{"model":`, "", CodeInvalidJSON},
		{Chat, chatStart + `} {}`, "", CodeInvalidJSON},
		{Chat, chatStart + `}x`, "", CodeInvalidJSON},
		{Chat, chatStart + `,"user":"` + "\xff" + `"}`, "", CodeInvalidJSON},
		{Chat, chatStart + `,"metadata":` + deep + `}`, "metadata" + strings.Repeat("[0]", maxDepth-1), CodeInvalidJSON},
		{Chat, chatStart + `,"model":"m"}`, "model", CodeDuplicate},
		{Chat, chatStart + `,"n":1,"\u006e":1}`, "n", CodeDuplicate},
		{Chat, `{"model":"m","messages":[{"role":"user","content":"a","content":"b"}]}`, "messages[0].content", CodeDuplicate},
		{Chat, chatStart + `,"Seed":1}`, "Seed", CodeUnknownParameter},
		{Chat, chatStart + `,"prompt":"x"}`, "prompt", CodeUnknownParameter},
		{Chat, chatStart + `,"` + strings.Repeat("é", 50) + `":1}`, strings.Repeat("é", 32) + "…", CodeUnknownParameter},

		{Chat, `{"messages":[{"role":"user","content":"hi"}]}`, "model", CodeMissing},
		{Chat, `{"model":null,"messages":[{"role":"user","content":"hi"}]}`, "model", CodeMissing},
		{Chat, `{"model":"m"}`, "messages", CodeMissing},
		{Chat, `{"model":"m","messages":[]}`, "messages", CodeInvalidValue},
		{Chat, `{"model":"m","messages":{}}`, "messages", CodeInvalidType},
		{Chat, `{"model":"m","messages":["x"]}`, "messages[0]", CodeInvalidType},
		{Chat, `{"model":"m","messages":[{"content":"x"}]}`, "messages[0].role", CodeMissing},
		{Chat, `{"model":"m","messages":[{"role":"user"}]}`, "messages[0].content", CodeMissing},
		{Chat, `{"model":"m","messages":[{"role":"user","content":null}]}`, "messages[0].content", CodeMissing},
		{Chat, `{"model":"m","messages":[{"role":"user","content":5}]}`, "messages[0].content", CodeInvalidType},
		{Chat, `{"model":"m","messages":[{"role":"user","content":[]}]}`, "messages[0].content", CodeInvalidValue},
		{Chat, `{"model":"m","messages":[{"role":"boss","content":"x"}]}`, "messages[0].role", CodeInvalidValue},
		{Chat, `{"model":"m","messages":[{"role":null,"content":"x"}]}`, "messages[0].role", CodeInvalidType},
		{Chat, `{"model":"m","messages":[{"role":"tool","content":"x","tool_call_id":"y"}]}`, "messages[0].role", CodeUnsupported},
		{Chat, `{"model":"m","messages":[{"role":"function","content":"x"}]}`, "messages[0].role", CodeUnsupported},
		{Chat, `{"model":"m","messages":[{"role":"user","content":"x","prefix":true}]}`, "messages[0].prefix", CodeUnknownParameter},
		{Chat, `{"model":"m","messages":[{"role":"assistant","content":"x","tool_calls":[]}]}`, "messages[0].tool_calls", CodeUnsupported},
		{Chat, `{"model":"m","messages":[{"role":"assistant","content":"x","function_call":{}}]}`, "messages[0].function_call", CodeUnsupported},
		{Chat, `{"model":"m","messages":[{"role":"assistant","content":"x","audio":{"id":"a"}}]}`, "messages[0].audio", CodeUnsupported},
		{Chat, `{"model":"m","messages":[{"role":"assistant","content":"x","refusal":"no"}]}`, "messages[0].refusal", CodeUnsupported},
		{Chat, `{"model":"m","messages":[{"role":"assistant","content":"x","annotations":[1]}]}`, "messages[0].annotations", CodeUnsupported},
		{Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]}`, "messages[0].content[0].type", CodeUnsupported},
		{Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"input_audio","input_audio":{}}]}]}`, "messages[0].content[1].type", CodeUnsupported},
		{Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"file","file":{}}]}]}`, "messages[0].content[0].type", CodeUnsupported},
		{Chat, `{"model":"m","messages":[{"role":"assistant","content":[{"type":"refusal","refusal":"x"}]}]}`, "messages[0].content[0].type", CodeUnsupported},
		{Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"poem","text":"a"}]}]}`, "messages[0].content[0].type", CodeInvalidValue},
		{Chat, `{"model":"m","messages":[{"role":"user","content":[{"text":"a"}]}]}`, "messages[0].content[0].type", CodeMissing},
		{Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"text"}]}]}`, "messages[0].content[0].text", CodeMissing},
		{Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{}}]}]}`, "messages[0].content[0].cache_control", CodeUnknownParameter},

		{Chat, chatStart + `,"n":0}`, "n", CodeInvalidValue},
		{Chat, chatStart + `,"n":65}`, "n", CodeInvalidValue},
		{Chat, chatStart + `,"n":1.5}`, "n", CodeInvalidType},
		{Chat, chatStart + `,"n":"1"}`, "n", CodeInvalidType},
		{Chat, chatStart + `,"max_tokens":0}`, "max_tokens", CodeInvalidValue},
		{Chat, chatStart + `,"max_tokens":99999999999999999999}`, "max_tokens", CodeInvalidValue},
		{Chat, chatStart + `,"max_completion_tokens":-1}`, "max_completion_tokens", CodeInvalidValue},
		{Chat, chatStart + `,"max_completion_tokens":2,"max_tokens":3}`, "max_tokens", CodeInvalidValue},
		{Chat, chatStart + `,"temperature":2.1}`, "temperature", CodeInvalidValue},
		{Chat, chatStart + `,"temperature":1e999}`, "temperature", CodeInvalidValue},
		{Chat, chatStart + `,"temperature":true}`, "temperature", CodeInvalidType},
		{Chat, chatStart + `,"top_p":-0.1}`, "top_p", CodeInvalidValue},
		{Chat, chatStart + `,"min_p":1.1}`, "min_p", CodeInvalidValue},
		{Chat, chatStart + `,"top_k":-2}`, "top_k", CodeInvalidValue},
		{Chat, chatStart + `,"repetition_penalty":0}`, "repetition_penalty", CodeInvalidValue},
		{Chat, chatStart + `,"frequency_penalty":3}`, "frequency_penalty", CodeInvalidValue},
		{Chat, chatStart + `,"presence_penalty":-3}`, "presence_penalty", CodeInvalidValue},
		{Chat, chatStart + `,"seed":"x"}`, "seed", CodeInvalidType},
		{Chat, chatStart + `,"seed":9223372036854775808}`, "seed", CodeInvalidValue},
		{Chat, chatStart + `,"ignore_eos":1}`, "ignore_eos", CodeInvalidType},
		{Chat, chatStart + `,"stream":"true"}`, "stream", CodeInvalidType},
		{Chat, chatStart + `,"stream_options":{"include_usage":true}}`, "stream_options", CodeInvalidValue},
		{Chat, chatStart + `,"stream":true,"stream_options":[]}`, "stream_options", CodeInvalidType},
		{Chat, chatStart + `,"stream":true,"stream_options":{"include_usage":1}}`, "stream_options.include_usage", CodeInvalidType},
		{Chat, chatStart + `,"stream":true,"stream_options":{"include_obfuscation":true}}`, "stream_options.include_obfuscation", CodeUnsupportedValue},
		{Chat, chatStart + `,"stream":true,"stream_options":{"x":true}}`, "stream_options.x", CodeUnknownParameter},
		{Chat, chatStart + `,"stop":""}`, "stop", CodeInvalidValue},
		{Chat, chatStart + `,"stop":5}`, "stop", CodeInvalidType},
		{Chat, chatStart + `,"stop":["a",""]}`, "stop[1]", CodeInvalidValue},
		{Chat, chatStart + `,"stop":["a",1]}`, "stop[1]", CodeInvalidType},
		{Chat, chatStart + `,"stop":["1","2","3","4","5"]}`, "stop", CodeInvalidValue},
		{Chat, chatStart + `,"stop":"` + strings.Repeat("x", MaxStopBytes+1) + `"}`, "stop", CodeInvalidValue},
		{Chat, chatStart + `,"logit_bias":[]}`, "logit_bias", CodeInvalidType},
		{Chat, chatStart + `,"logit_bias":{"x":1}}`, "logit_bias", CodeInvalidValue},
		{Chat, chatStart + `,"logit_bias":{"01":1}}`, "logit_bias", CodeInvalidValue},
		{Chat, chatStart + `,"logit_bias":{"-1":1}}`, "logit_bias", CodeInvalidValue},
		{Chat, chatStart + `,"logit_bias":{"1":101}}`, "logit_bias", CodeInvalidValue},
		{Chat, chatStart + `,"logit_bias":{` + manyBias(MaxBias+1) + `}}`, "logit_bias", CodeInvalidValue},
		{Chat, chatStart + `,"metadata":{` + manyBias(maxMembers+1) + `}}`, "metadata", CodeInvalidValue},
		{Chat, chatStart + `,"logprobs":1}`, "logprobs", CodeInvalidType},
		{Chat, chatStart + `,"top_logprobs":1}`, "top_logprobs", CodeInvalidValue},
		{Chat, chatStart + `,"logprobs":true,"top_logprobs":21}`, "top_logprobs", CodeInvalidValue},

		{Chat, chatStart + `,"user":5}`, "user", CodeInvalidType},
		{Chat, chatStart + `,"metadata":{"a":1}}`, "metadata.a", CodeInvalidType},
		{Chat, chatStart + `,"metadata":{` + manyBias(maxMetadata+1) + `}}`, "metadata", CodeInvalidValue},
		{Chat, chatStart + `,"parallel_tool_calls":"x"}`, "parallel_tool_calls", CodeInvalidType},
		{Chat, chatStart + `,"store":true}`, "store", CodeUnsupportedValue},
		{Chat, chatStart + `,"service_tier":"flex"}`, "service_tier", CodeUnsupportedValue},
		{Chat, chatStart + `,"modalities":["text","audio"]}`, "modalities", CodeUnsupportedValue},
		{Chat, chatStart + `,"response_format":{"type":"json_object"}}`, "response_format", CodeUnsupportedValue},
		{Chat, chatStart + `,"response_format":{"type":"text","schema":{}}}`, "response_format", CodeUnsupportedValue},

		{Completion, `{"model":"m"}`, "prompt", CodeMissing},
		{Completion, `{"model":"m","prompt":""}`, "prompt", CodeInvalidValue},
		{Completion, `{"model":"m","prompt":[]}`, "prompt", CodeInvalidValue},
		{Completion, `{"model":"m","prompt":5}`, "prompt", CodeInvalidType},
		{Completion, `{"model":"m","prompt":[1,"a"]}`, "prompt", CodeInvalidType},
		{Completion, `{"model":"m","prompt":[-1]}`, "prompt", CodeInvalidType},
		{Completion, `{"model":"m","prompt":[1.5]}`, "prompt", CodeInvalidType},
		{Completion, `{"model":"m","prompt":["a",""]}`, "prompt[1]", CodeInvalidValue},
		{Completion, `{"model":"m","prompt":["a",[]]}`, "prompt[1]", CodeInvalidValue},
		{Completion, `{"model":"m","prompt":["a",5]}`, "prompt[1]", CodeInvalidType},
		{Completion, `{"model":"m","prompt":[` + strings.Repeat(`"a",`, MaxPrompts) + `"a"]}`, "prompt", CodeInvalidValue},
		{Completion, textStart + `,"messages":[]}`, "messages", CodeUnknownParameter},
		{Completion, textStart + `,"max_completion_tokens":5}`, "max_completion_tokens", CodeUnknownParameter},
		{Completion, textStart + `,"logprobs":true}`, "logprobs", CodeInvalidType},
		{Completion, textStart + `,"logprobs":6}`, "logprobs", CodeInvalidValue},
		{Completion, textStart + `,"echo":true}`, "echo", CodeUnsupportedValue},
		{Completion, textStart + `,"best_of":2}`, "best_of", CodeUnsupportedValue},
		{Completion, textStart + `,"tools":[]}`, "tools", CodeUnknownParameter},
	} {
		var err *Error
		if tc.on == Chat {
			_, err = DecodeChat([]byte(tc.body))
		} else {
			_, err = DecodeCompletion([]byte(tc.body))
		}
		name := tc.body[:min(len(tc.body), 120)]
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		if err.Param != tc.param || err.Code != tc.code || err.Status != http.StatusBadRequest || err.Type != TypeInvalidRequest {
			t.Errorf("%s: got %v, want param %q and code %s", name, err, tc.param, tc.code)
		}
	}
}

func manyBias(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + strconv.Itoa(i) + `":"1"`)
	}
	return b.String()
}

// TestEveryRefusedField sends every field that the table refuses, and its null, which is accepted.
func TestEveryRefusedField(t *testing.T) {
	for _, f := range Fields() {
		if f.Use != Refused {
			continue
		}
		for _, on := range f.On {
			for _, value := range []string{`"x"`, `1`, `true`, `[]`, `{}`, `[{"type":"function"}]`} {
				err := decodeOn(on, `,"`+f.Name+`":`+value+`}`)
				if err == nil || err.Code != CodeUnsupported || err.Param != f.Name {
					t.Errorf("%s = %s: got %v", f.Name, value, err)
				}
			}
			if err := decodeOn(on, `,"`+f.Name+`":null}`); err != nil {
				t.Errorf("%s = null: %v", f.Name, err)
			}
		}
	}
}

func decodeOn(on Endpoint, rest string) (err *Error) {
	if on == Chat {
		_, err = DecodeChat([]byte(chatStart + rest))
	} else {
		_, err = DecodeCompletion([]byte(textStart + rest))
	}
	return err
}

// TestClientFieldsKnown compares the table with the official client, so that no field of the API is
// answered as a spelling mistake.
func TestClientFieldsKnown(t *testing.T) {
	for on, v := range map[Endpoint]any{
		Chat:       client.ChatCompletionNewParams{},
		Completion: client.CompletionNewParams{},
	} {
		typ := reflect.TypeOf(v)
		known := 0
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue
			}
			known++
			if _, ok := lookup(on, name); !ok {
				t.Errorf("endpoint %d: the client knows %q, the table does not", on, name)
			}
		}
		if known < 15 {
			t.Errorf("endpoint %d: only %d fields found by reflection", on, known)
		}
	}
}

// TestNoContentInErrors sends secrets in every place and looks for them in the answers.
func TestNoContentInErrors(t *testing.T) {
	const secret = "tulip"
	for _, body := range []string{
		`{"model":"m","messages":[{"role":"` + secret + `","content":"x"}]}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"` + secret + `"}]}]}`,
		chatStart + `,"logit_bias":{"` + secret + `":1}}`,
		chatStart + `,"stop":["` + secret + `",""]}`,
		chatStart + `,"service_tier":"` + secret + `"}`,
		chatStart + `,"temperature":"` + secret + `"}`,
		`{"model":"m","messages":[{"role":"user","content":"` + secret + `}]}`,
	} {
		_, err := DecodeChat([]byte(body))
		if err == nil {
			t.Fatalf("%s: accepted", body)
		}
		if strings.Contains(err.Error()+string(err.Body()), secret) {
			t.Errorf("%s: the error repeats content: %v", body, err)
		}
	}
	_, err := DecodeCompletion([]byte(`{"model":"m","prompt":[1,2,4242424242]}`))
	if err == nil || strings.Contains(err.Error(), "4242") {
		t.Errorf("token id in error: %v", err)
	}
}
