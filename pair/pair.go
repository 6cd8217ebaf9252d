package pair

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

// PeerCommand is the hidden subcommand of this executable that calls Serve.
const PeerCommand = "pair-peer"

// Options say how to run the child.
type Options struct {
	// Command is the program and its arguments; by default this executable with PeerCommand,
	// without configuration files.
	Command []string
	// Env is added to this process's environment.
	Env []string
	// Budget is the deadline of every call whose context has none sooner [10m].
	Budget time.Duration
}

// Pair is a child process and this process's end of the data plane to it. Its methods are called by
// one goroutine at a time.
type Pair struct {
	budget time.Duration

	cmd    *exec.Cmd
	stdin  io.WriteCloser
	out    *bufio.Writer // guarded by writing
	stderr *tail
	calls  uint64

	writing sync.Mutex

	mu      sync.Mutex
	answers map[uint64]chan *reply
	dead    chan struct{} // closed when the child's output ended
	exited  chan struct{} // closed when the process was reaped
	exit    error         // valid once exited is closed

	id          *mesh.Identity
	incarnation uint64
	peerName    string
	peerInc     uint64

	info  *Info
	nodes nodes
}

// names of the two processes in the mesh.
const (
	sourceName      = "pair-source"
	destinationName = "pair-destination"
)

// Start runs the child and gives both processes an identity of a certificate authority of their own,
// which is forgotten at once. ctx bounds the start only.
func Start(ctx context.Context, o Options) (*Pair, error) {
	if o.Budget <= 0 {
		o.Budget = 10 * time.Minute
	}
	if len(o.Command) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("pair: the peer is this same program: %w", err)
		}
		o.Command = []string{self, "--config=", PeerCommand} // whatever files say, it needs none of it
	}
	dir, err := os.MkdirTemp("", "tandem-pair-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // the child has read it by then
	p := &Pair{
		budget: o.Budget, answers: map[uint64]chan *reply{}, dead: make(chan struct{}), exited: make(chan struct{}), stderr: &tail{},
		incarnation: uint64(time.Now().UnixMilli()), peerName: destinationName, peerInc: uint64(time.Now().UnixMilli()),
	}
	ca, err := mesh.NewCA(nil, 24*time.Hour)
	if err != nil {
		return nil, err
	}
	if p.id, err = ca.Issue(mesh.RoleWorker, sourceName, nil, 0); err != nil {
		return nil, err
	}
	theirs, err := ca.Issue(mesh.RoleWorker, destinationName, nil, 0)
	if err == nil {
		err = theirs.Save(dir)
	}
	if err != nil {
		return nil, err
	}
	if err := p.run(o); err != nil {
		return nil, err
	}
	if _, err := p.call(ctx, request{Hello: &helloRequest{Mesh: dir, Incarnation: p.peerInc}}); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// run starts the process and reads its answers.
func (p *Pair) run(o Options) error {
	p.cmd = exec.Command(o.Command[0], o.Command[1:]...)
	p.cmd.Env = append(os.Environ(), o.Env...)
	p.cmd.Stderr = p.stderr
	p.cmd.WaitDelay = time.Second
	ownGroup(p.cmd)
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("pair: start the peer process: %w", err)
	}
	p.out = bufio.NewWriter(p.stdin)
	go func() {
		p.read(bufio.NewReader(stdout))
		p.exit = p.cmd.Wait()
		close(p.exited)
	}()
	return nil
}

// read hands answers to who waits for them, until the child's output ends.
func (p *Pair) read(in *bufio.Reader) {
	defer close(p.dead)
	for {
		a := &reply{}
		if err := readMessage(in, a); err != nil {
			if !errors.Is(err, io.EOF) {
				_ = p.cmd.Process.Kill() // it does not speak this protocol any more
			}
			return
		}
		p.mu.Lock()
		c := p.answers[a.ID]
		delete(p.answers, a.ID)
		p.mu.Unlock()
		if c != nil {
			c <- a
		}
	}
}

