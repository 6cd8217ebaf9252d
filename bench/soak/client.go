package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/tandem-llm/tandem/bench/sse"
)

// End is how a request ended for its client.
type End string

// The ends. Every request has one.
const (
	Finished End = "finished" // with a whole answer
	Left     End = "left"     // the client went away
	Refused  End = "refused"  // with one clear error
	Hung     End = "hung"     // it did not end
	Broken   End = "broken"   // in a way that the API does not have
)

// Answer is what a client got.
type Answer struct {
	Request *Request
	Mode    string // of the header Tandem-Mode
	End     End
	ID      string // of the gateway; empty if nothing named it
	Tokens  []int32
	Finish  string // finish reason
	Code    string // of an error
	Status  int    // of HTTP
	Served  string // by the header Tandem-Served
	Cached  int    // tokens of the prompt that came from a cache
	Why     string // of Hung and Broken: for people, without content
}

// maxAnswer bounds a whole answer that is no stream, in bytes.
const maxAnswer = 8 << 20

// client asks a fleet.
type client struct {
	url, model string
	http       *http.Client
	patience   time.Duration // longest wait for an end
}

func newClient(f *Fleet, patience time.Duration) *client {
	// No connection is used twice: that a server closes one in between is not what is tested.
	return &client{
		url: f.URL + "/v1/completions", model: f.Model, patience: patience,
		http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
}

type body struct {
	Model     string  `json:"model"`
	Prompt    []int32 `json:"prompt"`
	Max       int     `json:"max_tokens"`
	Stream    bool    `json:"stream"`
	IgnoreEOS bool    `json:"ignore_eos"`
	TokenIDs  bool    `json:"return_token_ids"`

	Temperature float32 `json:"temperature"`
	Seed        uint64  `json:"seed,omitempty"`
	TopP        float32 `json:"top_p,omitempty"`
	TopK        int     `json:"top_k,omitempty"`
	Frequency   float32 `json:"frequency_penalty,omitempty"`
	Repetition  float32 `json:"repetition_penalty,omitempty"`

	Options *options `json:"stream_options,omitempty"`
}

type options struct {
	Usage bool `json:"include_usage"`
}

var (
	errLeft    = errors.New("the client leaves")
	errPatient = errors.New("no end within the time for it")
)

// ask sends a request and returns how it ended. If stay is set its client does not
// leave.
func (c *client) ask(ctx context.Context, r *Request, mode string, stay bool) *Answer {
	a := &Answer{Request: r, Mode: mode}
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	hang := time.AfterFunc(c.patience, func() { cancel(errPatient) })
	defer hang.Stop()
	left := func(int) {}
	if !stay {
		if r.Leave.After > 0 {
			leaving := time.AfterFunc(r.Leave.After, func() { cancel(errLeft) })
			defer leaving.Stop()
		}
		left = func(tokens int) {
			if r.Leave.Tokens > 0 && tokens >= r.Leave.Tokens {
				cancel(errLeft)
			}
		}
	}
	err := c.exchange(waiting, a, left)
	switch cause := context.Cause(waiting); {
	case err == nil && a.Code == "":
		a.End = Finished
	case err == nil:
		a.End = Refused
		if a.Code == "deadline_exceeded" {
			a.End, a.Why = Hung, "the gateway ended it at its deadline"
		}
	case errors.Is(cause, errPatient):
		a.End, a.Why = Hung, fmt.Sprintf("no end within %v, %d tokens of %d came", c.patience, len(a.Tokens), r.Max)
	case cause != nil: // errLeft, or the whole run ends
		a.End = Left
	default:
		a.End, a.Why = Broken, err.Error()
	}
	return a
}

func (c *client) exchange(ctx context.Context, a *Answer, came func(tokens int)) error {
	r := a.Request
	doc := body{
		Model: c.model, Prompt: r.Prompt, Max: r.Max, Stream: r.Stream, IgnoreEOS: r.IgnoreEOS, TokenIDs: true,
		Temperature: r.Sampling.Temperature, Seed: r.Sampling.Seed, TopP: r.Sampling.TopP, TopK: r.Sampling.TopK,
		Frequency: r.Sampling.FrequencyPenalty, Repetition: r.Sampling.RepetitionPenalty,
	}
	if r.Stream {
		doc.Options = &options{Usage: true}
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Tandem-Mode", a.Mode)
	if a.Mode != modeColocated {
		req.Header.Set("Tandem-Order", string(r.Order))
	}
	res, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	a.Status, a.Served = res.StatusCode, res.Header.Get("Tandem-Served")
	usage := -1
	if a.Status == http.StatusOK && r.Stream {
		if usage, err = a.readStream(res.Body, came); err != nil {
			return err
		}
	} else {
		raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
		if err != nil {
			return err
		}
		if usage, err = a.take(raw, usage); err != nil {
			return err
		}
		if (a.Code == "") != (a.Status == http.StatusOK) {
			return fmt.Errorf("status %d with the error code %q", a.Status, a.Code)
		}
	}
	if a.Code != "" {
		return nil
	}
	return a.whole(usage)
}

// whole checks an answer that claims to be.
func (a *Answer) whole(usage int) error {
	n := len(a.Tokens)
	switch {
	case a.Finish == "":
		return errors.New("an answer without a finish reason")
	case n == 0 || n > a.Request.Max:
		return fmt.Errorf("an answer of %d tokens where 1 to %d were asked for", n, a.Request.Max)
	case a.Finish == "length" && n != a.Request.Max:
		return fmt.Errorf("an answer of %d tokens of %d ends with the reason length", n, a.Request.Max)
	case a.Finish == "stop" && a.Request.IgnoreEOS:
		return errors.New("an answer ends with the reason stop, though the end was to be ignored")
	case usage != n:
		return fmt.Errorf("an answer of %d tokens whose usage counts %d", n, usage)
	}
	return nil
}

// readStream reads events up to the one end that an answer has.
func (a *Answer) readStream(r io.Reader, came func(tokens int)) (usage int, err error) {
	usage = -1
	for in := sse.New(r); ; {
		data, odd, err := in.Next()
		if err != nil {
			return 0, err
		}
		if odd {
			return 0, errors.New("an event in a field named error")
		}
		if string(data) == "[DONE]" {
			return usage, nothingBehind(in)
		}
		if usage, err = a.take(data, usage); err != nil {
			return 0, err
		}
		if a.Code != "" {
			return 0, nothingBehind(in)
		}
		came(len(a.Tokens))
	}
}

// nothingBehind expects the end of a stream behind its last event.
func nothingBehind(in *sse.Reader) error {
	_, _, err := in.Next()
	switch {
	case err == nil:
		return errors.New("a stream goes on behind its end")
	case errors.Is(err, sse.ErrCut):
		return nil
	}
	return err
}

// take reads one document: an answer, a part of one, or an error. It returns the
// completion tokens of usage so far.
func (a *Answer) take(raw []byte, usage int) (int, error) {
	var doc struct {
		ID      string `json:"id"`
		Choices []struct {
			Finish   string  `json:"finish_reason"`
			TokenIDs []int32 `json:"token_ids"`
		} `json:"choices"`
		Usage *struct {
			Completion int `json:"completion_tokens"`
			Details    struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
		Error *struct {
			Message, Type, Code string
		} `json:"error"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return 0, errors.New("a document that is not of the API")
	}
	if e := doc.Error; e != nil {
		if e.Code == "" || e.Message == "" || e.Type == "" || a.Finish != "" {
			return 0, fmt.Errorf("no clear error: code %q, type %q, behind the finish reason %q", e.Code, e.Type, a.Finish)
		}
		a.Code = e.Code
		return usage, nil
	}
	if a.ID != "" && doc.ID != a.ID {
		return 0, errors.New("one stream has parts of two answers")
	}
	a.ID = doc.ID
	for _, c := range doc.Choices {
		if a.Finish != "" {
			return 0, errors.New("more comes after the finish reason")
		}
		a.Tokens = append(a.Tokens, c.TokenIDs...)
		a.Finish = c.Finish
	}
	if doc.Usage != nil {
		usage, a.Cached = doc.Usage.Completion, doc.Usage.Details.Cached
	}
	return usage, nil
}
