package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem/engine/install"
)

// TestBadRequests: each is answered with one error that names what is wrong, and
// the next request works.
func TestBadRequests(t *testing.T) {
	f := up(t, "--slots=2", "--context=512")
	const chat, completions = "/v1/chat/completions", "/v1/completions"
	messages := []object{{"role": "user", "content": "Hello"}}
	with := func(change object) string {
		o := object{"model": f.model, "messages": messages, "max_tokens": 4}
		for k, v := range change {
			o[k] = v
		}
		return marshal(o)
	}
	tokens := func(n, most int) string {
		return marshal(object{"model": f.model, "prompt": prompt(n, 5), "max_tokens": most, "ignore_eos": true})
	}
	for _, tt := range []struct {
		name, path, body string
		header           [2]string
		status           int
		code, param      string
	}{
		{name: "no JSON", path: chat, body: "Hello", status: 400, code: "invalid_json"},
		{name: "cut JSON", path: chat, body: with(nil)[:40], status: 400, code: "invalid_json"},
		{name: "two values", path: chat, body: with(nil) + "{}", status: 400, code: "invalid_json"},
		{name: "array", path: chat, body: "[]", status: 400, code: "invalid_json"},
		{name: "no UTF-8", path: chat, body: "{\"model\":\"\xff\"}", status: 400, code: "invalid_json"},
		{name: "deep", path: chat, body: strings.Repeat("[", 100000) + strings.Repeat("]", 100000), status: 400, code: "invalid_json"},
		{name: "empty", path: chat, status: 400, code: "invalid_json"},
		{name: "key given twice", path: chat, body: `{"model":"a","model":"b"}`, status: 400, code: "duplicate_parameter", param: "model"},
		{name: "no model", path: chat, body: with(object{"model": nil}), status: 400, code: "missing_required_parameter", param: "model"},
		{name: "unknown model", path: chat, body: with(object{"model": "gpt-none"}), status: 404, code: "model_not_found", param: "model"},
		{name: "unknown field", path: chat, body: with(object{"bogus": 1}), status: 400, code: "unknown_parameter", param: "bogus"},
		{name: "tools", path: chat, body: with(object{"tools": []any{}}), status: 400, code: "unsupported_parameter", param: "tools"},
		{name: "JSON answers", path: chat, body: with(object{"response_format": object{"type": "json_object"}}), status: 400, code: "unsupported_value", param: "response_format"},
		{name: "suffix", path: completions, body: marshal(object{"model": f.model, "prompt": "a", "suffix": "b"}), status: 400, code: "unsupported_parameter", param: "suffix"},
		{name: "image", path: chat, body: with(object{"messages": []object{{"role": "user", "content": []object{{"type": "image_url"}}}}}), status: 400, code: "unsupported_parameter", param: "messages[0].content[0].type"},
		{name: "no messages", path: chat, body: with(object{"messages": []object{}}), status: 400, code: "invalid_value", param: "messages"},
		{name: "too hot", path: chat, body: with(object{"temperature": 9}), status: 400, code: "invalid_value", param: "temperature"},
		{name: "fraction", path: chat, body: with(object{"n": 1.5}), status: 400, code: "invalid_type", param: "n"},
		{name: "foreign token", path: completions, body: marshal(object{"model": f.model, "prompt": []int{1, 1 << 30}}), status: 400, code: "invalid_value", param: "prompt"},
		{name: "prompt too long", path: completions, body: tokens(600, 4), status: 400, code: "context_length_exceeded", param: "prompt"},
		{name: "prompt fills the context", path: completions, body: tokens(512, 1), status: 400, code: "context_length_exceeded", param: "prompt"},
		{name: "answer too long", path: completions, body: tokens(500, 13), status: 400, code: "context_length_exceeded", param: "prompt"},
		{name: "chat too long", path: chat, body: with(object{"messages": []object{{"role": "user", "content": strings.Repeat("long ", 600)}}}), status: 400, code: "context_length_exceeded", param: "messages"},
		{name: "body too large", path: chat, body: `{"x":"` + strings.Repeat("a", 9<<20) + `"}`, status: 413, code: "request_too_large"},
		{name: "order", path: chat, body: with(nil), header: [2]string{"Tandem-Order", "both"}, status: 400, code: "unsupported_header", param: "Tandem-Order"},
		{name: "mode", path: chat, body: with(nil), header: [2]string{"Tandem-Mode", "fast"}, status: 400, code: "unsupported_header", param: "Tandem-Mode"},
		{name: "form", path: chat, body: with(nil), header: [2]string{"Content-Type", "application/x-www-form-urlencoded"}, status: 415, code: "unsupported_media_type"},
		{name: "unknown URL", path: "/v1/embeddings", body: with(nil), status: 404, code: "unknown_url"},
	} {
		headers := map[string]string{}
		if tt.header[0] != "" {
			headers[tt.header[0]] = tt.header[1]
		}
		resp := f.post(t.Context(), tt.path, tt.body, headers)
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		var got struct {
			Error struct{ Message, Type, Code, Param string }
		}
		if err != nil || json.Unmarshal(raw, &got) != nil {
			t.Errorf("%s: %d %q %v", tt.name, resp.StatusCode, raw, err)
			continue
		}
		if e := got.Error; resp.StatusCode != tt.status || e.Code != tt.code || e.Param != tt.param || e.Message == "" || e.Type == "" {
			t.Errorf("%s: %d %+v, want %d %s for %q", tt.name, resp.StatusCode, e, tt.status, tt.code, tt.param)
		}
		if resp := f.post(t.Context(), completions, tokens(20, 2), nil); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: the next request is answered with %d", tt.name, resp.StatusCode)
		} else {
			resp.Body.Close()
		}
	}
	// The longest request that fits is served whole.
	if got := f.complete(ask{prompt: prompt(500, 5), max: 12}); got.Usage.Completion != 12 {
		t.Errorf("a request that fills the context: %+v", got.Usage)
	}
	resp, err := http.Get(f.url + chat)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET %s: %d", chat, resp.StatusCode)
	}
}

