package e2e

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/engine/llama"
	"github.com/tandem-llm/tandem/model/tiny"
)

const (
	privateText   = "Jackdaws love my big sphinx of quartz, whispered the nervous archivist Ottoline Zhu on 17 Brumaire"
	privateSystem = "Pseudonymous courier Wexford must never mention the heliotrope envelope"
	privateStop   = "quagmire-stop-sequence"
	privateUser   = "subscriber-Xanthippe-4711"
	privateKey    = "privacy-key-5f2c-do-not-print"
	privateBroken = "broken-request-with-Mnemosyne-inside"
)

// TestNoContentLeaks makes a fleet that logs all it can serve, refuse, cancel and
// lose requests, and then searches everything that it wrote, showed or left for
// their content.
func TestNoContentLeaks(t *testing.T) {
	lib, err := install.Ensure(t.Context(), install.Options{})
	if err != nil {
		t.Fatal(err)
	}
	model, err := tiny.Cached(tiny.NemotronHMoE)
	if err != nil {
		t.Fatal(err)
	}
	vocab, err := llama.OpenVocab(lib.Dir, model)
	if err != nil {
		t.Fatal(err)
	}
	// Everything that the fleet writes goes below one directory.
	root := t.TempDir()
	for name, dir := range map[string]string{"TMPDIR": "tmp", "HOME": "home", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv(name, filepath.Join(root, dir))
	}
	t.Setenv(install.EnvDir, lib.Dir)
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("tenant "+privateKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	p := &privacy{t: t, content: newContent(), seen: map[string][]byte{}}
	tokens, ask := prompt(96, 77), ask{prompt: prompt(150, 78), max: 40}
	p.content.text(privateText, "a prompt")
	p.content.text(privateSystem, "a system message")
	p.content.text(privateBroken, "a refused request")
	p.content.needle(privateStop, "a stop string")
	p.content.needle(privateUser, "a user's name")
	p.content.needle(privateKey, "an API key")
	p.content.tokens(tokens, "a token prompt")
	p.content.tokens(ask.prompt, "a token prompt")
	spelled, err := vocab.Tokenize(privateText, false, true)
	if err != nil {
		t.Fatal(err)
	}
	p.content.tokens(spelled, "a prompt")

	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.traces = append(p.traces, raw...)
	}))
	t.Cleanup(collector.Close)
	t.Cleanup(func() { p.search(root) }) // runs when the fleet has stopped
	p.fleet = up(t, "--otlp="+collector.URL, "--model="+model, "--model-name=private", "--slots=4", "--context=1024", "--log-level=debug", "--page-tokens=64", "--api-keys="+keys)
	p.good(tokens)
	p.refused()
	p.cancelled()
	p.killed(ask)
	for _, process := range []string{"gateway", "prefill-0", "decode-0"} {
		p.see("metrics of "+process, p.scrape(process))
	}
	p.handoffs()
	p.see("files of the running fleet", p.files(root))
}

// handoffs shows the records of what was served in every form that there is.
func (p *privacy) handoffs() {
	var raw []byte
	p.fleet.eventually("records of all that was served", func() bool { // those of a killed worker wait for it
		resp, err := http.Get(p.fleet.url + "/tandem/handoffs")
		if err != nil {
			p.t.Fatal(err)
		}
		defer resp.Body.Close()
		if raw, err = io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			p.t.Fatal(resp.StatusCode, err)
		}
		for _, want := range []string{"handed-off", "served-whole", "cancelled", "attention_kv", "worker_lost"} {
			if !bytes.Contains(raw, []byte(want)) {
				return false
			}
		}
		return true
	})
	p.see("records", raw)
	for _, args := range [][]string{{}, {"--json"}, {"--last"}, {"--id=2"}, {"--id=1"}, {"--id=nobody"}} {
		out, err := exec.Command(binary, append([]string{"handoffs", "--url=" + p.fleet.url}, args...)...).CombinedOutput()
		if (err != nil) != slices.Contains(args, "--id=nobody") {
			p.t.Errorf("tandem handoffs %v: %v: %s", args, err, out)
		}
		p.see("tandem handoffs", out)
	}
}

