package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/model/tiny"
)

// lab is a fleet whose processes the test starts itself: `tandem gateway`, four
// workers that can be killed at an exact point, and perhaps a bus server.
type lab struct {
	t        *testing.T
	dir      string
	model    string // file
	external bool   // the bus is a process of its own
	client   *http.Client

	mu       sync.Mutex
	changed  *sync.Cond
	stopping bool                           // guarded by mu
	log      bytes.Buffer                   // guarded by mu; standard error of all processes
	lives    map[string]int                 // guarded by mu; starts of each process
	children []*process                     // guarded by mu; all that were ever started
	running  map[string]*process            // guarded by mu; those that are ready
	deaths   []string                       // guarded by mu; workers that died, in order
	failure  error                          // guarded by mu; a process that cannot start
	seen     map[string]*buspb.Registration // guarded by mu; newest of each worker

	supervisors sync.WaitGroup
	url         string // of the API; the same for every gateway
	gatewayDied bool   // at least once
	http, bus   string // addresses for gateways and bus servers to come back at

	suspect  string // process that is not at rest, while polling
	baseline map[string]footprint
	answers  map[string][]int32 // of solo colocated requests, by question
	checked  []*asked           // requests that ended, to be found in the gateway's trace
}

const labModel = "m"

// logEnv names a file for the log of the last lab, also of a test that passes.
const logEnv = "TANDEM_E2E_LOG"

var labWorkers = []string{"prefill-0", "prefill-1", "decode-0", "decode-1"}

func roleOf(worker string) string { role, _, _ := strings.Cut(worker, "-"); return role }

// process is one running child.
type process struct {
	name   string
	cmd    *exec.Cmd
	ready  announced
	exited chan struct{}
	err    error // how it ended; read after exited
}

// newLab starts a lab and warms it up. It is stopped, and must stop cleanly, when
// the test ends.
func newLab(t *testing.T, external bool) *lab {
	t.Helper()
	model, err := tiny.Cached(tiny.NemotronHMoE)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{
		t: t, dir: t.TempDir(), model: model, external: external,
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		lives:  map[string]int{}, running: map[string]*process{}, seen: map[string]*buspb.Registration{},
		baseline: map[string]footprint{}, answers: map[string][]int32{},
		http: "127.0.0.1:0", bus: "127.0.0.1:0",
	}
	l.changed = sync.NewCond(&l.mu)
	ca, err := mesh.NewCA(nil, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(role mesh.Role, name string) *mesh.Identity {
		id, err := ca.Issue(role, name, []string{"localhost", "127.0.0.1"}, time.Hour)
		if err == nil {
			err = id.Save(filepath.Join(l.dir, name))
		}
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	issue(mesh.RoleGateway, "gateway")
	issue(mesh.RoleBus, "bus")
	for _, w := range labWorkers {
		issue(mesh.RoleWorker, w)
	}
	observer := issue(mesh.RoleGateway, "observer")

	t.Cleanup(l.stop)
	if external {
		l.startBus()
	}
	l.startGateway()
	for _, w := range labWorkers {
		l.supervisors.Go(func() { l.supervise(w) })
	}
	l.observe(observer)
	l.await("four workers", func() bool { return len(l.seen) == len(labWorkers) })
	l.settleBaseline()
	return l
}

// observe listens to registrations as another gateway would.
func (l *lab) observe(id *mesh.Identity) {
	l.t.Helper()
	conn, err := bus.Connect(l.t.Context(), bus.Options{Identity: id, URL: "tls://" + l.bus, ReconnectMax: 200 * time.Millisecond})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = conn.Close(ctx)
	})
	_, err = bus.ServeGateway(conn, 1, bus.GatewayHandler{
		Registration: func(r *buspb.Registration) { l.note(func() { l.seen[r.Worker] = r }) },
		Statuses:     func(*buspb.Statuses) {},
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) note(fn func()) {
	l.mu.Lock()
	fn()
	l.mu.Unlock()
	l.changed.Broadcast()
}

// await waits until ok, which is called with mu held, reports true.
func (l *lab) await(what string, ok func() bool) {
	l.t.Helper()
	expired := false
	timer := time.AfterFunc(patience, func() { l.note(func() { expired = true }) })
	defer timer.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for !ok() {
		if l.failure != nil || expired {
			l.t.Fatalf("not seen: %s (%v)", what, l.failure)
		}
		l.changed.Wait()
	}
}

// poll waits until ok returns nothing; what it returned last says what is
// missing.
func (l *lab) poll(ok func() string) {
	l.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		l.suspect = ""
		missing := ok()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			if p := l.process(l.suspect); p != nil {
				_ = p.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines go to the log
				<-p.exited
			}
			l.t.Fatalf("never: %s", missing)
		}
	}
}