// TestFullCache: requests that do not fit beside others wait for their turn, in
// both modes; one that can never fit is refused at once.
func TestFullCache(t *testing.T) {
	const cells = 768 // two requests of 300 tokens fit, and no third
	f := up(t, "--slots=4", "--context=1024", "--cells="+strconv.Itoa(cells), "--page-tokens=64")
	for _, mode := range []string{"disaggregated", "colocated"} {
		alone := f.complete(ask{prompt: prompt(260, 1), max: 40, mode: mode})
		var wg sync.WaitGroup
		for i := range 7 {
			wg.Go(func() {
				a := ask{prompt: prompt(260, uint64(1+i)), max: 40, mode: mode}
				got, err := f.try(t.Context(), a)
				if err != nil || len(got.Tokens) != 40 {
					t.Errorf("%s, request %d: %d tokens, %v", mode, i, len(got.Tokens), err)
				}
			})
		}
		wg.Wait()
		if again := f.complete(ask{prompt: prompt(260, 1), max: 40, mode: mode}); !slices.Equal(again.Tokens, alone.Tokens) {
			t.Errorf("%s: another answer after the cache was full", mode)
		}
		resp := f.post(t.Context(), "/v1/completions", marshal(object{"model": f.model, "prompt": prompt(cells, 1), "max_tokens": 40}), map[string]string{"Tandem-Mode": mode})
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(raw), "context_length_exceeded") {
			t.Errorf("%s: a request that never fits: %d %s %v", mode, resp.StatusCode, raw, err)
		}
	}
	for _, worker := range []string{"prefill-0", "decode-0"} {
		if n := f.metric(worker, `tandem_worker_cells{state="total"}`); n != cells {
			t.Errorf("%s has %v cells, want %d", worker, n, cells)
		}
		for _, state := range []string{"active", "pinned", "reserved"} {
			f.eventually("no "+state+" cells of "+worker, func() bool {
				return f.metric(worker, `tandem_worker_cells{state="`+state+`"}`) == 0
			})
		}
	}
}

// TestLibraries: a directory that is named for the libraries and does not hold
// those of the right release is an error that says so, for every command that
// would load them, and nothing else is tried.
func TestLibraries(t *testing.T) {
	dir := t.TempDir()
	lib, err := install.Ensure(t.Context(), install.Options{})
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "other")
	entries, err := os.ReadDir(lib.Dir)
	if err != nil {
		t.Fatal(err)
	}
	replaced := 0
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(lib.Dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		replaced += bytes.Count(raw, []byte(install.Commit))
		writeFile(t, filepath.Join(other, e.Name()), string(bytes.ReplaceAll(raw, []byte(install.Commit), []byte("1234567"))))
	}
	if replaced == 0 {
		t.Fatal("the libraries do not say which commit they are of")
	}
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	id := meshDirs(t, filepath.Join(dir, "mesh"), "worker/w")
	model := filepath.Join(dir, "model.gguf")
	mustRun(t, "model", "new", "--arch=llama", "--out="+model)
	for _, tt := range []struct{ name, dir, want string }{
		{"empty", empty, empty},
		{"missing", filepath.Join(dir, "none"), filepath.Join(dir, "none")},
		{"another release", other, install.Release},
	} {
		for _, args := range [][]string{
			{"engine", "show"},
			{"engine", "install"},
			{"up", "--listen=127.0.0.1:0"},
			{"worker", "--role=both", "--mesh=" + id("w"), "--bus=tls://127.0.0.1:1", "--model=" + model},
		} {
			r := command{env: []string{install.EnvDir + "=" + tt.dir, "TMPDIR=" + dir}}.run(t, args...)
			r.check(t, tt.name+", "+strings.Join(args[:1], " "), 1, "tandem: ", tt.want)
		}
	}
	checkNoProcess(t)
}