// search looks through everything that the fleet wrote.
func (p *privacy) search(root string) {
	if p.fleet == nil {
		return // it did not start, and said why
	}
	p.see("logs", []byte(p.fleet.logs()))
	p.mu.Lock()
	p.see("traces", p.traces)
	p.mu.Unlock()
	trace, _ := hex.DecodeString(callersTrace)
	for _, span := range []string{"admission", "prefill", "transfer", "commit", string(trace)} {
		if !bytes.Contains(p.seen["traces"], []byte(span)) {
			p.t.Errorf("%q is not among what the collector was sent", span)
		}
	}
	p.see("progress lines", p.lines())
	p.see("lifecycle events", p.files(p.fleet.traces))
	p.see("files left", p.files(root))
	if left, _ := filepath.Glob(filepath.Join(root, "tmp", "*")); len(left) != 0 {
		p.t.Errorf("left in the temporary directory: %v", left)
	}
	for _, name := range slices.Sorted(maps.Keys(p.seen)) {
		if len(p.seen[name]) == 0 && name != "files left" {
			p.t.Errorf("%s: nothing to search", name)
		}
		for _, leak := range p.content.find(p.seen[name]) {
			p.t.Errorf("%s: found %s", name, leak)
		}
	}
	for _, process := range []string{"gateway", "prefill-0", "decode-0"} {
		if !strings.Contains(p.fleet.logs(), "process="+process) {
			p.t.Errorf("the log of %s is not among what was searched", process)
		}
	}
}

type privacy struct {
	t       *testing.T
	fleet   *fleet
	content *content
	seen    map[string][]byte // what was found where

	mu     sync.Mutex
	traces []byte // what the collector was sent; guarded by mu
}

func (p *privacy) see(where string, data []byte) { p.seen[where] = append(p.seen[where], data...) }

// callersTrace is what every request says it is a part of.
const callersTrace = "4bf92f3577b34da6a3ce929d0e0e4736"

// post sends a body with the tenant's key, unless headers say otherwise.
func (p *privacy) post(ctx context.Context, path, body string, headers map[string]string) *http.Response {
	p.t.Helper()
	all := map[string]string{"Authorization": "Bearer " + privateKey, "Traceparent": "00-" + callersTrace + "-00f067aa0ba902b7-01"}
	maps.Copy(all, headers)
	return p.fleet.post(ctx, path, body, all)
}

func chatBody(change object) object {
	o := object{
		"model": "private", "max_tokens": 48, "seed": 3, "stop": []string{privateStop}, "user": privateUser,
		"messages": []object{{"role": "system", "content": privateSystem}, {"role": "user", "content": privateText}},
	}
	maps.Copy(o, change)
	return o
}

// good sends requests that are answered, and forbids their answers.
func (p *privacy) good(tokens []int32) {
	completion := object{
		"model": "private", "prompt": tokens, "max_tokens": 48, "seed": 4, "logprobs": 3, "return_token_ids": true, "n": 2, "user": privateUser,
	}
	text := object{"model": "private", "prompt": []string{privateText}, "max_tokens": 32, "return_token_ids": true}
	for _, r := range []struct {
		path, mode string
		body       object
	}{
		{"/v1/chat/completions", "disaggregated", chatBody(object{"logprobs": true, "top_logprobs": 4})},
		{"/v1/chat/completions", "colocated", chatBody(nil)},
		{"/v1/completions", "disaggregated", completion},
		{"/v1/completions", "colocated", completion},
		{"/v1/completions", "disaggregated", text},
	} {
		resp := p.post(p.t.Context(), r.path, marshal(r.body), map[string]string{"Tandem-Mode": r.mode})
		var a struct {
			Choices []struct {
				Text    string
				Message struct{ Content string }
				Tokens  []int32 `json:"token_ids"`
			}
		}
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err := json.Unmarshal(raw, &a); err != nil || resp.StatusCode != http.StatusOK || len(a.Choices) == 0 {
			p.t.Fatalf("%s %s: %d %v %s", r.mode, r.path, resp.StatusCode, err, raw)
		}
		if err != nil {
			p.t.Fatal(err)
		}
		for _, c := range a.Choices {
			p.content.text(c.Text+c.Message.Content, "an answer")
			if r.path == "/v1/completions" && len(c.Tokens) < 30 {
				p.t.Fatalf("%d token ids in %s", len(c.Tokens), raw)
			}
			p.content.tokens(c.Tokens, "an answer")
		}
	}
}

