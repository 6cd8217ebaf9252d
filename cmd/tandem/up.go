package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/model"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/supervise"
)

type upCmd struct {
	serveFlags
	engineFlags
	gatewayFlags
	dataFlags

	Prefill   int    `default:"1" help:"Number of prefill workers."`
	Decode    int    `default:"1" help:"Number of decode workers."`
	Colocated int    `default:"0" help:"Number of workers in role both, which also serve whole requests."`
	NATS      string `name:"nats" help:"Use this external NATS server or cluster instead of the embedded one; needs --ca with the authority it trusts." placeholder:"URL"`
	CA        string `name:"ca" help:"Certificate authority directory; without it one is made for this run." placeholder:"DIR"`
	TraceDir  string `help:"Write each process's lifecycle events to DIR/NAME.jsonl." placeholder:"DIR"`
	DumpState string `help:"Write each handed-off sequence's state to DIR. The files hold what the prompt was turned into; for verification only." placeholder:"DIR"`
	JSON      bool   `name:"json" help:"Print progress as JSON lines."`
	Verbose   bool   `short:"v" help:"Show the log of every process."`
}

func (c *upCmd) Run(a *app) error {
	if err := c.check(); err != nil {
		return usageError{err}
	}
	out := &progress{w: a.stdout, json: c.JSON}
	lib, err := install.Ensure(a.ctx, install.Options{Progress: func(line string) { out.say("engine", line) }})
	if err != nil {
		return err
	}
	out.say("engine", lib.String())
	if c.Model == "" {
		if c.Model, err = tiny.Cached(tiny.NemotronHMoE); err != nil {
			return err
		}
		if c.ModelName == "" {
			c.ModelName = "tandem-tiny"
		}
		out.say("model", "no --model given: serving a small hybrid model with random weights; its text is random, its state is of every kind a real model has")
	}
	if err := c.checkModel(out); err != nil {
		return err
	}
	run, err := os.MkdirTemp("", "tandem-up-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(run) // holds the keys of this run
	fleet, err := c.newFleet(a, out, run)
	if err != nil {
		return err
	}
	return fleet.serve(a.ctx)
}

func (c *upCmd) check() error {
	switch {
	case c.Prefill < 0 || c.Decode < 0 || c.Colocated < 0 || c.Prefill+c.Decode+c.Colocated > 64:
		return errors.New("worker counts must be between 0 and 64 in all")
	case c.Prefill+c.Colocated == 0:
		return errors.New("no worker computes prompts; raise --prefill or --colocated")
	case c.Mode == "disaggregated" && c.Decode+c.Colocated == 0:
		return errors.New("--mode disaggregated needs a worker that decodes; raise --decode or --colocated")
	case c.NATS != "" && c.CA == "":
		return errors.New("--nats needs --ca: the server must trust the same authority as this run")
	}
	if err := errors.Join(c.serveFlags.check(), c.engineFlags.check(), c.gatewayFlags.check(), c.dataFlags.check()); err != nil {
		return err
	}
	if err := addressFree("--listen", c.Listen); err != nil {
		return err
	}
	if c.NATS == "" {
		return addressFree("--bus-listen", c.BusListen)
	}
	return nil
}

// addressFree reports early, and once, what would end the gateway at each start.
func addressFree(flag, addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("%w; choose another address with %s", err, flag)
	}
	return l.Close()
}

// checkModel refuses a model before any process is started for it.
func (c *upCmd) checkModel(out *progress) error {
	m, err := model.Inspect(c.Model)
	if err != nil {
		return err
	}
	if err := errors.Join(m.Serve(), c.fits(m)); err != nil {
		return err
	}
	if c.Mode != "colocated" {
		if err := m.Handoff(); err != nil {
			return fmt.Errorf("%w (--mode colocated)", err)
		}
		return nil
	}
	if c.Decode > 0 {
		out.say("model", "--mode colocated: nothing is handed off, so no decode worker is started")
		c.Decode = 0
	}
	return nil
}

// fleet is the set of processes of one `tandem up`.
type fleet struct {
	cmd  *upCmd
	out  *progress
	self string
	dir  string
	logs io.Writer
	also func(supervise.Event) // gets every event too; may be nil

	mu      sync.Mutex
	bus     string            // URL of the bus, once known
	http    string            // address of the API, once known
	ready   map[string]string // name of a process that announced itself -> its announcement
	failed  string            // what does not start, or empty
	changed chan struct{}     // closed and replaced at every change
}

