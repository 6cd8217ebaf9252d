package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/telemetry"
)

// patience is the longest wait for something that must happen. Only a process
// that hangs reaches it.
const patience = 3 * time.Minute

var binary string // the program under test, built once by TestMain

func TestMain(m *testing.M) {
	playChild() // does not return in the processes that the tests make of this binary
	dir, err := os.MkdirTemp("", "tandem-e2e-*")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "tandem")
	build := exec.Command("go", "build", "-o", binary, "github.com/tandem-llm/tandem/cmd/tandem")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: the program does not build:", err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// fleet is one running `tandem up`.
type fleet struct {
	t      *testing.T
	url    string
	model  string
	traces string // directory of lifecycle events
	dumps  string // directory of state dumps, empty unless asked for
	cmd    *exec.Cmd

	mu      sync.Mutex
	changed *sync.Cond
	lines   []progressLine // guarded by mu
	exited  bool           // guarded by mu
	log     bytes.Buffer   // guarded by mu; standard error of all processes
}

// progressLine is one line of `tandem up --json`.
type progressLine struct {
	Event   string `json:"event"`
	Message string `json:"message"`
	Process string `json:"process"`
	HTTP    string `json:"http"`
	Model   string `json:"model"`
}

// up starts a fleet and waits until it is ready. It is stopped, and must stop
// cleanly, when the test ends.
func up(t *testing.T, args ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, traces: t.TempDir()}
	f.changed = sync.NewCond(&f.mu)
	args = append([]string{"up", "--json", "--verbose", "--listen=127.0.0.1:0", "--trace-dir=" + f.traces, "--drain=5s"}, args...)
	for _, a := range args {
		if dir, ok := strings.CutPrefix(a, "--dump-state="); ok {
			f.dumps = dir
		}
	}
	f.cmd = exec.Command(binary, args...)
	stdout, err := f.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := f.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Add(2)
	go func() {
		defer reading.Done()
		for s := bufio.NewScanner(stdout); s.Scan(); {
			var line progressLine
			if err := json.Unmarshal(s.Bytes(), &line); err != nil {
				t.Errorf("up printed a line that is no JSON: %s", s.Text())
			}
			f.note(func() { f.lines = append(f.lines, line) })
		}
	}()
	go func() {
		defer reading.Done()
		r := bufio.NewReader(stderr)
		for {
			line, err := r.ReadBytes('\n')
			f.note(func() { f.log.Write(line) })
			if err != nil {
				return
			}
		}
	}()
	done := make(chan error, 1)
	go func() {
		reading.Wait()
		err := f.cmd.Wait()
		f.note(func() { f.exited = true })
		done <- err
	}()
	t.Cleanup(func() {
		_ = f.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("up ended with %v", err)
			}
		case <-time.After(patience):
			_ = f.cmd.Process.Kill()
			t.Error("up did not stop")
		}
		if t.Failed() {
			f.mu.Lock()
			defer f.mu.Unlock()
			t.Logf("log of the fleet:\n%s", tail(f.log.String(), 20000))
		}
	})
	ready := f.wait("ready", 1)
	f.url, f.model = "http://"+ready.HTTP, ready.Model
	return f
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

func (f *fleet) note(fn func()) {
	f.mu.Lock()
	fn()
	f.mu.Unlock()
	f.changed.Broadcast()
}

// wait returns the n-th progress line of an event.
func (f *fleet) wait(event string, n int) progressLine {
	f.t.Helper()
	return f.waitFor(func(l progressLine) bool { return l.Event == event }, n, event)
}

func (f *fleet) waitFor(match func(progressLine) bool, n int, what string) progressLine {
	f.t.Helper()
	timeout := time.AfterFunc(patience, func() { f.note(func() { f.exited = true }) })
	defer timeout.Stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		seen := 0
		for _, l := range f.lines {
			if match(l) {
				if seen++; seen == n {
					return l
				}
			}
		}
		if f.exited {
			f.t.Fatalf("up ended, or hung, before %q; lines %+v\nlog:\n%s", what, f.lines, tail(f.log.String(), 8000))
		}
		f.changed.Wait()
	}
}

var startedLine = regexp.MustCompile(`^(\S+) started, pid (\d+)$`)