// spawn starts a child and waits for its announcement.
func (l *lab) spawn(name string, cmd *exec.Cmd) (*process, error) {
	p := &process{name: name, cmd: cmd, exited: make(chan struct{})}
	if _, err := cmd.StdinPipe(); err != nil { // held open: its end tells the child that the test is gone
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	l.note(func() {
		l.children = append(l.children, p)
		if l.stopping { // stop has not seen it
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	})
	var reading sync.WaitGroup
	line := make(chan []byte, 1)
	reading.Go(func() {
		s := bufio.NewScanner(stdout)
		if s.Scan() {
			line <- bytes.Clone(s.Bytes())
		}
		close(line)
		for s.Scan() {
		}
	})
	reading.Go(func() {
		for r := bufio.NewReader(stderr); ; {
			text, err := r.ReadBytes('\n')
			l.note(func() { l.log.Write(text) })
			if err != nil {
				return
			}
		}
	})
	go func() {
		reading.Wait()
		p.err = cmd.Wait()
		close(p.exited)
	}()
	if err := json.Unmarshal(<-line, &p.ready); err != nil {
		_ = cmd.Process.Kill()
		<-p.exited
		return nil, fmt.Errorf("%s did not start: %w", name, cmp(p.err, err))
	}
	l.note(func() {
		l.running[name] = p
		l.lives[name]++
	})
	return p, nil
}

func cmp(errs ...error) error { return errors.Join(errs...) }

// trace names the event file of a life of a process that is about to start.
func (l *lab) trace(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return filepath.Join(l.dir, fmt.Sprintf("%s.%d.jsonl", name, l.lives[name]))
}

// child makes the test binary play something.
func child(env string, spec any) *exec.Cmd {
	raw, _ := json.Marshal(spec)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env+"="+string(raw))
	return cmd
}

func (l *lab) startBus() {
	l.t.Helper()
	p, err := l.spawn("bus", child(busEnv, busSpec{Mesh: filepath.Join(l.dir, "bus"), Listen: l.bus}))
	if err != nil {
		l.t.Fatal(err)
	}
	l.bus = strings.TrimPrefix(p.ready.Bus, "tls://")
}

func (l *lab) startGateway() {
	l.t.Helper()
	args := []string{
		"gateway", "--announce", "--supervised", "--mesh=" + filepath.Join(l.dir, "gateway"), "--model=" + l.model, "--model-name=" + labModel,
		"--listen=" + l.http, "--drain=2s", "--trace-lifecycle=" + l.trace("gateway"),
	}
	if l.external {
		args = append(args, "--nats=tls://"+l.bus)
	} else {
		args = append(args, "--bus-mesh="+filepath.Join(l.dir, "bus"), "--bus-listen="+l.bus)
	}
	p, err := l.spawn("gateway", exec.Command(binary, args...))
	if err != nil {
		l.t.Fatal(err)
	}
	l.http, l.url = p.ready.HTTP, "http://"+p.ready.HTTP
	if !l.external {
		l.bus = strings.TrimPrefix(p.ready.Bus, "tls://")
	}
}

// supervise keeps one worker running. Every life but the first begins without
// faults.
func (l *lab) supervise(name string) {
	for {
		p, err := l.spawn(name, child(workerEnv, workerSpec{
			Mesh: filepath.Join(l.dir, name), Bus: "tls://" + l.bus, Model: l.model, Role: roleOf(name), Trace: l.trace(name),
		}))
		if err != nil {
			l.note(func() {
				if !l.stopping {
					l.failure = err
				}
			})
			return
		}
		<-p.exited
		stopping := false
		l.note(func() {
			stopping = l.stopping
			if !stopping {
				delete(l.running, name)
				delete(l.seen, name)
				l.deaths = append(l.deaths, name)
			}
		})
		if stopping {
			return
		}
	}
}

// process returns a running process, nil while it is down.
func (l *lab) process(name string) *process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running[name]
}

// signal sends a signal to a process.
func (l *lab) signal(name string, sig syscall.Signal) {
	l.t.Helper()
	if err := l.process(name).cmd.Process.Signal(sig); err != nil {
		l.t.Fatal(err)
	}
}

