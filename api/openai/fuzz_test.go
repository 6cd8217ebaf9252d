package openai

import (
	"encoding/json"
	"testing"
)

// FuzzDecode feeds any body to both decoders: no panic, an answer or a 400, and what one accepts is
// within the documented limits and in no way looser than encoding/json.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `[`, `{"a":{"b":[1,2,{"c":"\ud800"}]}}`, chatStart + `}`, textStart + `}`,
		`{"model":"m","prompt":[[1],"x"],"n":2,"stop":["a"],"logit_bias":{"1":2},"seed":-1}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"\\\""}]}],"stream":true,"stream_options":{}}`,
		"{\"model\" :\t\"m\",\r\n\"prompt\":\"\\u0000\", \"temperature\":0.5e0}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := DecodeChat(body)
		check(t, body, err)
		if err == nil {
			checkGeneration(t, c.Generation)
			if len(c.Messages) == 0 || len(c.Messages) > MaxMessages {
				t.Errorf("%d messages", len(c.Messages))
			}
		}
		p, err := DecodeCompletion(body)
		check(t, body, err)
		if err == nil {
			checkGeneration(t, p.Generation)
			for _, p := range p.Prompts {
				if (p.Text == "") == (len(p.Tokens) == 0) {
					t.Error("a prompt is either text or tokens")
				}
			}
		}
	})
}

func check(t *testing.T, body []byte, err *Error) {
	if err == nil {
		if !json.Valid(body) {
			t.Error("accepted a body that is no JSON")
		}
		return
	}
	if err.Status != 400 || err.Code == "" || err.Message == "" || !json.Valid(err.Body()) {
		t.Errorf("error %+v", err)
	}
}

func checkGeneration(t *testing.T, g Generation) {
	if g.Model == "" || g.N < 1 || g.N > MaxSamples || g.MaxTokens < 0 || g.TopK < 0 ||
		!(g.Temperature >= 0 && g.Temperature <= 2) || !(g.TopP >= 0 && g.TopP <= 1) || !(g.MinP >= 0 && g.MinP <= 1) ||
		!(g.RepetitionPenalty >= 0 && g.RepetitionPenalty <= 2) ||
		len(g.Stop) > MaxStops || len(g.LogitBias) > MaxBias || g.TopLogprobs > MaxTopLogprobs {
		t.Errorf("outside the limits: %+v", g)
	}
	for i := 1; i < len(g.LogitBias); i++ {
		if g.LogitBias[i-1].Token >= g.LogitBias[i].Token {
			t.Error("logit_bias not ascending")
		}
	}
}
