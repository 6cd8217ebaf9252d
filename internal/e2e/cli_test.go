package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// command is one run of the program in an environment of its own: no settings of
// this machine's user, and directories of its own for everything it writes.
type command struct {
	env []string // besides those
	dir string   // working directory
}

// result is how it ended.
type result struct {
	code           int
	stdout, stderr string
}

func (c command) run(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir, cmd.Env = c.dir, append(cleanEnv(), c.env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("tandem %s: %v", strings.Join(args, " "), err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// cleanEnv is the environment without settings of this program.
func cleanEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "TANDEM_") && !strings.HasPrefix(v, "TANDEM_LLAMA_LIB=")
	})
}

// check compares a result with what is expected: the exit code, and texts that
// standard error has. No failure may show a Go panic.
func (r result) check(t *testing.T, what string, code int, stderr ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("%s: exit code %d, want %d\n%s", what, r.code, code, tail(r.stdout+r.stderr, 3000))
		return
	}
	for _, want := range stderr {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("%s: standard error lacks %q:\n%s", what, want, tail(r.stderr, 3000))
		}
	}
	if strings.Contains(r.stderr, "panic:") || strings.Contains(r.stderr, "goroutine ") {
		t.Errorf("%s: a panic:\n%s", what, tail(r.stderr, 3000))
	}
}

// commands returns every command, from the first lines of what --help says.
func commands(t *testing.T, path ...string) [][]string {
	t.Helper()
	r := command{}.run(t, append(slices.Clone(path), "--help")...)
	r.check(t, strings.Join(path, " ")+" --help", 0)
	if !strings.HasPrefix(r.stdout, "Usage: tandem") {
		t.Errorf("%v --help says %q", path, r.stdout)
	}
	all := [][]string{path}
	_, list, _ := strings.Cut(r.stdout, "\nCommands:\n")
	for line := range strings.Lines(list) {
		// Names stand two blanks in; the rest of a description further.
		name, ok := strings.CutPrefix(line, "  ")
		if !ok || strings.HasPrefix(name, " ") {
			continue
		}
		words := strings.Fields(name)
		for i, w := range path {
			if words[i] != w {
				t.Fatalf("help of %v lists %q", path, line)
			}
		}
		all = append(all, commands(t, append(slices.Clone(path), words[len(path)])...)...)
	}
	return all
}

func TestHelpOfEveryCommand(t *testing.T) {
	all := commands(t)
	if len(all) < 16 {
		t.Errorf("only %d commands have help: %v", len(all), all)
	}
}

