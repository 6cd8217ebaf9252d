// Package supervise runs child processes for `tandem up`: it starts them,
// passes on what they announce, restarts those that die, and stops all of them
// in order when its context ends.
//
// A child speaks to its supervisor over three pipes. Its standard output carries
// announcements, one line each, which the package hands to the host unread. Its
// standard error carries log lines. Its standard input carries nothing: it stays
// open for as long as the supervisor lives, so a child that reads end of file
// knows that its supervisor is gone, however it died (see [ParentGone]).
//
// A Group's methods may be called from any goroutine; events arrive one at a
// time, in order per child.
package supervise

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// Spec describes one child.
type Spec struct {
	Name string
	Path string          // executable
	Args func() []string // asked anew at every start, so that a restart can use what the first run announced
	Env  []string        // nil: the supervisor's own
	Log  io.Writer       // standard error of the child, written whole lines at a time
}

// EventKind says what happened to a child.
type EventKind int

// The kinds of events.
const (
	Started    EventKind = iota // PID is set
	Announced                   // Line is set
	Exited                      // Err is set, nil for exit status 0
	Restarting                  // Delay is set
)

// Event is one thing that happened to a child.
type Event struct {
	Name  string
	Kind  EventKind
	PID   int
	Line  []byte // owned by the receiver
	Err   error
	Delay time.Duration
}

// Options configures a Group. The zero value is usable.
type Options struct {
	Grace   time.Duration // from the stop signal to the kill; default 10 s
	Backoff time.Duration // first restart delay, doubled up to MaxBackoff; default 200 ms
	// MaxBackoff bounds the restart delay, and is also how long a child must have
	// run for its delay to start small again; default 10 s.
	MaxBackoff time.Duration
	OnEvent    func(Event)
}

// Group is a set of supervised children.
type Group struct {
	opt    Options
	ctx    context.Context
	wg     sync.WaitGroup
	events sync.Mutex // serialises OnEvent

	mu       sync.Mutex
	children map[string]*exec.Cmd // running ones; guarded by mu
}

// maxLine bounds an announcement or log line; longer ones are cut.
const maxLine = 1 << 16

// New makes a Group whose children stop when ctx ends.
func New(ctx context.Context, opt Options) *Group {
	if opt.Grace <= 0 {
		opt.Grace = 10 * time.Second
	}
	if opt.Backoff <= 0 {
		opt.Backoff = 200 * time.Millisecond
	}
	if opt.MaxBackoff <= 0 {
		opt.MaxBackoff = 10 * time.Second
	}
	if opt.OnEvent == nil {
		opt.OnEvent = func(Event) {}
	}
	return &Group{opt: opt, ctx: ctx, children: map[string]*exec.Cmd{}}
}

// Start begins to supervise one child and returns at once. The child is
// restarted whenever it exits, until the group's context ends.
func (g *Group) Start(spec Spec) {
	g.wg.Add(1)
	go func() {
		defer g.wg.Done()
		g.keepRunning(spec)
	}()
}

// Wait returns when the context has ended and every child is gone.
func (g *Group) Wait() { g.wg.Wait() }

// PID returns the process id of a running child, 0 when it is not running.
func (g *Group) PID(name string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if cmd := g.children[name]; cmd != nil {
		return cmd.Process.Pid
	}
	return 0
}

func (g *Group) emit(e Event) {
	g.events.Lock()
	defer g.events.Unlock()
	g.opt.OnEvent(e)
}

func (g *Group) keepRunning(spec Spec) {
	delay := g.opt.Backoff
	for {
		began := time.Now()
		err := g.runOnce(spec)
		g.emit(Event{Name: spec.Name, Kind: Exited, Err: err})
		if g.ctx.Err() != nil {
			return
		}
		if time.Since(began) >= g.opt.MaxBackoff {
			delay = g.opt.Backoff
		}
		g.emit(Event{Name: spec.Name, Kind: Restarting, Delay: delay})
		select {
		case <-g.ctx.Done():
			return
		case <-time.After(delay):
		}
		delay = min(2*delay, g.opt.MaxBackoff)
	}
}

// runOnce starts the child and returns when it is gone and its pipes are drained.
func (g *Group) runOnce(spec Spec) error {
	cmd := exec.Command(spec.Path, spec.Args()...)
	cmd.Env = spec.Env
	cmd.SysProcAttr = childAttr()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("supervise: %s: %w", spec.Name, err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("supervise: %s: %w", spec.Name, err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("supervise: %s: %w", spec.Name, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("supervise: start %s: %w", spec.Name, err)
	}
	g.mu.Lock()
	g.children[spec.Name] = cmd
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		delete(g.children, spec.Name)
		g.mu.Unlock()
	}()
	g.emit(Event{Name: spec.Name, Kind: Started, PID: cmd.Process.Pid})

	exited := make(chan struct{})
	var pipes sync.WaitGroup
	pipes.Add(2)
	go func() {
		defer pipes.Done()
		eachLine(stdout, func(line []byte) {
			g.emit(Event{Name: spec.Name, Kind: Announced, PID: cmd.Process.Pid, Line: line})
		})
	}()
	go func() {
		defer pipes.Done()
		eachLine(stderr, func(line []byte) {
			if spec.Log != nil {
				_, _ = spec.Log.Write(append(line, '\n'))
			}
		})
	}()
	var stop sync.WaitGroup
	stop.Add(1)
	go func() {
		defer stop.Done()
		select {
		case <-exited:
			return
		case <-g.ctx.Done():
		}
		requestStop(cmd.Process)
		select {
		case <-exited:
		case <-time.After(g.opt.Grace):
			_ = cmd.Process.Kill()
		}
	}()
	// Wait closes the pipes, so drain them first; a grandchild that holds them
	// open cannot keep us: the pipes are ours to read only until the child is gone.
	state, err := cmd.Process.Wait()
	close(exited)
	stop.Wait()
	drained := make(chan struct{})
	go func() { pipes.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(time.Second):
	}
	_ = stdout.Close()
	_ = stderr.Close()
	<-drained
	switch {
	case err != nil:
		return fmt.Errorf("supervise: wait for %s: %w", spec.Name, err)
	case !state.Success():
		return &exec.ExitError{ProcessState: state}
	}
	return nil
}

// eachLine calls fn with every line of r, cut to maxLine bytes.
func eachLine(r io.Reader, fn func([]byte)) {
	br := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := br.ReadSlice('\n')
		if len(line) > 0 {
			cut := append([]byte(nil), trimEOL(line)...)
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = br.ReadSlice('\n')
			}
			fn(cut)
		}
		if err != nil {
			return
		}
	}
}

func trimEOL(b []byte) []byte {
	for len(b) > 0 && (b[len(b)-1] == '\n' || b[len(b)-1] == '\r') {
		b = b[:len(b)-1]
	}
	return b
}

// ParentGone returns a context that ends with ctx, or when r (a child's standard
// input) reports end of file because its supervisor is gone.
func ParentGone(ctx context.Context, r io.Reader) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, r)
		cancel()
	}()
	return ctx, cancel
}

// requestStop asks a process to stop by itself; where the system has no such
// signal it is killed.
func requestStop(p *os.Process) {
	if err := stopSignal(p); err != nil && !errors.Is(err, os.ErrProcessDone) {
		_ = p.Kill()
	}
}
