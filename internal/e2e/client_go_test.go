package e2e

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
)

const clientKey = "client-test-key-0001"

// clientFleet starts a fleet for a client library: with keys, as clients always
// send one, and with a context that a test can exceed.
func clientFleet(t *testing.T) *fleet {
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("clients "+clientKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return up(t, "--slots=4", "--context=1024", "--api-keys="+keys)
}

// TestGoClient uses the server through OpenAI's Go client.
func TestGoClient(t *testing.T) {
	f := clientFleet(t)
	g := goClient{fleet: f, api: openai.NewClient(option.WithBaseURL(f.url+"/v1/"), option.WithAPIKey(clientKey), option.WithMaxRetries(0))}
	for name, test := range map[string]func(*testing.T){
		"models": g.models, "chat": g.chat, "chat stream": g.chatStream, "completion": g.completion,
		"completion stream": g.completionStream, "several samples": g.samples, "errors": g.errors,
	} {
		t.Run(name, test)
	}
}

type goClient struct {
	fleet *fleet
	api   openai.Client
}

func (g *goClient) models(t *testing.T) {
	page, err := g.api.Models.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Data) != 1 || page.Data[0].ID != g.fleet.model || page.Data[0].Created == 0 {
		t.Errorf("models %+v", page.Data)
	}
	if m, err := g.api.Models.Get(t.Context(), g.fleet.model); err != nil || m.ID != g.fleet.model {
		t.Errorf("model %+v, %v", m, err)
	}
}

func (g *goClient) chatParams() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:               g.fleet.model,
		Messages:            []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be brief."), openai.UserMessage("Hello")},
		MaxCompletionTokens: openai.Int(24), Temperature: openai.Float(0.8), Seed: openai.Int(11),
		Logprobs: openai.Bool(true), TopLogprobs: openai.Int(3),
	}
}

func (g *goClient) chat(t *testing.T) {
	ask := func(p openai.ChatCompletionNewParams) *openai.ChatCompletion {
		t.Helper()
		got, err := g.api.Chat.Completions.New(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Choices) != 1 || got.Model != g.fleet.model || !strings.HasPrefix(got.ID, "chatcmpl-") {
			t.Fatalf("answer %+v", got)
		}
		return got
	}
	first := ask(g.chatParams())
	c := first.Choices[0]
	if c.Message.Content == "" || c.FinishReason != "length" || first.Usage.CompletionTokens != 24 ||
		first.Usage.PromptTokens < 5 || first.Usage.TotalTokens != first.Usage.PromptTokens+24 {
		t.Errorf("content %q, finish %s, usage %+v", c.Message.Content, c.FinishReason, first.Usage)
	}
	if len(c.Logprobs.Content) != 24 {
		t.Fatalf("%d logprobs for 24 tokens", len(c.Logprobs.Content))
	}
	var text []byte
	for _, l := range c.Logprobs.Content {
		for _, b := range l.Bytes {
			text = append(text, byte(b))
		}
		if l.Logprob > 0 || len(l.TopLogprobs) != 3 || l.TopLogprobs[0].Logprob < l.TopLogprobs[2].Logprob {
			t.Errorf("logprob %+v", l)
		}
	}
	if strings.ToValidUTF8(string(text), "�") != c.Message.Content {
		t.Errorf("the tokens' bytes spell %q, the content is %q", text, c.Message.Content)
	}
	if again := ask(g.chatParams()); again.Choices[0].Message.Content != c.Message.Content {
		t.Errorf("the same seed answers %q and %q", c.Message.Content, again.Choices[0].Message.Content)
	}
	other := g.chatParams()
	other.Seed = openai.Int(12)
	if ask(other).Choices[0].Message.Content == c.Message.Content {
		t.Error("another seed gives the same answer")
	}
	stopped := g.chatParams()
	stop, want := middle(c.Message.Content)
	stopped.Stop.OfStringArray = []string{"never in it", stop}
	if got := ask(stopped).Choices[0]; got.Message.Content != want || got.FinishReason != "stop" {
		t.Errorf("stopped at %q: %q, finish %s; want %q", stop, got.Message.Content, got.FinishReason, want)
	}
}