// announcement is the line that a gateway or worker prints when it is ready.
type announcement struct {
	Ready   string `json:"ready"` // gateway or worker
	Name    string `json:"name"`
	HTTP    string `json:"http,omitempty"`
	Bus     string `json:"bus,omitempty"`
	Metrics string `json:"metrics,omitempty"`
	Model   string `json:"model,omitempty"`
}

func (c *upCmd) newFleet(a *app, out *progress, dir string) (*fleet, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f := &fleet{cmd: c, out: out, self: self, dir: dir, ready: map[string]string{}, changed: make(chan struct{})}
	f.logs = &logTail{keep: 64 << 10}
	if c.Verbose {
		f.logs = a.stderr
	}
	var ca *mesh.CA
	if c.CA != "" {
		if ca, err = mesh.LoadCA(c.CA, nil); err != nil {
			err = usageError{fmt.Errorf("--ca: %w", err)}
		}
	} else {
		ca, err = mesh.NewCA(nil, runTTL)
	}
	if err != nil {
		return nil, err
	}
	issue := func(role mesh.Role, name string) error {
		id, err := ca.Issue(role, name, []string{"localhost", "127.0.0.1", "::1"}, runTTL)
		if err != nil {
			return err
		}
		return id.Save(filepath.Join(dir, name))
	}
	if err := issue(mesh.RoleGateway, gatewayName); err != nil {
		return nil, err
	}
	if err := issue(mesh.RoleBus, busName); err != nil {
		return nil, err
	}
	for _, w := range f.workers() {
		if err := issue(mesh.RoleWorker, w.name); err != nil {
			return nil, err
		}
	}
	if c.TraceDir != "" {
		if err := os.MkdirAll(c.TraceDir, 0o755); err != nil {
			return nil, usageError{fmt.Errorf("--trace-dir: %w", err)}
		}
	}
	if c.DumpState != "" {
		if err := os.MkdirAll(c.DumpState, 0o700); err != nil {
			return nil, usageError{fmt.Errorf("--dump-state: %w", err)}
		}
	}
	return f, nil
}

// runTTL is how long the identities of one run are valid: longer than any run. Their
// keys live in the run's own directory and end with it, so a short life would guard
// nothing and stop a server that is left running.
const runTTL = 10 * 365 * 24 * time.Hour

// Names of the processes that every fleet has; workers are named by role and number.
const (
	gatewayName = "gateway"
	busName     = "bus"
)

type fleetWorker struct{ name, role string }

func (f *fleet) workers() []fleetWorker {
	var all []fleetWorker
	add := func(n int, prefix, role string) {
		for i := range n {
			all = append(all, fleetWorker{name: prefix + "-" + strconv.Itoa(i), role: role})
		}
	}
	add(f.cmd.Prefill, "prefill", "prefill")
	add(f.cmd.Decode, "decode", "decode")
	add(f.cmd.Colocated, "both", "both")
	return all
}

// serve starts everything, says when it is ready, and returns when ctx has ended
// and every process is gone.
func (f *fleet) serve(ctx context.Context) error {
	stop, err := f.start(ctx)
	if err != nil && ctx.Err() == nil {
		return err
	}
	if err == nil {
		f.printReady()
	}
	<-ctx.Done()
	f.out.say("stop", "stopping: finishing requests in flight")
	stop()
	f.out.say("stop", "stopped")
	return err // not nil when the interrupt came before the fleet was ready
}

// start starts all processes and returns when they are ready. stop ends them all and
// returns when they are gone; after an error it is needed only if ctx has ended.
func (f *fleet) start(ctx context.Context) (stop func(), err error) {
	// The gateway stops first and workers when it is gone: until then requests in
	// flight, also those that wait for a slot, still need them.
	opt := supervise.Options{Grace: f.cmd.Drain + stopLimit, OnEvent: f.event}
	serving, stopServing := context.WithCancel(ctx)
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	front, back := supervise.New(serving, opt), supervise.New(working, opt)
	stop = func() {
		stopServing()
		front.Wait()
		stopWorking()
		back.Wait()
	}
	front.Start(supervise.Spec{Name: gatewayName, Path: f.self, Args: f.gatewayArgs, Env: childEnv(), Log: f.logs})
	err = f.await(ctx, func() bool { return f.bus != "" })
	if err == nil {
		for _, w := range f.workers() {
			back.Start(supervise.Spec{Name: w.name, Path: f.self, Args: func() []string { return f.workerArgs(w) }, Env: childEnv(), Log: f.logs})
		}
		want := 1 + len(f.workers())
		if err = f.await(ctx, func() bool { return len(f.ready) == want }); err == nil {
			err = f.awaitReady(ctx)
		}
	}
	if err != nil && ctx.Err() == nil {
		stop()
		if l, ok := f.logs.(*logTail); ok {
			err = fmt.Errorf("%w\nlast log lines:\n%s", err, l.tail())
		}
	}
	return stop, err
}

