package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
)

// question is one request to a lab.
type question struct {
	prompt []int32
	max    int
	mode   string
	order  string // of a handoff; default: the gateway's
	stream bool
}

func (q question) String() string {
	kind := "whole"
	if q.stream {
		kind = "streamed"
	}
	return fmt.Sprintf("%s %s answer to %d tokens", kind, q.mode, len(q.prompt))
}

// asked is a question on its way, and then what came back.
type asked struct {
	question
	done   chan struct{}
	cancel context.CancelFunc // the client goes away
	count  atomic.Int32       // tokens received so far

	// Read after done.
	id     string
	tokens []int32
	finish string
	prompt int    // usage
	usage  int    // completion tokens
	code   string // of an error answer
	broken error  // the connection ended before an end of the answer
	odd    error  // the answer breaks the rules
}

// ask sends a question.
func (l *lab) ask(q question) *asked {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	a := &asked{question: q, done: make(chan struct{}), cancel: cancel}
	go func() {
		defer cancel()
		defer close(a.done)
		l.exchange(ctx, a)
	}()
	return a
}

func (l *lab) exchange(ctx context.Context, a *asked) {
	fields := map[string]any{
		"model": labModel, "prompt": a.question.prompt, "max_tokens": a.max, "temperature": 0, "ignore_eos": true,
		"return_token_ids": true, "stream": a.stream,
	}
	if a.stream {
		fields["stream_options"] = map[string]any{"include_usage": true}
	}
	body, err := json.Marshal(fields)
	if err != nil {
		a.odd = err
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		a.odd = err
		return
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Tandem-Mode", a.mode)
	if a.order != "" {
		req.Header.Set("Tandem-Order", a.order)
	}
	resp, err := l.client.Do(req)
	if err != nil {
		a.broken = err
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK && a.stream {
		a.readStream(resp.Body)
		return
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		a.broken = err
		return
	}
	a.take(raw)
	if (a.code == "") != (resp.StatusCode == http.StatusOK) {
		a.odd = fmt.Errorf("status %d with %s", resp.StatusCode, raw)
	}
	if a.code == "" && a.finish == "" {
		a.odd = fmt.Errorf("an answer without a finish reason: %s", raw)
	}
}

// readStream reads server-sent events up to the one end that an answer has.
func (a *asked) readStream(r io.Reader) {
	ended := false
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		data, ok := strings.CutPrefix(s.Text(), "data: ")
		switch {
		case s.Text() == "":
			continue
		case !ok || ended:
			a.odd = fmt.Errorf("event %q, after the end: %v", s.Text(), ended)
			return
		case data == "[DONE]":
			ended = true
			if a.finish == "" {
				a.odd = fmt.Errorf("an end without a finish reason")
			}
			continue
		}
		a.take([]byte(data))
		if a.odd != nil {
			return
		}
		ended = a.code != ""
	}
	if !ended {
		a.broken = fmt.Errorf("the stream ended early: %w", cmp(s.Err(), io.ErrUnexpectedEOF))
	}
}

// take reads one document: an answer, a part of one, or an error.
func (a *asked) take(raw []byte) {
	var doc struct {
		ID      string `json:"id"`
		Choices []struct {
			Finish   string  `json:"finish_reason"`
			TokenIDs []int32 `json:"token_ids"`
		} `json:"choices"`
		Usage *struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
		} `json:"usage"`
		Error *struct {
			Message, Type, Code string
		} `json:"error"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		a.odd = fmt.Errorf("%s: %w", raw, err)
		return
	}
	if doc.Error != nil {
		a.code = doc.Error.Code
		if a.code == "" || doc.Error.Message == "" || doc.Error.Type == "" || a.finish != "" {
			a.odd = fmt.Errorf("no clear error: %s", raw)
		}
		return
	}
	a.id = doc.ID
	for _, c := range doc.Choices {
		if a.finish != "" {
			a.odd = fmt.Errorf("more after the finish reason: %s", raw)
		}
		a.tokens = append(a.tokens, c.TokenIDs...)
		a.count.Store(int32(len(a.tokens)))
		a.finish = c.Finish
	}
	if doc.Usage != nil {
		a.prompt, a.usage = doc.Usage.Prompt, doc.Usage.Completion
	}
}

// wait returns when the answer has ended. It must be whole, or one clear error; it
// reports whether it is whole.
func (l *lab) wait(a *asked) bool {
	l.t.Helper()
	<-a.done
	switch {
	case a.odd != nil:
		l.t.Errorf("%s: %v", a, a.odd)
		return false
	case a.broken != nil:
		l.t.Errorf("%s: broken: %v", a, a.broken)
		return false
	}
	l.checked = append(l.checked, a)
	if a.code != "" {
		l.t.Logf("%s: error %s after %d tokens", a, a.code, len(a.tokens))
		return false
	}
	if len(a.tokens) != a.max || a.finish != "length" || a.prompt != len(a.question.prompt) || a.usage != a.max {
		l.t.Errorf("%s: %d tokens of %d, finish %q, usage %d + %d", a, len(a.tokens), a.max, a.finish, a.prompt, a.usage)
		return false
	}
	return true
}

// alone asks a question with nobody else around and compares the answer's tokens
// with the colocated answer of the lab's first workers.
func (l *lab) alone(q question) {
	l.t.Helper()
	q.mode = "colocated"
	key := fmt.Sprint(q.prompt)
	want, ok := l.answers[key]
	if !ok {
		a := l.ask(q)
		if !l.wait(a) {
			l.t.Fatalf("no answer from a lab at rest: %s", a.code)
		}
		want = a.tokens
		l.answers[key] = want
	}
	q.mode = "disaggregated"
	a := l.ask(q)
	if !l.wait(a) {
		l.t.Fatalf("the next request does not work: %s", a.code)
	}
	if !slices.Equal(a.tokens, want) {
		l.t.Errorf("%s: tokens %v, colocated %v", a, a.tokens, want)
	}
}

// lengths of the background requests' prompts.
var crowdLengths = []int{1, 63, 65, 130, 300, 511, 640, 1000}

// crowd starts eight requests of mixed lengths, some streamed, one colocated, and
// returns when all of them have their first token.
func (l *lab) crowd(max int) []*asked {
	l.t.Helper()
	var all []*asked
	for i, n := range crowdLengths {
		q := question{prompt: prompt(n, uint64(n)), max: max, mode: "disaggregated", stream: i%2 == 0}
		q.prompt[0] = int32(i + 1)
		if i == 5 {
			q.mode = "colocated"
		}
		all = append(all, l.ask(q))
	}
	for _, a := range all {
		if !a.stream {
			continue
		}
		l.poll(func() string {
			select {
			case <-a.done:
				return ""
			default:
			}
			if a.count.Load() == 0 {
				return a.String()
			}
			return ""
		})
	}
	return all
}

// victim is the question that faults happen to.
func victim(mode string) question {
	q := question{prompt: prompt(victimTokens, 9), max: victimMax - 1, mode: mode, stream: true}
	q.prompt[0] = victimToken
	return q
}