// pids returns every process id that a child had, in order.
func (f *fleet) pids(name string) []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []int
	for _, l := range f.lines {
		if m := startedLine.FindStringSubmatch(l.Message); m != nil && m[1] == name {
			pid, _ := strconv.Atoi(m[2])
			all = append(all, pid)
		}
	}
	return all
}

// kill sends SIGKILL to a child.
func (f *fleet) kill(name string) {
	f.t.Helper()
	pids := f.pids(name)
	if len(pids) == 0 {
		f.t.Fatalf("%s never started", name)
	}
	if err := syscall.Kill(pids[len(pids)-1], syscall.SIGKILL); err != nil {
		f.t.Fatal(err)
	}
}

// logs returns what all processes have logged so far.
func (f *fleet) logs() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.String()
}

// answer is one answer of /v1/completions with token ids.
type answer struct {
	Tokens []int32
	Finish string
	Text   string
	Usage  struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
}

// ask is a completion request with a token prompt.
type ask struct {
	prompt []int32
	max    int
	mode   string
	order  string // of a handoff; default: the gateway's
	extra  map[string]any
}

// complete asks and expects an answer.
func (f *fleet) complete(a ask) answer {
	f.t.Helper()
	got, err := f.try(context.Background(), a)
	if err != nil {
		f.t.Fatalf("%s request with %d prompt tokens: %v", a.mode, len(a.prompt), err)
	}
	return got
}

// statusError is an HTTP error answer.
type statusError struct {
	code int
	body string
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.code, e.body) }

// try asks and returns the answer or what went wrong.
func (f *fleet) try(ctx context.Context, a ask) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	body := map[string]any{
		"model": f.model, "prompt": a.prompt, "max_tokens": a.max, "temperature": 0, "ignore_eos": true, "return_token_ids": true,
	}
	for k, v := range a.extra {
		body[k] = v
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/completions", bytes.NewReader(raw))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	if a.mode != "" {
		req.Header.Set("Tandem-Mode", a.mode)
		if a.order != "" {
			req.Header.Set("Tandem-Order", a.order)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	raw, err = io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	if resp.StatusCode != http.StatusOK {
		return answer{}, &statusError{resp.StatusCode, string(raw)}
	}
	var parsed struct {
		Choices []struct {
			Text     string  `json:"text"`
			Finish   string  `json:"finish_reason"`
			TokenIDs []int32 `json:"token_ids"`
		} `json:"choices"`
		Usage json.RawMessage `json:"usage"`
	}
	if err := json.Unmarshal(raw, &parsed); err != nil {
		return answer{}, err
	}
	if len(parsed.Choices) != 1 {
		return answer{}, fmt.Errorf("%d choices", len(parsed.Choices))
	}
	got := answer{Tokens: parsed.Choices[0].TokenIDs, Finish: parsed.Choices[0].Finish, Text: parsed.Choices[0].Text}
	if err := json.Unmarshal(parsed.Usage, &got.Usage); err != nil {
		return answer{}, err
	}
	return got, nil
}

// events reads the lifecycle events that a process has written so far.
func (f *fleet) events(process string) []telemetry.Event {
	f.t.Helper()
	file, err := os.Open(filepath.Join(f.traces, process+".jsonl"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	var all []telemetry.Event
	if err := telemetry.ReadEvents(file, func(e telemetry.Event) bool { all = append(all, e); return true }); err != nil {
		f.t.Fatalf("%s: %v", process, err)
	}
	return all
}

// eventually waits until ok reports true.
func (f *fleet) eventually(what string, ok func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("not seen: %s", what)
		}
	}
}

// prompt makes n pseudo-random byte tokens, different for every seed.
func prompt(n int, seed uint64) []int32 {
	out := make([]int32, n)
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range out {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		out[i] = int32(x % 256)
	}
	return out
}

// metric scrapes one sample of a process's metrics; 0 when it is absent.
func (f *fleet) metric(process, sample string) float64 {
	f.t.Helper()
	url := f.url
	if process != "gateway" {
		f.mu.Lock()
		for _, l := range f.lines {
			if l.Event == "metrics" && l.Process == process {
				url = "http://" + l.HTTP
			}
		}
		f.mu.Unlock()
	}
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		if value, ok := strings.CutPrefix(s.Text(), sample+" "); ok {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				f.t.Fatal(err)
			}
			return v
		}
	}
	return 0
}
