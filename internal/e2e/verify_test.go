package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/verify"
)

// The command verifies a model in a process of its own and leaves a certificate that reads back.
func TestVerifyCommand(t *testing.T) {
	file, err := tiny.Cached(tiny.Gemma3)
	if err != nil {
		t.Fatal(err)
	}
	cert := filepath.Join(t.TempDir(), "c.json")
	args := []string{"--config=", "verify", "--model", file, "--quick", "--threads=1", "--match=f16.*alone|refusal/tls/.*ticket", "--certificate", cert}
	r := command{}.run(t, append(args, "--json")...)
	r.check(t, "verify", 0, "certificate: "+cert)
	var reports []verify.Report
	if err := json.Unmarshal([]byte(r.stdout), &reports); err != nil || len(reports) != 1 || !reports[0].OK() {
		t.Fatalf("%d reports, %v", len(reports), err)
	}
	c, err := verify.ReadCertificate(cert)
	if err != nil {
		t.Fatal(err)
	}
	if c.Model.Architecture != "gemma3" || len(c.Passed) != reports[0].Counts[verify.Passed] || !c.Quick || !c.Partial {
		t.Errorf("certificate for %s with %d cells", c.Model.Architecture, len(c.Passed))
	}
	for _, bad := range [][]string{{"--match=("}, {"--steps=-1"}, {"--kv-type=f64"}, {"--lengths=3"}, {"--lane=pigeon"}} {
		command{}.run(t, append([]string{"--config=", "verify", "--list", "--model", file}, bad...)...).check(t, bad[0], 2)
	}
	command{}.run(t, "--config=", "verify", "--list", "--certificate=x").check(t, "a certificate for nothing", 2, "--certificate")
	list := command{}.run(t, "--config=", "verify", "--list", "--model", file, "--max-tokens=5000")
	list.check(t, "--list", 0)
	for _, want := range []string{"1024/f16/chunk 128/page 128/in order/tls/alone\n", "8192 (skipped: more than the 5000 tokens", "MTP (not built: "} {
		if !strings.Contains(list.stdout, want) {
			t.Errorf("--list has no %q", want)
		}
	}
}

// startVerify starts a long run and returns once a second process takes part in it.
func startVerify(t *testing.T) (cmd *exec.Cmd, stdout *strings.Builder, child int) {
	t.Helper()
	file, err := tiny.Cached(tiny.Llama)
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(binary, "--config=", "verify", "--model", file, "--threads=1", "--json", "--max-tokens=1024", "--certificate", filepath.Join(t.TempDir(), "c.json"))
	cmd.Env = cleanEnv()
	stdout = &strings.Builder{}
	cmd.Stdout = stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	for began := time.Now(); child == 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("no second process")
		}
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
		for _, task := range tasks {
			raw, _ := os.ReadFile(task)
			if f := strings.Fields(string(raw)); len(f) > 0 {
				child, _ = strconv.Atoi(f[0])
			}
		}
	}
	return cmd, stdout, child
}

// gone waits until a process is no more.
func gone(t *testing.T, pid int) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(raw), ") Z ") {
			return
		}
		if time.Since(began) > patience {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatal("the second process outlives the first")
		}
	}
}

// An interrupt gives exit code 130 and the report so far; a kill leaves no process behind.
func TestVerifyEndsEarly(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("looks for processes in /proc")
	}
	cmd, stdout, child := startVerify(t)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit code %d", code)
	}
	var reports []verify.Report
	if err := json.NewDecoder(bufio.NewReader(strings.NewReader(stdout.String()))).Decode(&reports); err != nil || len(reports) != 1 || !reports[0].Interrupted {
		t.Errorf("%d reports, %v", len(reports), err)
	}
	gone(t, child)

	cmd, _, child = startVerify(t)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	gone(t, child)
}