// inUse takes a TCP port for the time of the test.
func inUse(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// writeFile writes a file below a test's directory.
func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// mustRun runs a command that must succeed.
func mustRun(t *testing.T, args ...string) string {
	t.Helper()
	r := command{}.run(t, args...)
	r.check(t, strings.Join(args, " "), 0)
	return r.stdout
}

// meshDirs makes an authority and identities below dir, and returns a function
// that names one's directory.
func meshDirs(t *testing.T, dir string, peers ...string) func(string) string {
	t.Helper()
	mustRun(t, "mesh", "init", "--dir="+filepath.Join(dir, "ca"))
	for _, p := range peers {
		role, name, _ := strings.Cut(p, "/")
		mustRun(t, "mesh", "issue", "--ca="+filepath.Join(dir, "ca"), "--role="+role, "--name="+name, "--dir="+filepath.Join(dir, name), "--host=localhost", "--host=127.0.0.1")
	}
	return func(name string) string { return filepath.Join(dir, name) }
}

// TestWrongUse: what is wrong with a command line is one clear error and exit
// code 2.
func TestWrongUse(t *testing.T) {
	dir := t.TempDir()
	id := meshDirs(t, dir, "gateway/gateway", "bus/bus", "worker/w")
	taken := inUse(t)
	file := func(name, text string) string { return writeFile(t, filepath.Join(dir, name), text) }
	model := filepath.Join(dir, "model.gguf")
	mustRun(t, "model", "new", "--arch=llama", "--out="+model)
	gateway := []string{"gateway", "--mesh=" + id("gateway"), "--bus-mesh=" + id("bus"), "--model=" + model}
	worker := []string{"worker", "--role=both", "--mesh=" + id("w"), "--model=" + model, "--context=256"}
	for _, tt := range []struct {
		name string
		args []string
		env  []string
		want string
	}{
		{name: "no command", want: "expected one of"},
		{name: "unknown command", args: []string{"bogus"}, want: "unexpected argument bogus"},
		{name: "unknown flag", args: []string{"up", "--bogus"}, want: "unknown flag --bogus"},
		{name: "bad number", args: []string{"up", "--slots=many"}, want: "--slots"},
		{name: "bad duration", args: []string{"up", "--drain=soon"}, want: "--drain"},
		{name: "bad enum", args: []string{"up", "--mode=fast"}, want: `--mode must be one of "auto","disaggregated","colocated"`},
		{name: "bad enum in the environment", args: []string{"up"}, env: []string{"TANDEM_LANE=pigeon"}, want: "--lane must be one of"},
		{name: "bad number in the environment", args: []string{"up"}, env: []string{"TANDEM_SLOTS=many"}, want: "TANDEM_SLOTS"},
		{name: "missing flags", args: []string{"worker"}, want: "missing flags: --bus=URL, --mesh=DIR, --role=STRING"},
		{name: "no prefill", args: []string{"up", "--prefill=0"}, want: "raise --prefill or --colocated"},
		{name: "no decode", args: []string{"up", "--mode=disaggregated", "--decode=0"}, want: "raise --decode or --colocated"},
		{name: "too many workers", args: []string{"up", "--decode=1000"}, want: "between 0 and 64"},
		{name: "bus without authority", args: []string{"up", "--nats=tls://127.0.0.1:1"}, want: "--nats needs --ca"},
		{name: "gateway without a model", args: gateway[:3], want: "--model is missing"},
		{name: "gateway without a bus", args: []string{"gateway", "--mesh=" + id("gateway"), "--model=" + model}, want: "--bus-mesh is missing"},
		{name: "port of up in use", args: []string{"up", "--listen=" + taken}, want: "address already in use; choose another address with --listen"},
		{name: "bus port of up in use", args: []string{"up", "--listen=127.0.0.1:0", "--bus-listen=" + taken}, want: "choose another address with --bus-listen"},
		{name: "no address", args: []string{"up", "--listen=nonsense"}, want: "choose another address with --listen"},
		{name: "port of a gateway in use", args: append(slices.Clone(gateway), "--listen="+taken), want: "choose another address with --listen"},
		{name: "bus port of a gateway in use", args: append(slices.Clone(gateway), "--listen=127.0.0.1:0", "--bus-listen="+taken), want: "--bus-listen: bus: cannot listen"},
		{name: "no slots", args: []string{"up", "--slots=0"}, want: "--slots: 0 is not between 1 and 255"},
		{name: "negative limits", args: []string{"up", "--drain=-1s", "--cells=-1", "--lanes=99", "--max-active=0"}, want: "--lanes: 99 is not between 1 and 16"},
		{name: "context beyond the model", args: []string{"up", "--context=100000000", "--model=" + model}, want: "--context: the model was trained for 131072 tokens"},
		{name: "no authority", args: []string{"up", "--ca=" + dir + "/none"}, want: "--ca: mesh: unusable mesh files"},
		{name: "no directory for traces", args: []string{"up", "--trace-dir=" + model + "/x"}, want: "--trace-dir: mkdir"},
		{name: "short key", args: append(slices.Clone(gateway), "--listen=127.0.0.1:0", "--api-keys="+file("keys", "tenant short\n")), want: "a key needs at least 16 characters"},
		{name: "another's identity", args: []string{"gateway", "--mesh=" + id("w"), "--bus-mesh=" + id("bus"), "--model=" + model}, want: "is the identity of worker/w; one of role gateway is needed"},
		{name: "a bus without the bus's identity", args: []string{"gateway", "--mesh=" + id("gateway"), "--bus-mesh=" + id("w"), "--model=" + model, "--listen=127.0.0.1:0"}, want: "--bus-mesh"},
		{name: "no bus address", args: append(slices.Clone(worker), "--bus=nonsense"), want: "is not tls://host:port"},
		{name: "port of a worker in use", args: append(slices.Clone(worker), "--bus=tls://127.0.0.1:1", "--listen="+taken), want: "is another worker using it?"},
		{name: "metrics port of a worker in use", args: append(slices.Clone(worker), "--bus=tls://127.0.0.1:1", "--metrics="+taken), want: "--metrics: listen"},
		{name: "no name for peers", args: append(slices.Clone(worker), "--bus=tls://127.0.0.1:1", "--listen=:0"), want: "--advertise"},
		{name: "missing directory", args: []string{"worker", "--role=decode", "--bus=tls://127.0.0.1:1", "--mesh=" + dir + "/none"}, want: "--mesh"},
		{name: "bad role of an identity", args: []string{"mesh", "issue", "--ca=" + id("ca"), "--role=king", "--name=x", "--dir=" + dir + "/x"}, want: "--role must be one of"},
		{name: "bad name of an identity", args: []string{"mesh", "issue", "--ca=" + id("ca"), "--role=worker", "--name=a/b", "--dir=" + dir + "/x"}, want: "mesh:"},
		{name: "bad peer", args: []string{"bus", "config", "--dir=x", "--peer=someone"}, want: "write role/name"},
		{name: "bad shell", args: []string{"completion", "tcsh"}, want: "must be one of"},
		{name: "no configuration file", args: []string{"up", "--config=" + dir + "/none.yaml"}, want: "--config: open"},
		{name: "no configuration file in the environment", args: []string{"up"}, env: []string{"TANDEM_CONFIG=" + dir + "/none.yaml"}, want: "TANDEM_CONFIG: open"},
		{name: "unknown key", args: []string{"up", "--config", file("a.yaml", "slotz: 3\n")}, want: `a.yaml: unknown key "slotz"`},
		{name: "unknown key of a command", args: []string{"up", "--config", file("b.yaml", "worker:\n  prefill: 3\n")}, want: `b.yaml: command "worker" has no flag "prefill"`},
		{name: "section of no command", args: []string{"up", "--config", file("c.yaml", "slots:\n  up: 3\n")}, want: `c.yaml: unknown key "slots"`},
		{name: "broken configuration", args: []string{"up", "--config", file("d.yaml", "slots: [\n")}, want: "d.yaml: yaml"},
		{name: "configuration of no mapping", args: []string{"up", "--config", file("e.yaml", "- slots\n")}, want: "e.yaml: yaml"},
		{name: "huge configuration", args: []string{"up", "--config", file("f.yaml", strings.Repeat("# nothing\n", 200000))}, want: "is it the right file?"},
		{name: "bad enum in a configuration", args: []string{"up", "--config", file("g.yaml", "mode: fast\n")}, want: "--mode must be one of"},
	} {
		r := command{env: append(tt.env, "TMPDIR="+dir)}.run(t, tt.args...)
		r.check(t, tt.name, 2, "tandem: ", tt.want)
	}
	checkNoProcess(t)
	if left, _ := filepath.Glob(filepath.Join(dir, "tandem-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// processes lists the running processes of the program, by their command lines.
func processes(t *testing.T) []string {
	t.Helper()
	var all []string
	if files, _ := filepath.Glob("/proc/[0-9]*/cmdline"); len(files) > 0 {
		for _, f := range files {
			raw, _ := os.ReadFile(f) // it may have ended
			if args := strings.Split(string(raw), "\x00"); args[0] == binary {
				all = append(all, strings.Join(args, " "))
			}
		}
		return all
	}
	out, err := exec.Command("ps", "-axww", "-o", "args=").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, binary+" ") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// checkNoProcess checks that no process of the program runs, or will soon.
func checkNoProcess(t *testing.T) {
	t.Helper()
	var all []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if all = processes(t); len(all) == 0 {
			return
		}
	}
	t.Errorf("processes are left: %q", all)
}

// TestRefusedByThePeer: certificates of another authority end a process with the
// reason; a bus that is not there yet is waited for, and the log says so.
func TestRefusedByThePeer(t *testing.T) {
	dir := t.TempDir()
	id := meshDirs(t, filepath.Join(dir, "a"), "gateway/gateway")
	foreign := meshDirs(t, filepath.Join(dir, "b"), "bus/bus")
	model := filepath.Join(dir, "model.gguf")
	mustRun(t, "model", "new", "--arch=llama", "--out="+model)
	r := command{}.run(t, "gateway", "--mesh="+id("gateway"), "--bus-mesh="+foreign("bus"), "--model="+model, "--listen=127.0.0.1:0")
	r.check(t, "foreign bus", 1, "not issued by this mesh's CA")

	cmd := exec.Command(binary, "gateway", "--mesh="+id("gateway"), "--nats=tls://"+freePort(t), "--model="+model, "--listen=127.0.0.1:0")
	cmd.Env = cleanEnv()
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := ""
	for s := bufio.NewScanner(log); !strings.Contains(said, "check the bus address") && s.Scan(); said = s.Text() {
	}
	if said == "" {
		t.Error("nothing is said of a bus that is not there")
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_, _ = io.Copy(io.Discard, log)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("interrupted before it served anything: %v, want exit code 130", err)
	}
}

// TestPrecedence: flag over environment over configuration file over default, and
// a command's own section over the top of the file.
func TestPrecedence(t *testing.T) {
	dir := t.TempDir()
	home, cfg := filepath.Join(dir, "home"), filepath.Join(dir, "config")
	env := []string{"HOME=" + home, "XDG_CONFIG_HOME=" + cfg}
	// Where the user's configuration directory is depends on the system.
	user := []string{filepath.Join(cfg, "tandem"), filepath.Join(home, "Library", "Application Support", "tandem")}
	named := writeFile(t, filepath.Join(dir, "named.yaml"), "seed: 30\n")
	for _, tt := range []struct {
		name, user string
		env, args  []string
		want       string
	}{
		{name: "default", want: "1"},
		{name: "user's file", user: "seed: 10\n", want: "10"},
		{name: "section", user: "seed: 10\nmodel new:\n  seed: 11\n", want: "11"},
		{name: "section of another command", user: "seed: 10\nup:\n  slots: 2\n", want: "10"},
		{name: "environment", user: "model new:\n  seed: 11\n", env: []string{"TANDEM_SEED=20"}, want: "20"},
		{name: "named file", user: "seed: 10\n", args: []string{"--config=" + named}, want: "30"},
		{name: "named file alone", user: "no key: 1\n", args: []string{"--config", named}, want: "30"},
		{name: "named by the environment", user: "seed: 10\n", env: []string{"TANDEM_CONFIG=" + named}, want: "30"},
		{name: "no file", user: "seed: 10\n", args: []string{"--config="}, want: "1"},
		{name: "no file, by the environment", user: "seed: 10\n", env: []string{"TANDEM_CONFIG="}, want: "1"},
		{name: "flag", user: "seed: 10\n", env: []string{"TANDEM_SEED=20"}, args: []string{"--seed=40", "--config=" + named}, want: "40"},
	} {
		for _, u := range user {
			writeFile(t, filepath.Join(u, "config.yaml"), tt.user)
		}
		args := append([]string{"model", "new", "--arch=llama", "--out=" + filepath.Join(dir, "m.gguf")}, tt.args...)
		r := command{env: append(slices.Clone(env), tt.env...)}.run(t, args...)
		r.check(t, tt.name, 0)
		if want := "seed " + tt.want + ")"; !strings.Contains(r.stdout, want) {
			t.Errorf("%s: printed %q, want %q", tt.name, r.stdout, want)
		}
	}
}

// TestCompletion sources the script of bash and completes with it.
func TestCompletion(t *testing.T) {
	script := writeFile(t, filepath.Join(t.TempDir(), "complete.sh"), `
eval "$(tandem completion bash)"
complete -p tandem >/dev/null || exit 1
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_tandem
echo "${COMPREPLY[*]}"
`)
	t.Setenv("PATH", filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"))
	for _, tt := range []struct{ words, want string }{
		{"tandem m", "mesh model"},
		{"tandem model ", "inspect new"},
		{"tandem mesh i", "init issue"},
		{"tandem up --prefil", "--prefill"},
		{"tandem up --mode ", "auto colocated disaggregated"},
		{"tandem up --mode =", "auto colocated disaggregated"},
		{"tandem up --mode = c", "colocated"},
		{"tandem worker --role d", "decode"},
		{"tandem completion ", "bash fish zsh"},
		{"tandem gateway --su", ""}, // hidden
	} {
		got := run(t, ".", "bash", append([]string{script}, strings.Split(tt.words, " ")...)...)
		if strings.Join(strings.Fields(got), " ") != tt.want {
			t.Errorf("%q completes to %q, want %q", tt.words, got, tt.want)
		}
	}
	for _, shell := range []string{"zsh", "fish"} {
		if got := mustRun(t, "completion", shell); !strings.Contains(got, "tandem __complete") {
			t.Errorf("the script of %s is %q", shell, got)
		}
	}
	if got := strings.Fields(mustRun(t, "__complete", "up", "--mode=c")); fmt.Sprint(got) != "[--mode=colocated]" {
		t.Errorf("a flag with its value completes to %v", got)
	}
}

// TestSettingsReachTheProcesses: what is said to `up` in any way reaches its
// processes, and only through `up`: a worker that took the gateway's address for
// its own would not start.
func TestSettingsReachTheProcesses(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TANDEM_LISTEN", inUse(t))
	t.Setenv("TANDEM_SLOTS", "3")
	t.Setenv("TANDEM_ADVERTISE", "nowhere.invalid")
	t.Setenv("TANDEM_CONFIG", writeFile(t, filepath.Join(dir, "config.yaml"), `
model-name: named-by-file
context: 512
worker:
  role: decode
  colocated-only: true
  listen: 192.0.2.1:1
gateway:
  mode: colocated
`))
	f := up(t)
	if f.model != "named-by-file" {
		t.Errorf("the model is called %q", f.model)
	}
	f.complete(ask{prompt: prompt(500, 1), max: 12, mode: "disaggregated"})
	if _, err := f.try(t.Context(), ask{prompt: prompt(500, 1), max: 13}); err == nil {
		t.Error("the context is longer than 512")
	}
	for _, worker := range []string{"prefill-0", "decode-0"} {
		if n := f.metric(worker, `tandem_worker_slots{state="total"}`); n != 3 {
			t.Errorf("%s has %v slots, want 3", worker, n)
		}
	}
}