// call sends a request and waits for its answer.
func (p *Pair) call(ctx context.Context, q request) (*reply, error) {
	if q.Within <= 0 {
		q.Within = p.budget
	}
	if d, ok := ctx.Deadline(); ok {
		q.Within = min(q.Within, time.Until(d))
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.calls++
	q.ID = p.calls
	answer := make(chan *reply, 1)
	p.mu.Lock()
	p.answers[q.ID] = answer
	p.mu.Unlock()
	wrote := make(chan error, 1)
	go func() { // a child that does not read must not hold us up
		p.writing.Lock() // the answer can be quicker than the return of the write before
		defer p.writing.Unlock()
		wrote <- writeMessage(p.out, &q)
	}()
	// The child says itself when it is late with a handoff; this is for one that says nothing.
	late := time.NewTimer(q.Within + 5*time.Second)
	defer late.Stop()
	for {
		select {
		case a := <-answer:
			if a.Err != nil {
				return nil, a.Err
			}
			return a, nil
		case err := <-wrote:
			if err != nil {
				_ = p.cmd.Process.Kill()
				return nil, p.gone()
			}
			wrote = nil
		case <-p.dead:
			select {
			case a := <-answer: // the last thing it said
				if a.Err == nil {
					return a, nil
				}
				return nil, a.Err
			default:
			}
			return nil, p.gone()
		case <-ctx.Done():
			// The answer would come into the middle of the next call's work: the child is of no use now.
			_ = p.cmd.Process.Kill()
			return nil, ctx.Err()
		case <-late.C:
			_ = p.cmd.Process.Kill()
			return nil, fmt.Errorf("%w (%v)", ErrTimeout, q.Within)
		}
	}
}

// gone says why the child ended.
func (p *Pair) gone() error {
	select {
	case <-p.exited:
	case <-time.After(5 * time.Second):
		return ErrPeerGone
	}
	why := "without a word"
	if s := p.stderr.String(); s != "" {
		why = "its last words: " + s
	}
	if p.exit != nil {
		return fmt.Errorf("%w (%v), %s", ErrPeerGone, p.exit, why)
	}
	return fmt.Errorf("%w, %s", ErrPeerGone, why)
}

// Open opens an engine in the child and the data plane on both sides. What was open before is closed.
func (p *Pair) Open(ctx context.Context, e EngineOptions, t Transport) (*Info, error) {
	if len(t.Lanes) == 0 {
		t.Lanes = []wire.LaneMode{wire.LaneTLS}
	}
	if err := p.nodes.close(); err != nil {
		return nil, err
	}
	p.nodes, p.info = nil, nil
	a, err := p.call(ctx, request{Open: &openRequest{Engine: e, Transport: t}})
	if err != nil {
		return nil, err
	}
	if a.Info == nil {
		return nil, fmt.Errorf("%w: no description after open", ErrMessage)
	}
	p.info = a.Info
	if err := p.listen(); err != nil {
		return nil, err
	}
	return p.info, nil
}

// listen opens this side's nodes, as a process that nobody met before.
func (p *Pair) listen() error {
	p.incarnation++
	return p.reopen()
}

// reopen opens this side's nodes as the process that they were.
func (p *Pair) reopen() (err error) {
	p.nodes, err = listen(p.id, p.incarnation, &p.info.Transport)
	return err
}

// Reconnect closes all connections and opens this side's data plane as a process that the child never met.
func (p *Pair) Reconnect() error {
	if p.info == nil {
		return fmt.Errorf("%w: no engine is open", ErrCall)
	}
	return errors.Join(p.nodes.close(), p.listen())
}

// Place empties the child's engine and lays out everything but the sequence that moves.
func (p *Pair) Place(ctx context.Context, l Layout) error {
	_, err := p.call(ctx, request{Place: &l})
	return err
}

// Prefill computes a prompt in the child and returns the first token of its answer.
func (p *Pair) Prefill(ctx context.Context, tokens []engine.Token, chunk int) (engine.Token, error) {
	a, err := p.call(ctx, request{Prefill: &prefillRequest{Tokens: tokens, Chunk: chunk}})
	if err != nil {
		return 0, err
	}
	return a.First, nil
}

// Continue decodes steps tokens of the child's sequence.
func (p *Pair) Continue(ctx context.Context, steps int) ([]Step, error) {
	var all []Step
	for len(all) < steps { // in answers that fit into a message
		a, err := p.call(ctx, request{Continue: min(steps-len(all), 4096)})
		if err != nil {
			return all, err
		}
		if len(a.Steps) == 0 {
			return all, fmt.Errorf("%w: no steps", ErrMessage)
		}
		all = append(all, a.Steps...)
	}
	return all, nil
}

// State sums the canonical state of the child's sequence.
func (p *Pair) State(ctx context.Context) (StateSum, error) {
	a, err := p.call(ctx, request{State: true})
	if err != nil {
		return StateSum{}, err
	}
	if a.State == nil {
		return StateSum{}, fmt.Errorf("%w: no state sum", ErrMessage)
	}
	return *a.State, nil
}

// Clear ends what is going on in the child and empties its engine.
func (p *Pair) Clear(ctx context.Context) error {
	_, err := p.call(ctx, request{Clear: true})
	return err
}

// Stats counts what the child owns.
func (p *Pair) Stats(ctx context.Context) (Stats, error) {
	a, err := p.call(ctx, request{Stats: true})
	if err != nil {
		return Stats{}, err
	}
	if a.Stats == nil {
		return Stats{}, fmt.Errorf("%w: no statistics", ErrMessage)
	}
	return *a.Stats, nil
}

// OwnStats counts what this process's end owns; its engine belongs to the caller and is not counted.
func (p *Pair) OwnStats() Stats {
	var s Stats
	p.nodes.count(&s)
	return s
}

// idleWithin is how long what a handoff leaves to goroutines of the wire may take.
const idleWithin = 10 * time.Second

// ErrNotIdle: something of a handoff is left.
var ErrNotIdle = errors.New("pair: a handoff left something behind")

// Idle returns nil once neither side owns anything of a handoff, or what is still owned after ten seconds.
func (p *Pair) Idle(ctx context.Context) error {
	for began := time.Now(); ; {
		s, err := p.Stats(ctx)
		if err != nil {
			return err
		}
		own := p.OwnStats()
		if s.Idle() && own.Idle() {
			return nil
		}
		if time.Since(began) > idleWithin {
			return fmt.Errorf("%w: destination %+v, source %+v", ErrNotIdle, s, own)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// Info is what the child said at Open, or nil.
func (p *Pair) Info() *Info { return p.info }

// Identity is what the child's engine is, by its own word.
func (p *Pair) Identity() (state.Identity, error) {
	if p.info == nil {
		return state.Identity{}, fmt.Errorf("%w: no engine is open", ErrCall)
	}
	lim := state.DefaultLimits()
	return state.DecodeIdentity(p.info.Identity, &lim)
}

// Close ends the child: it may leave by itself for a moment, then it is killed.
func (p *Pair) Close() error {
	err := p.nodes.close()
	p.nodes = nil
	_ = p.stdin.Close()
	select {
	case <-p.exited:
	case <-time.After(leaveGrace + 2*time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	return err
}

// tail keeps the end of what the child wrote to its standard error.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailBytes = 4096

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if len(t.b) > tailBytes {
		t.b = append(t.b[:0], t.b[len(t.b)-tailBytes:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.b))
}
