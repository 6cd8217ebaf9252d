package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/tandem-llm/tandem/bench/sse"
)

// maxError is the most bytes that are read of an answer that is no stream.
const maxError = 4 << 10

var errMalformed = errors.New("not an event of the API")

// client sends requests to one target.
type client struct {
	target Target
	http   *http.Client
	fresh  *http.Client // the same, with a connection of its own for every request
	path   string
	model  string

	timeout time.Duration // of one request
	fixed   bool          // answers are asked to have a fixed length
}

// failure is why a request does not count.
type failure struct {
	kind string // one of a few, or "status NNN"
	why  string // for people
}

func (f *failure) Error() string { return f.kind + ": " + f.why }

// Kinds of failures beside "status NNN".
const (
	kindConnect   = "connection"
	kindTimeout   = "timeout"
	kindType      = "content type"
	kindMalformed = "malformed stream"
	kindCut       = "cut stream"
	kindError     = "error in stream"
	kindEmpty     = "no text"
	kindShort     = "short answer"
)

func newClient(ctx context.Context, t Target, load Load) (*client, error) {
	c := &client{target: t, path: "/completions", model: t.Model, timeout: load.Timeout, fixed: load.IgnoreEOS}
	c.target.URL = strings.TrimRight(t.URL, "/")
	if load.Chat {
		c.path = "/chat/completions"
	}
	// No proxy: the endpoint is what is measured.
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     time.Second, // before servers close them
		MaxIdleConns:        load.inFlight(),
		MaxIdleConnsPerHost: load.inFlight(),
		DisableCompression:  true,
	}
	single := transport.Clone()
	single.DisableKeepAlives = true
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.http = &http.Client{Transport: transport, CheckRedirect: stay}
	c.fresh = &http.Client{Transport: single, CheckRedirect: stay}
	if c.model != "" {
		return c, nil
	}
	var err error
	c.model, err = c.firstModel(ctx)
	return c, err
}

// firstModel asks which model is served.
func (c *client) firstModel(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.target.URL+"/models", nil)
	if err != nil {
		return "", err
	}
	c.dress(req)
	res, err := c.http.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask which model is served: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("ask which model is served: %w", refused(res))
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, sse.MaxLine)).Decode(&list); err != nil || len(list.Data) == 0 || list.Data[0].ID == "" {
		return "", fmt.Errorf("%s/models lists no model: name one, and check that the URL ends with /v1", c.target.URL)
	}
	return list.Data[0].ID, nil
}

func (c *client) dress(req *http.Request) {
	for name, values := range c.target.Header {
		req.Header[name] = values
	}
	if c.target.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.target.Key)
	}
}

// answer is a whole stream.
type answer struct {
	prompt, cached int  // tokens of the prompt, and of these from a cache
	output         int  // tokens of the answer
	metered        bool // the counts are the server's; else output counts events
	events         int  // events with text
	again          bool // sent twice, see send
	end            time.Time
}

// watch is told about a stream's text as it comes.
type watch interface {
	text(at time.Time) // an event with text is complete
}

