package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stoppable is a `tandem up` that a test ends itself.
type stoppable struct {
	t     *testing.T
	tmp   string // its temporary directory
	url   string
	model string
	cmd   *exec.Cmd
	lines chan progressLine // closed at the end of its output
	log   *bytes.Buffer     // of all processes; to be read when it is gone
}

// start starts it and waits for the first line of an event.
func start(t *testing.T, event string, args ...string) *stoppable {
	t.Helper()
	s := &stoppable{t: t, tmp: t.TempDir(), lines: make(chan progressLine, 1000), log: &bytes.Buffer{}}
	s.cmd = exec.Command(binary, append([]string{"up", "--json", "--verbose", "--listen=127.0.0.1:0", "--context=2048"}, args...)...)
	s.cmd.Env = append(cleanEnv(), "TMPDIR="+s.tmp)
	s.cmd.Stderr = s.log
	s.cmd.WaitDelay = patience // its children hold standard error when it is killed
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	go func() {
		defer close(s.lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			var line progressLine
			if json.Unmarshal(sc.Bytes(), &line) == nil {
				s.lines <- line
			}
		}
	}()
	for line := range s.lines {
		if line.Event == event {
			s.url, s.model = "http://"+line.HTTP, line.Model
			return s
		}
	}
	t.Fatalf("up ended before %q: %v\n%s", event, s.cmd.Wait(), s.log)
	return nil
}

func (s *stoppable) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// gone waits for its end and checks the exit code, and that nothing is left.
func (s *stoppable) gone(code int) {
	s.t.Helper()
	for range s.lines {
	}
	err := s.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Errorf("up ended with %v", err)
	}
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		s.t.Errorf("exit code %d, want %d\n%s", got, code, tail(s.log.String(), 3000))
	}
	checkNoProcess(s.t)
	var left []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if left, _ = filepath.Glob(filepath.Join(s.tmp, "*")); len(left) == 0 {
			return
		}
	}
	s.t.Errorf("left in the temporary directory: %v", left)
}

// stream starts an answer of so many tokens and returns it when it has begun.
func (s *stoppable) stream(tokens int) *http.Response {
	s.t.Helper()
	resp, err := http.Post(s.url+"/v1/completions", "application/json", strings.NewReader(marshal(object{
		"model": s.model, "prompt": "Hello", "max_tokens": tokens, "ignore_eos": true, "stream": true,
	})))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { resp.Body.Close() })
	if _, err := io.ReadFull(resp.Body, make([]byte, 16)); err != nil || resp.StatusCode != http.StatusOK {
		s.t.Fatalf("status %d, %v", resp.StatusCode, err)
	}
	return resp
}

// TestStop: either signal ends everything in good order, and so does the
// supervisor's death.
func TestStop(t *testing.T) {
	for name, tt := range map[string]struct {
		sig  syscall.Signal
		code int
	}{
		"interrupt": {syscall.SIGINT, 0},
		"terminate": {syscall.SIGTERM, 0},
		"kill":      {syscall.SIGKILL, -1},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, "ready")
			if n := len(processes(t)); n != 4 {
				t.Errorf("%d processes run, want up, a gateway and two workers", n)
			}
			s.signal(tt.sig)
			s.gone(tt.code)
		})
	}
}

// TestStopBeforeReady: an interrupt while the fleet starts is told from a stop.
func TestStopBeforeReady(t *testing.T) {
	s := start(t, "process")
	s.signal(syscall.SIGINT)
	s.gone(130)
	if !strings.Contains(s.log.String(), "tandem: interrupted") {
		t.Errorf("the log does not say so: %s", s.log)
	}
}

// TestStopFinishesAnswers: requests in flight are finished, new ones are refused.
func TestStopFinishesAnswers(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"terminate": syscall.SIGTERM, "kill": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			s := start(t, "ready", "--drain=60s")
			resp := s.stream(1500)
			s.signal(sig)
			rest, err := io.ReadAll(resp.Body)
			if err != nil || !bytes.HasSuffix(rest, []byte("data: [DONE]\n\n")) || !bytes.Contains(rest, []byte(`"finish_reason":"length"`)) {
				t.Errorf("the answer ends with %q, %v", tail(string(rest), 300), err)
			}
			code := 0
			if sig == syscall.SIGKILL {
				code = -1
			}
			s.gone(code)
		})
	}
}

// TestStopRefuses: while requests in flight are finished, new ones are told that the server is going down and
// when to come back, and are not refused a connection. When the last client has left it ends at once.
func TestStopRefuses(t *testing.T) {
	s := start(t, "ready", "--drain=10m", "--context=32768")
	resp := s.stream(30000)
	s.signal(syscall.SIGTERM)
	for {
		again, err := http.Post(s.url+"/v1/completions", "application/json", strings.NewReader(marshal(object{
			"model": s.model, "prompt": "Hello", "max_tokens": 1,
		})))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(again.Body)
		again.Body.Close()
		if again.StatusCode == http.StatusOK {
			continue // the signal has not reached the gateway yet
		}
		if again.StatusCode != http.StatusServiceUnavailable || !bytes.Contains(body, []byte(`"shutting_down"`)) || again.Header.Get("Retry-After") == "" {
			t.Errorf("status %d, Retry-After %q: %s", again.StatusCode, again.Header.Get("Retry-After"), body)
		}
		break
	}
	resp.Body.Close()
	s.gone(0)
}

// TestStopGivesUp: what is not finished within the time for it is ended with an
// error that says why.
func TestStopGivesUp(t *testing.T) {
	s := start(t, "ready", "--drain=10ms", "--context=32768")
	resp := s.stream(30000)
	s.signal(syscall.SIGTERM)
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Contains(rest, []byte(`"code":"shutting_down"`)) || bytes.Contains(rest, []byte("[DONE]")) {
		t.Errorf("the answer ends with %q, %v", tail(string(rest), 300), err)
	}
	s.gone(0)
}

// TestSecondInterrupt ends the supervisor at once; its processes follow.
func TestSecondInterrupt(t *testing.T) {
	s := start(t, "ready", "--drain=2s", "--context=32768")
	s.stream(30000)
	s.signal(syscall.SIGINT)
	for line := range s.lines {
		if line.Event == "stop" {
			break
		}
	}
	// Again and again: the first may come before the program is ready for the second.
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(50 * time.Millisecond):
				_ = s.cmd.Process.Signal(syscall.SIGINT)
			}
		}
	}()
	s.gone(-1)
}