// refused sends requests that are refused, with content in every place that an
// error could repeat.
func (p *privacy) refused() {
	long := strings.Repeat(privateText+" ", 100)
	const chat, completions = "/v1/chat/completions", "/v1/completions"
	for _, r := range []struct {
		path, body string
		headers    map[string]string
		status     int
	}{
		{chat, `{"model":"private","messages":[{"role":"user","content":"` + privateBroken + `"`, nil, 400},
		{chat, privateBroken, nil, 400},
		{chat, `"` + privateBroken + `"`, nil, 400},
		{chat, "{\"model\":\"private\",\"x\":\"" + privateBroken + "\xff\"}", nil, 400},
		{chat, marshal(chatBody(object{"model": privateBroken})), nil, 404},
		{chat, marshal(chatBody(object{"tools": privateBroken})), nil, 400},
		{chat, marshal(chatBody(object{"response_format": object{"type": privateBroken}})), nil, 400},
		{chat, marshal(chatBody(object{"stop": []any{privateBroken, 7}})), nil, 400},
		{chat, marshal(chatBody(object{"stop": strings.Repeat(privateBroken, 100)})), nil, 400},
		{chat, marshal(chatBody(object{"temperature": privateBroken})), nil, 400},
		{chat, marshal(chatBody(object{"seed": privateBroken})), nil, 400},
		{chat, marshal(chatBody(object{"user": object{"name": privateBroken}})), nil, 400},
		{chat, marshal(chatBody(object{"metadata": object{"a": 7, "b": privateBroken}})), nil, 400},
		{chat, marshal(chatBody(object{"service_tier": privateBroken})), nil, 400},
		{chat, marshal(chatBody(object{"messages": privateBroken})), nil, 400},
		{chat, marshal(chatBody(object{"messages": []object{{"role": privateBroken, "content": privateBroken}}})), nil, 400},
		{chat, marshal(chatBody(object{"messages": []object{{"role": "user", "content": []object{{"type": privateBroken, "text": privateBroken}}}}})), nil, 400},
		{chat, marshal(chatBody(object{"messages": []object{{"role": "user", "content": long}}, "max_tokens": 1})), nil, 400},
		{chat, marshal(chatBody(object{"logit_bias": object{privateBroken: 1}})), nil, 400},
		{completions, marshal(object{"model": "private", "prompt": long}), nil, 400},
		{completions, marshal(object{"model": "private", "prompt": object{"text": privateBroken}}), nil, 400},
		{completions, marshal(object{"model": "private", "prompt": []any{privateBroken, 5}}), nil, 400},
		{completions, marshal(object{"model": "private", "prompt": append(prompt(96, 77), 1<<30)}), nil, 400},
		{completions, marshal(object{"model": "private", "prompt": []any{251, 252, 253, privateBroken}}), nil, 400},
		{completions, marshal(object{"model": "private", "prompt": privateText, "suffix": privateBroken}), nil, 400},
		{chat, marshal(chatBody(nil)), map[string]string{"Authorization": "Bearer " + privateBroken}, 401},
		{chat, marshal(chatBody(nil)), map[string]string{"Tandem-Mode": privateBroken}, 400},
		{chat, marshal(chatBody(nil)), map[string]string{"X-Request-Id": privateBroken + " " + privateBroken}, 400},
		{chat, marshal(chatBody(nil)), map[string]string{"Content-Type": "text/" + privateBroken}, 415},
		{"/v1/" + privateBroken + "?q=" + privateBroken, marshal(chatBody(nil)), nil, 404},
	} {
		resp := p.post(p.t.Context(), r.path, r.body, r.headers)
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != r.status {
			p.t.Errorf("%.80s: %d %s, %v; want %d", r.body, resp.StatusCode, raw, err, r.status)
		}
		p.see("error answers", raw)
		for k, v := range resp.Header {
			p.see("error headers", []byte(k+": "+strings.Join(v, ",")+"\n"))
		}
	}
}