// event is what matters of a chunk.
type event struct {
	Choices []struct {
		Text         string `json:"text"`
		FinishReason string `json:"finish_reason"`
		Delta        struct {
			Content          string `json:"content"`
			Reasoning        string `json:"reasoning"`
			ReasoningContent string `json:"reasoning_content"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// ask sends one request and reads the stream to its end. The error is a
// *failure, or ctx's when that has ended.
func (c *client) ask(ctx context.Context, r request, w watch) (*answer, error) {
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(limited, http.MethodPost, c.target.URL+c.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, &failure{kindConnect, err.Error()}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	c.dress(req)
	a, err := c.exchange(req, w)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case limited.Err() != nil:
		return nil, &failure{kindTimeout, "no whole answer within " + c.timeout.String()}
	case err != nil:
		return nil, err
	case a.events == 0:
		return nil, &failure{kindEmpty, "the stream was whole and without text"}
	case c.fixed && a.metered && a.output < r.output:
		return nil, &failure{kindShort, fmt.Sprintf("%d tokens of %d, though the end was to be ignored", a.output, r.output)}
	}
	return a, nil
}

func (c *client) exchange(req *http.Request, w watch) (*answer, error) {
	res, again, err := c.send(req)
	if err != nil {
		return nil, &failure{kindConnect, err.Error()}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, refused(res)
	}
	if t, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || t != "text/event-stream" {
		return nil, &failure{kindType, fmt.Sprintf("a stream was asked for, %s came", printable(res.Header.Get("Content-Type")))}
	}
	a, err := read(sse.New(res.Body), w)
	if err != nil {
		return nil, err
	}
	a.again = again
	// The connection can be used again if its answer was read to the end, which a
	// server should not make wait for.
	drained := time.AfterFunc(time.Second, func() { res.Body.Close() })
	_, _ = io.CopyN(io.Discard, res.Body, maxError)
	drained.Stop()
	return a, nil
}

// send sends a request, once more if the connection had been used before and ended
// without an answer: a server may close one at any time between two requests. The
// time that this takes counts.
func (c *client) send(req *http.Request) (res *http.Response, again bool, err error) {
	var reused, answered atomic.Bool
	trace := &httptrace.ClientTrace{
		GotConn:              func(i httptrace.GotConnInfo) { reused.Store(i.Reused) },
		GotFirstResponseByte: func() { answered.Store(true) },
	}
	first := req.WithContext(httptrace.WithClientTrace(req.Context(), trace))
	res, err = c.http.Do(first)
	if err == nil || !reused.Load() || answered.Load() || req.Context().Err() != nil {
		return res, false, err
	}
	if req.Body, err = req.GetBody(); err != nil {
		return nil, true, err
	}
	res, err = c.fresh.Do(req)
	return res, true, err
}

// read reads a stream up to and including [DONE].
func read(in *sse.Reader, w watch) (*answer, error) {
	a := &answer{}
	finished := false
	for {
		data, errorField, err := in.Next()
		now := time.Now()
		switch {
		case errors.Is(err, sse.ErrCut):
			return nil, &failure{kindCut, err.Error()}
		case errors.Is(err, sse.ErrLine):
			return nil, &failure{kindMalformed, err.Error()}
		case err != nil:
			return nil, &failure{kindCut, err.Error()}
		case errorField:
			return nil, &failure{kindError, said(data)}
		case string(data) == "[DONE]":
			if !finished {
				return nil, &failure{kindCut, "[DONE] without a finish reason"}
			}
			if !a.metered {
				a.output = a.events
			}
			a.end = now
			return a, nil
		}
		var e event
		if err := json.Unmarshal(data, &e); err != nil {
			return nil, &failure{kindMalformed, errMalformed.Error()}
		}
		if len(e.Error) > 0 && string(e.Error) != "null" {
			return nil, &failure{kindError, said(e.Error)}
		}
		for _, choice := range e.Choices {
			d := choice.Delta
			if choice.Text != "" || d.Content != "" || d.Reasoning != "" || d.ReasoningContent != "" {
				a.events++
				w.text(now)
			}
			finished = finished || choice.FinishReason != ""
		}
		if u := e.Usage; u != nil {
			if u.Prompt < 0 || u.Completion < 0 || u.Details.Cached < 0 || u.Details.Cached > u.Prompt {
				return nil, &failure{kindMalformed, "impossible token counts"}
			}
			a.metered, a.prompt, a.output, a.cached = true, u.Prompt, u.Completion, u.Details.Cached
		}
	}
}

// refused describes an answer that is no stream.
func refused(res *http.Response) *failure {
	raw, _ := io.ReadAll(io.LimitReader(res.Body, maxError))
	return &failure{fmt.Sprintf("status %d", res.StatusCode), said(raw)}
}

// said finds what a server says about an error.
func said(raw []byte) string {
	raw = raw[:min(len(raw), maxError)]
	var e struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(raw, &e) == nil {
		if e.Message != "" {
			return printable(e.Message)
		}
		if len(e.Error) > 0 {
			return said(e.Error)
		}
	}
	return printable(string(raw))
}

// printable cuts and cleans what a server sent, for a terminal.
func printable(s string) string {
	const most = 200
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if s = strings.TrimSpace(s); s == "" {
		return "nothing"
	}
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return s
}