// stopLimit is how long a process may take to end after it has drained: a gateway
// delivers its last cancels, a worker waits for streams that it aborted.
const stopLimit = 10 * time.Second

// startLimit is how long the fleet may take to become ready: loading a large
// model from a cold disk is the slow part.
const startLimit = 15 * time.Minute

// maxStartFailures is how often a process may die before the fleet is first
// ready; what fails that often at start will not heal by itself.
const maxStartFailures = 3

func (f *fleet) await(ctx context.Context, done func() bool) error {
	limit := time.After(startLimit)
	for {
		f.mu.Lock()
		ok, changed := done(), f.changed
		failed := f.failed
		f.mu.Unlock()
		switch {
		case failed != "":
			return errors.New(failed)
		case ok:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return fmt.Errorf("not ready after %v; run with -v to see what the processes say", startLimit)
		}
	}
}

func (f *fleet) update(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
	close(f.changed)
	f.changed = make(chan struct{})
}

// event follows the processes.
func (f *fleet) event(e supervise.Event) {
	if f.also != nil {
		f.also(e)
	}
	switch e.Kind {
	case supervise.Started:
		f.out.say("process", fmt.Sprintf("%s started, pid %d", e.Name, e.PID))
	case supervise.Announced:
		var line announcement
		if json.Unmarshal(e.Line, &line) != nil || line.Ready == "" {
			return
		}
		f.out.say("process", e.Name+" is up")
		if f.out.json && line.Metrics != "" {
			f.out.event(map[string]any{"event": "metrics", "process": e.Name, "http": line.Metrics})
		}
		f.update(func() {
			f.ready[e.Name] = string(e.Line)
			if e.Name == gatewayName {
				f.bus, f.http = line.Bus, line.HTTP
				// A restarted gateway must come back where workers and clients look.
				f.cmd.Listen = line.HTTP
				if f.cmd.NATS == "" {
					f.cmd.BusListen = hostPort(line.Bus)
				}
			}
		})
	case supervise.Exited:
		if e.Err != nil {
			f.out.say("process", fmt.Sprintf("%s died: %v", e.Name, e.Err))
		}
	case supervise.Restarting:
		f.out.say("process", fmt.Sprintf("%s restarts in %v", e.Name, e.Delay))
		if e.Delay >= 200*time.Millisecond<<(maxStartFailures-1) {
			f.update(func() {
				if f.ready[e.Name] == "" {
					f.failed = fmt.Sprintf("%s does not start", e.Name)
				}
			})
		}
	}
}

// defaultListen is the default of --listen, and of what commands ask.
const defaultListen = "127.0.0.1:8080"

func (f *fleet) printReady() {
	f.mu.Lock()
	host := f.http
	f.mu.Unlock()
	if f.cmd.JSON {
		f.out.event(map[string]any{"event": "ready", "http": host, "model": f.modelName()})
		return
	}
	key := ""
	if f.cmd.APIKeys != "" {
		key = " -H 'Authorization: Bearer KEY'" // the keys are nobody's to print
	}
	where := ""
	if host != defaultListen {
		where = " --url http://" + host
	}
	fmt.Fprintf(f.out.w, `
ready: http://%s

  curl http://%s/v1/chat/completions -H 'Content-Type: application/json'%s \
    -d '{"model":"%s","messages":[{"role":"user","content":"Hello"}],"max_tokens":64}'

  tandem handoffs --last%s    # where its time went

Ctrl-C stops everything.
`, host, host, key, f.modelName(), where)
}

func (f *fleet) modelName() string {
	return f.cmd.serveFlags.modelName()
}

// progress prints what happens, as text or JSON lines.
type progress struct {
	mu   sync.Mutex
	w    io.Writer
	json bool
}

func (p *progress) say(topic, line string) {
	if p.json {
		p.event(map[string]any{"event": topic, "message": line})
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "%-8s %s\n", topic, line)
}

func (p *progress) event(fields map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = json.NewEncoder(p.w).Encode(fields)
}

// childEnv is the environment of the processes of a fleet. Everything that they
// are told is on their command lines: a setting of this command, such as
// TANDEM_LISTEN or a configuration file's, must not reach a worker as its own.
func childEnv() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "TANDEM_") && !strings.HasPrefix(v, install.EnvDir+"=")
	})
	return append(env, configEnv+"=")
}