// middle picks a stop string out of an answer, and what should stay before it.
func middle(text string) (stop, before string) {
	runes := []rune(text)
	at := len(runes) / 2
	stop = string(runes[at:min(at+3, len(runes))])
	before, _, _ = strings.Cut(text, stop)
	return stop, before
}

// drain reads a stream to its end.
func drain[T any](t *testing.T, s *ssestream.Stream[T], chunk func(T)) {
	t.Helper()
	for s.Next() {
		chunk(s.Current())
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

func (g *goClient) chatStream(t *testing.T) {
	whole, err := g.api.Chat.Completions.New(t.Context(), g.chatParams())
	if err != nil {
		t.Fatal(err)
	}
	p := g.chatParams()
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	var acc openai.ChatCompletionAccumulator
	chunks, logprobs := 0, 0
	drain(t, g.api.Chat.Completions.NewStreaming(t.Context(), p), func(c openai.ChatCompletionChunk) {
		if chunks++; !acc.AddChunk(c) {
			t.Errorf("chunk %d does not fit the ones before: %s", chunks, c.RawJSON())
		}
		for _, choice := range c.Choices {
			logprobs += len(choice.Logprobs.Content)
		}
	})
	if chunks < 10 {
		t.Errorf("24 tokens came in %d chunks", chunks)
	}
	if len(acc.Choices) != 1 || acc.Choices[0].Message.Content != whole.Choices[0].Message.Content || acc.Choices[0].FinishReason != "length" {
		t.Errorf("streamed %+v\nwhole    %+v", acc.Choices, whole.Choices)
	}
	if acc.Usage.CompletionTokens != 24 || acc.Usage.PromptTokens != whole.Usage.PromptTokens || logprobs != 24 {
		t.Errorf("usage %+v, want %+v; %d logprobs", acc.Usage, whole.Usage, logprobs)
	}
}

func (g *goClient) completionParams() openai.CompletionNewParams {
	return openai.CompletionNewParams{
		Model: openai.CompletionNewParamsModel(g.fleet.model), MaxTokens: openai.Int(20), Seed: openai.Int(5), Logprobs: openai.Int(2),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once upon a time")},
	}
}

func (g *goClient) completion(t *testing.T) {
	ask := func(p openai.CompletionNewParams) *openai.Completion {
		t.Helper()
		got, err := g.api.Completions.New(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := ask(g.completionParams())
	if len(first.Choices) != 1 || first.Usage.CompletionTokens != 20 || first.Choices[0].FinishReason != "length" || first.Model != g.fleet.model {
		t.Fatalf("answer %+v", first)
	}
	c := first.Choices[0]
	if l := c.Logprobs; len(l.Tokens) != 20 || len(l.TokenLogprobs) != 20 || len(l.TopLogprobs) != 20 || len(l.TextOffset) != 20 || len(l.TopLogprobs[0]) < 2 {
		t.Errorf("logprobs %+v", l)
	}
	if again := ask(g.completionParams()); again.Choices[0].Text != c.Text {
		t.Errorf("the same seed answers %q and %q", c.Text, again.Choices[0].Text)
	}
	stopped := g.completionParams()
	stop, want := middle(c.Text)
	stopped.Stop.OfString = openai.String(stop)
	if got := ask(stopped).Choices[0]; got.Text != want || got.FinishReason != "stop" {
		t.Errorf("stopped at %q: %q, finish %s; want %q", stop, got.Text, got.FinishReason, want)
	}
	tokens := g.completionParams()
	tokens.Prompt = openai.CompletionNewParamsPromptUnion{OfArrayOfTokenArrays: [][]int64{{72, 101, 108}, {108, 111}}}
	if got := ask(tokens); len(got.Choices) != 2 || got.Usage.PromptTokens < 5 || got.Usage.CompletionTokens != 40 {
		t.Errorf("two token prompts: %+v", got)
	}
}

func (g *goClient) completionStream(t *testing.T) {
	whole, err := g.api.Completions.New(t.Context(), g.completionParams())
	if err != nil {
		t.Fatal(err)
	}
	p := g.completionParams()
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	text, finish, chunks, used := "", "", 0, int64(0)
	drain(t, g.api.Completions.NewStreaming(t.Context(), p), func(c openai.Completion) {
		chunks++
		for _, choice := range c.Choices {
			text += choice.Text
			finish += string(choice.FinishReason)
		}
		used += c.Usage.CompletionTokens
	})
	if text != whole.Choices[0].Text || finish != "length" || used != 20 || chunks < 10 {
		t.Errorf("streamed %q (%s, %d tokens, %d chunks), whole %q", text, finish, used, chunks, whole.Choices[0].Text)
	}
}

// samples asks for two samples of a prompt, whole and streamed.
func (g *goClient) samples(t *testing.T) {
	p := g.chatParams()
	p.N = openai.Int(2)
	whole, err := g.api.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if len(whole.Choices) != 2 || whole.Choices[0].Index != 0 || whole.Choices[1].Index != 1 ||
		whole.Choices[0].Message.Content == whole.Choices[1].Message.Content || whole.Usage.CompletionTokens != 48 {
		t.Errorf("answer %+v", whole)
	}
	texts := make([]string, 2)
	drain(t, g.api.Chat.Completions.NewStreaming(t.Context(), p), func(c openai.ChatCompletionChunk) {
		for _, choice := range c.Choices {
			texts[choice.Index] += choice.Delta.Content
		}
	})
	if texts[0] == "" || texts[1] == "" || texts[0] == texts[1] {
		t.Errorf("streamed samples %q", texts)
	}
}

// errors checks that failures reach users of the client as typed errors, which
// name the field and repeat no content.
func (g *goClient) errors(t *testing.T) {
	for _, tt := range []struct {
		name, code, param string
		status            int
		change            func(*openai.ChatCompletionNewParams)
		opts              []option.RequestOption
	}{
		{
			"unknown model", "model_not_found", "model", http.StatusNotFound,
			func(p *openai.ChatCompletionNewParams) { p.Model = "gpt-none" }, nil,
		},
		{
			"unsupported field", "unsupported_parameter", "tools", http.StatusBadRequest,
			func(p *openai.ChatCompletionNewParams) {
				p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "f"})}
			}, nil,
		},
		{
			"image", "unsupported_parameter", "messages[0].content[0].type", http.StatusBadRequest,
			func(p *openai.ChatCompletionNewParams) {
				p.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{
					openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: "https://example.com/a.png"}),
				})}
			}, nil,
		},
		{
			"context too long", "context_length_exceeded", "messages", http.StatusBadRequest,
			func(p *openai.ChatCompletionNewParams) {
				p.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage(strings.Repeat("long ", 2000))}
			}, nil,
		},
		{
			"wrong key", "invalid_api_key", "", http.StatusUnauthorized,
			func(*openai.ChatCompletionNewParams) {},
			[]option.RequestOption{option.WithAPIKey("wrong")},
		},
	} {
		for _, stream := range []bool{false, true} {
			p := g.chatParams()
			tt.change(&p)
			var err error
			if stream {
				s := g.api.Chat.Completions.NewStreaming(t.Context(), p, tt.opts...)
				for s.Next() {
				}
				err = s.Err()
			} else {
				_, err = g.api.Chat.Completions.New(context.WithoutCancel(t.Context()), p, tt.opts...)
			}
			var api *openai.Error
			if !errors.As(err, &api) {
				t.Errorf("%s, stream %v: %v is no error of the API", tt.name, stream, err)
				continue
			}
			if api.StatusCode != tt.status || api.Code != tt.code || api.Param != tt.param || api.Message == "" ||
				!slices.Contains([]string{"invalid_request_error", "authentication_error"}, api.Type) {
				t.Errorf("%s, stream %v: status %d, code %q, param %q, type %q, message %q",
					tt.name, stream, api.StatusCode, api.Code, api.Param, api.Type, api.Message)
			}
		}
	}
}
