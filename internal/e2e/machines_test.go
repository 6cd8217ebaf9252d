package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// freePort returns a port that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestMachinesDocument runs the commands of docs/machines.md as they stand there,
// but for names of hosts and ports, which are of this machine.
func TestMachinesDocument(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "machines.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	httpAddr, busAddr := freePort(t), freePort(t)
	var blocks [][2]string // as they stand, and for this machine
	for _, m := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(doc), -1) {
		local := strings.NewReplacer(
			"gateway.example:8080", httpAddr, "gateway.example:4222", busAddr, "--listen :8080", "--listen "+httpAddr, "--bus-listen :4222", "--bus-listen "+busAddr,
			"--listen :7000", "--listen 127.0.0.1:0", "--metrics :9100", "--metrics 127.0.0.1:0",
			"gateway.example", "127.0.0.1", "prefill.example", "127.0.0.1", "decode.example", "127.0.0.1",
		).Replace(m[1])
		blocks = append(blocks, [2]string{m[1], local})
	}
	t.Setenv("PATH", filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"))
	var log syncBuffer
	stayed, checked := 0, 0
	for _, b := range blocks {
		switch words := strings.Fields(b[1]); {
		case words[0] == "curl":
			checked++
			checkMachines(t, httpAddr, b[1], &log)
		case words[0] == "tandem" && (words[1] == "gateway" || words[1] == "worker"):
			stayed++
			// exec: the signal is for the program, not for the shell.
			cmd := exec.Command("sh", "-c", "exec "+strings.TrimSpace(b[1])+" --threads=1")
			if words[1] == "gateway" {
				cmd = exec.Command("sh", "-c", "exec "+strings.TrimSpace(b[1]))
			}
			cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, cleanEnv(), &log, &log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Signal(syscall.SIGTERM)
				if err := cmd.Wait(); err != nil {
					t.Errorf("%s: %v\n%s", b[0], err, tail(log.String(), 3000))
				}
			})
		default:
			cmd := exec.Command("sh", "-e", "-c", b[1])
			cmd.Dir, cmd.Env = dir, cleanEnv()
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", b[0], err, out)
			}
		}
	}
	if stayed != 3 || checked != 1 {
		t.Errorf("the document starts %d processes and has %d checks, want 3 and 1", stayed, checked)
	}
}

// checkMachines does what the document does with curl.
func checkMachines(t *testing.T, addr, block string, log *syncBuffer) {
	t.Helper()
	if !strings.Contains(block, "http://"+addr+"/readyz") || !strings.Contains(block, "http://"+addr+"/v1/completions") {
		t.Fatalf("the document checks something else: %s", block)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if resp, err := http.Get("http://" + addr + "/readyz"); err == nil {
			raw, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			// In mode auto a prefill worker alone is ready for whole requests.
			if resp.StatusCode == http.StatusOK && bytes.Contains(raw, []byte(`"prefill_workers":1,"decode_workers":1`)) {
				break
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("not ready\n%s", tail(log.String(), 5000))
		}
	}
	_, body, _ := strings.Cut(block, "-d '")
	body, _, ok := strings.Cut(body, "'\n")
	if !ok || !json.Valid([]byte(body)) {
		t.Fatalf("no body in %s", block)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range regexp.MustCompile(`-H '([^:]+): ([^']+)'`).FindAllStringSubmatch(block, -1) {
		req.Header.Set(h[1], h[2])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Tandem-Served") != "disaggregated" {
		t.Errorf("status %d, served %q, %s, %v\n%s", resp.StatusCode, resp.Header.Get("Tandem-Served"), raw, err, tail(log.String(), 5000))
	}
}

// syncBuffer is a buffer that several processes write to.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