// cancelled lets clients leave in the middle of their answers.
func (p *privacy) cancelled() {
	for _, mode := range []string{"disaggregated", "colocated"} {
		ctx, cancel := context.WithCancel(p.t.Context())
		resp := p.post(ctx, "/v1/chat/completions", marshal(chatBody(object{"stream": true, "max_tokens": 600, "ignore_eos": true})), map[string]string{"Tandem-Mode": mode})
		if _, err := resp.Body.Read(make([]byte, 64)); err != nil {
			p.t.Fatal(err)
		}
		cancel()
		resp.Body.Close()
	}
	p.fleet.eventually("the end of the cancelled requests", func() bool {
		return strings.Count(p.fleet.logs(), "outcome=cancelled") >= 2
	})
}

// killed kills the decode worker under a request, which is computed again.
func (p *privacy) killed(a ask) {
	resp := p.post(p.t.Context(), "/v1/completions", marshal(object{
		"model": "private", "prompt": a.prompt, "max_tokens": 600, "ignore_eos": true, "stream": true, "seed": 9, "return_token_ids": true,
	}), nil)
	defer resp.Body.Close()
	if _, err := resp.Body.Read(make([]byte, 64)); err != nil {
		p.t.Fatal(err)
	}
	p.fleet.kill("decode-0")
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.HasSuffix(rest, []byte("data: [DONE]\n\n")) {
		p.t.Errorf("the answer ends with %q, %v", tail(string(rest), 300), err)
	}
	if !strings.Contains(p.fleet.logs(), "request retried") {
		p.t.Error("the request did not notice the loss of its worker: the answer was too short for this test")
	}
	text := ""
	var ids []int32
	for line := range strings.Lines(string(rest)) {
		var c struct {
			Choices []struct {
				Text   string
				Tokens []int32 `json:"token_ids"`
			}
		}
		if data, ok := strings.CutPrefix(line, "data: {"); ok && json.Unmarshal([]byte("{"+data), &c) == nil && len(c.Choices) > 0 {
			text += c.Choices[0].Text
			ids = append(ids, c.Choices[0].Tokens...)
		}
	}
	p.content.text(text, "an answer")
	p.content.tokens(ids, "an answer")
	p.fleet.waitFor(func(l progressLine) bool { return l.Event == "metrics" && l.Process == "decode-0" }, 2, "a new decode worker")
}

// scrape returns all metrics of a process.
func (p *privacy) scrape(process string) []byte {
	p.t.Helper()
	url := p.fleet.url
	p.fleet.mu.Lock()
	for _, l := range p.fleet.lines {
		if l.Event == "metrics" && l.Process == process {
			url = "http://" + l.HTTP
		}
	}
	p.fleet.mu.Unlock()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return raw
}

// files returns the names and contents of all files below a directory, but not the
// contents of the run's keys and certificates: secrets, and of nobody's content.
func (p *privacy) files(root string) []byte {
	p.t.Helper()
	var all []byte
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		all = append(append(all, d.Name()...), '\n')
		if filepath.Ext(path) == ".pem" {
			return nil
		}
		raw, err := os.ReadFile(path)
		all = append(all, raw...)
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return all
}

func (p *privacy) lines() []byte {
	p.fleet.mu.Lock()
	defer p.fleet.mu.Unlock()
	var all []byte
	for _, l := range p.fleet.lines {
		all = append(append(all, marshal(l)...), '\n')
	}
	return all
}