// kill ends the gateway or the bus server with SIGKILL.
func (l *lab) kill(name string) {
	l.t.Helper()
	p := l.process(name)
	l.signal(name, syscall.SIGKILL)
	<-p.exited
	l.note(func() { delete(l.running, name) })
}

// stop ends all processes.
func (l *lab) stop() {
	var all []*process
	l.note(func() {
		l.stopping = true
		for _, p := range l.children {
			select {
			case <-p.exited:
			default:
				all = append(all, p)
			}
		}
	})
	for _, names := range [][]string{labWorkers, {"gateway"}, {"bus"}} {
		for _, p := range all {
			if slices.Contains(names, p.name) {
				_ = p.cmd.Process.Signal(syscall.SIGCONT)
				_ = p.cmd.Process.Signal(syscall.SIGTERM)
			}
		}
		for _, p := range all {
			if slices.Contains(names, p.name) {
				l.ended(p)
			}
		}
	}
	l.supervisors.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if file := os.Getenv(logEnv); file != "" {
		if err := os.WriteFile(file, l.log.Bytes(), 0o600); err != nil {
			l.t.Error(err)
		}
	}
	if l.t.Failed() {
		l.t.Logf("log of the lab:\n%s", tail(l.log.String(), 30000))
	}
}

// unclaim makes the faults of a test free to be claimed again.
func (l *lab) unclaim() {
	l.t.Helper()
	files, err := filepath.Glob(filepath.Join(l.dir, "claim.*"))
	if err != nil {
		l.t.Fatal(err)
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			l.t.Fatal(err)
		}
	}
}

// pace is the least time of a decode step while a fault is awaited.
const pace = 50 * time.Millisecond

// ended waits for the end of a process that was asked to stop.
func (l *lab) ended(p *process) {
	select {
	case <-p.exited:
		if p.err != nil && p.ready.Ready != "" {
			l.t.Errorf("%s ended with %v", p.name, p.err)
		}
	case <-time.After(time.Minute):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines go to the log
		<-p.exited
		l.t.Errorf("%s did not stop", p.name)
	}
}

// arm sets the faults of all workers of a role, which keep the pace then, and lets
// go who was held. Of the workers with one fault one acts, once.
func (l *lab) arm(role string, list ...fault) {
	l.t.Helper()
	list = slices.Clone(list)
	for i := range list {
		if list[i].N == 0 {
			list[i].N = 1
		}
		list[i].Claim = filepath.Join(l.dir, "claim."+list[i].Claim)
	}
	for _, name := range labWorkers {
		if roleOf(name) == role {
			l.order(name, orders{Faults: list, Pace: pace})
		}
	}
}

// disarm clears all faults, lets go who was held, and lets all run at full speed.
func (l *lab) disarm() {
	l.t.Helper()
	for _, name := range labWorkers {
		l.order(name, orders{})
	}
}

func (l *lab) order(name string, o orders) {
	l.t.Helper()
	p := l.process(name)
	if p == nil {
		return // it comes back without
	}
	raw, err := json.Marshal(o)
	if err != nil {
		l.t.Fatal(err)
	}
	resp, err := l.client.Post("http://"+p.ready.Metrics+"/faults", "application/json", bytes.NewReader(raw))
	if err != nil {
		select {
		case <-p.exited: // killed meanwhile
			return
		default:
			l.t.Fatal(err)
		}
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		l.t.Fatalf("faults: status %d", resp.StatusCode)
	}
}

// acted waits until some worker has acted on a fault.
func (l *lab) acted(claim string) {
	l.t.Helper()
	l.poll(func() string {
		_, err := os.Stat(filepath.Join(l.dir, "claim."+claim))
		switch {
		case err == nil:
			return ""
		case errors.Is(err, fs.ErrNotExist):
			return "the fault " + claim
		}
		l.t.Fatal(err)
		return ""
	})
}

// dead returns the number of workers that died so far.
func (l *lab) dead() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.deaths)
}

// awaitDeath waits for the n-th death, from 0, and returns who it was and the
// trace that it left.
func (l *lab) awaitDeath(n int) (name, trace string) {
	l.t.Helper()
	l.await("the death of a worker", func() bool { return len(l.deaths) > n })
	l.mu.Lock()
	defer l.mu.Unlock()
	name = l.deaths[n]
	life := -1
	for _, d := range l.deaths[:n+1] {
		if d == name {
			life++
		}
	}
	return name, filepath.Join(l.dir, fmt.Sprintf("%s.%d.jsonl", name, life))
}
