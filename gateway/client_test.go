package gateway

import (
	"context"
	"errors"
	"testing"
	"time"

	client "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// TestOfficialClient talks to the gateway with the official Go client.
func TestOfficialClient(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		p, closeServer := r.serveHTTP()
		defer closeServer()
		transport := p.client()
		defer transport.CloseIdleConnections()
		c := client.NewClient(option.WithBaseURL("http://gateway/v1"), option.WithAPIKey("none"), option.WithHTTPClient(transport))
		ctx := context.Background()

		models, err := c.Models.List(ctx)
		if err != nil || len(models.Data) != 1 || models.Data[0].ID != "tiny" {
			t.Fatalf("models: %+v %v", models, err)
		}
		params := client.ChatCompletionNewParams{
			Model: "tiny", Seed: client.Int(1), N: client.Int(2), Logprobs: client.Bool(true), TopLogprobs: client.Int(1),
			Messages: []client.ChatCompletionMessageParamUnion{client.SystemMessage("be brief"), client.UserMessage("hi")},
			User:     client.String("u"),
		}
		answer, err := c.Chat.Completions.New(ctx, params)
		if err != nil {
			t.Fatal(err)
		}
		if len(answer.Choices) != 2 || answer.Choices[1].Message.Content != answerText || answer.Choices[0].FinishReason != "stop" {
			t.Errorf("%+v", answer.Choices)
		}
		if lp := answer.Choices[0].Logprobs.Content; len(lp) != len(answerTokens()) || lp[0].Bytes[0] != 'H' {
			t.Errorf("%d logprobs", len(lp))
		}
		if u := answer.Usage; u.CompletionTokens != int64(2*len(answerTokens())) || u.PromptTokensDetails.CachedTokens != 2 ||
			u.TotalTokens != u.PromptTokens+u.CompletionTokens {
			t.Errorf("%+v", u)
		}

		params.N, params.StreamOptions = client.Int(1), client.ChatCompletionStreamOptionsParam{IncludeUsage: client.Bool(true)}
		stream := c.Chat.Completions.NewStreaming(ctx, params)
		var acc client.ChatCompletionAccumulator
		for stream.Next() {
			if !acc.AddChunk(stream.Current()) {
				t.Error("a chunk does not fit")
			}
		}
		if stream.Err() != nil || acc.Choices[0].Message.Content != answerText || acc.Choices[0].FinishReason != "stop" ||
			acc.Usage.CompletionTokens != int64(len(answerTokens())) {
			t.Errorf("stream: %+v %v", acc, stream.Err())
		}

		text, err := c.Completions.New(ctx, client.CompletionNewParams{
			Model: "tiny", MaxTokens: client.Int(5), Logprobs: client.Int(1), Stop: client.CompletionNewParamsStopUnion{OfString: client.String("zzz")},
			Prompt: client.CompletionNewParamsPromptUnion{OfArrayOfTokens: []int64{104, 105}},
		})
		if err != nil || text.Choices[0].Text != answerText[:5] || text.Choices[0].FinishReason != "length" ||
			len(text.Choices[0].Logprobs.Tokens) != 5 || text.Choices[0].Logprobs.TextOffset[4] != 4 {
			t.Errorf("completion: %+v %v", text, err)
		}

		// Errors are typed, and name the field.
		params.Tools = []client.ChatCompletionToolUnionParam{client.ChatCompletionFunctionTool(client.FunctionDefinitionParam{Name: "f"})}
		_, err = c.Chat.Completions.New(ctx, params)
		var apiErr *client.Error
		if !errors.As(err, &apiErr) || apiErr.StatusCode != 400 || apiErr.Param != "tools" || apiErr.Type != "invalid_request_error" {
			t.Errorf("tools: %v %+v", err, apiErr)
		}

		// An error in the middle of a stream reaches the client as an error, once.
		d := r.b.workers["d1"]
		at(d, 3, "Tokens", d.kill)
		params.Tools = nil
		stream = c.Chat.Completions.NewStreaming(ctx, params)
		n := 0
		for stream.Next() {
			n++
		}
		if stream.Err() == nil || n == 0 {
			t.Errorf("%d chunks, then %v", n, stream.Err())
		}

		// What cannot be served for now is retried by the client itself: the worker comes back meanwhile.
		time.AfterFunc(500*time.Millisecond, d.restart)
		params.StreamOptions = client.ChatCompletionStreamOptionsParam{}
		answer, err = c.Chat.Completions.New(ctx, params)
		if err != nil || answer.Choices[0].Message.Content != answerText {
			t.Errorf("after the restart: %v", err)
		}
	})
}
