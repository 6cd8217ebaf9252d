package lane

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/tandem-llm/tandem/bench"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

// Config is what [Run] measures.
type Config struct {
	Lanes     []wire.LaneMode // LaneTLS, LaneQUIC, LaneLocal
	PageBytes int64           // of one page
	Pages     int             // of one run
	Pings     int             // per turn; 0: none
	Plan      bench.Plan
	// Child makes the command that runs [Child] on its standard streams: this program again.
	Child func() *exec.Cmd
}

// Bars: the least ratio of rates to the bare connection of the same kind.
const rateBar = 0.9

// kinds are the lanes that can be measured.
var kinds = []wire.LaneMode{wire.LaneTLS, wire.LaneQUIC, wire.LaneLocal}

// Run measures the lanes one after the other. The report is nil only if nothing could be begun; with an error it has
// what was measured before, and is marked as incomplete.
func Run(ctx context.Context, cfg Config) (*bench.Report, error) {
	switch {
	case len(cfg.Lanes) == 0 || slices.ContainsFunc(cfg.Lanes, func(l wire.LaneMode) bool { return !slices.Contains(kinds, l) }):
		return nil, fmt.Errorf("lanes %v: use some of %v", cfg.Lanes, kinds)
	case cfg.PageBytes < 4<<10 || cfg.PageBytes > 256<<20 || cfg.Pages < 1 || cfg.Pages > 1<<20:
		return nil, fmt.Errorf("%d pages of %d bytes: use at least one of 4 KiB to 256 MiB", cfg.Pages, cfg.PageBytes)
	}
	report := bench.NewReport("lane")
	report.Set("processes", "two, on the loopback interface")
	report.Set("run", fmt.Sprintf("%d pages of %d bytes", cfg.Pages, cfg.PageBytes))
	var err error
	for _, lane := range cfg.Lanes {
		var runs *bench.Runs
		if runs, err = one(ctx, cfg, lane, report); runs != nil {
			report.Turns += runs.Turns()
		}
		if err != nil {
			break
		}
	}
	report.Finish(err == nil)
	return report, err
}

// one measures one lane and appends its results.
func one(ctx context.Context, cfg Config, lane wire.LaneMode, report *bench.Report) (*bench.Runs, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := start(ctx, cfg, lane)
	if err != nil {
		return nil, fmt.Errorf("%s lane: %w", lane, err)
	}
	defer s.close()
	say := cfg.Plan.Say
	if say != nil {
		cfg.Plan.Say = func(line string) { say(string(lane) + " lane: " + line) }
	}
	bare := bench.Side{Name: "bare", Run: s.timed(s.plain)}
	if lane == wire.LaneLocal { // there is no connection: what is left is to have the bytes in other memory
		bare = bench.Side{Name: "memcpy", Run: s.timed(s.copied)}
	}
	runs, err := bench.Alternate(ctx, cfg.Plan, bench.Side{Name: "handoff", Run: s.timed(s.handoff)}, bare)
	results := runs.Results()
	for i := range results {
		if results[i].Name == figureRate && lane != wire.LaneLocal {
			results[i].Judge(bench.AtLeast(bench.OnRatio, rateBar))
		}
	}
	if err == nil && cfg.Pings > 0 {
		var pings *bench.Runs
		pings, err = bench.Alternate(ctx, cfg.Plan, bench.Side{Name: "control", Run: s.pings})
		results = append(results, pings.Results()...)
	}
	for _, r := range results {
		r.Name = string(lane) + " lane: " + r.Name
		report.Results = append(report.Results, r)
	}
	return runs, err
}

// src is the source's process.
type src struct {
	cfg     Config
	lane    wire.LaneMode
	dir     string // of the destination's identity
	cmd     *exec.Cmd
	orders  *json.Encoder
	stdin   io.Closer
	replies chan reply
	broken  error // why replies was closed
	node    *wire.Node
	peer    wire.Endpoint
	bare    *bareConn
	buf     []byte // ring
	other   []byte // a second ring, to copy to
	sum     uint32 // checksum of one page of zeros
}

func start(ctx context.Context, cfg Config, lane wire.LaneMode) (_ *src, err error) {
	s := &src{cfg: cfg, lane: lane, replies: make(chan reply), buf: make([]byte, ring*cfg.PageBytes)}
	s.sum = state.UpdateChecksum(0, s.buf[:cfg.PageBytes])
	// Memory that was never written is one physical page of zeros, which is always in cache.
	for i := range s.buf {
		s.buf[i] = byte(i >> 7)
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	ca, err := mesh.NewCA(nil, 0)
	if err != nil {
		return nil, err
	}
	own, err := ca.Issue(mesh.RoleWorker, source, []string{"127.0.0.1"}, 24*time.Hour)
	if err != nil {
		return nil, err
	}
	other, err := ca.Issue(mesh.RoleWorker, destination, []string{"127.0.0.1"}, 24*time.Hour)
	if err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "tandem-bench-*"); err != nil {
		return nil, err
	}
	if err := other.Save(filepath.Join(s.dir, "identity")); err != nil {
		return nil, err
	}
	if err := s.spawn(ctx); err != nil {
		return nil, err
	}
	r, err := s.order(ctx, order{Op: opSetup, Dir: filepath.Join(s.dir, "identity"), Lane: lane, PageBytes: cfg.PageBytes, Pages: cfg.Pages})
	if err != nil {
		return nil, err
	}
	if r.Endpoint == nil {
		return nil, errors.New("the other process names no endpoint")
	}
	s.peer = *r.Endpoint
	if s.node, err = listen(own, lane, cfg.PageBytes); err != nil {
		return nil, err
	}
	if lane == wire.LaneLocal {
		s.other = append([]byte(nil), s.buf...)
		return s, nil
	}
	if s.bare, err = dialBare(ctx, lane, own, r.Bare); err != nil {
		return nil, fmt.Errorf("bare connection: %w", err)
	}
	return s, nil
}

// spawn starts the destination's process. It ends with ctx, and by itself when this process is gone.
func (s *src) spawn(ctx context.Context) error {
	s.cmd = s.cfg.Child()
	stdin, err := s.cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		s.cmd = nil
		return err
	}
	context.AfterFunc(ctx, func() { _ = s.cmd.Process.Kill() })
	s.stdin, s.orders = stdin, json.NewEncoder(stdin)
	go func() {
		defer close(s.replies)
		for in := json.NewDecoder(bufio.NewReader(stdout)); ; {
			var r reply
			if s.broken = in.Decode(&r); s.broken != nil {
				return
			}
			select {
			case s.replies <- r:
			case <-ctx.Done():
				s.broken = ctx.Err()
				return
			}
		}
	}()
	return nil
}

func (s *src) close() {
	if s.bare != nil {
		s.bare.quit()
	}
	if s.node != nil {
		s.node.Close()
	}
	if s.cmd != nil {
		s.stdin.Close()
		stop := time.AfterFunc(5*time.Second, func() { _ = s.cmd.Process.Kill() })
		for range s.replies { // until it has closed its output
		}
		_ = s.cmd.Wait()
		stop.Stop()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

// order gives an order and waits for its reply.
func (s *src) order(ctx context.Context, o order) (reply, error) {
	if err := s.orders.Encode(o); err != nil {
		return reply{}, fmt.Errorf("%w: %w", errGone, err)
	}
	return s.reply(ctx)
}

func (s *src) reply(ctx context.Context) (reply, error) {
	select {
	case r, ok := <-s.replies:
		if !ok {
			return r, fmt.Errorf("%w: %w", errGone, s.broken)
		}
		if r.Err != "" {
			return r, errors.New("destination: " + r.Err)
		}
		return r, nil
	case <-ctx.Done():
		return reply{}, ctx.Err()
	}
}

const figureRate = "rate"

// moved is what one run took.
type moved struct {
	took      time.Duration
	cpuSource float64  // seconds; NaN where unknown
	cpuDest   *float64 // the same as reported; nil where unknown
}

func (s *src) timed(run func(context.Context) (moved, error)) func(context.Context) ([]bench.Figure, error) {
	return func(ctx context.Context) ([]bench.Figure, error) {
		m, err := run(ctx)
		if err != nil {
			return nil, err
		}
		bytes := float64(s.cfg.PageBytes) * float64(s.cfg.Pages)
		gib := bytes / (1 << 30)
		dest := math.NaN()
		if m.cpuDest != nil {
			dest = *m.cpuDest
		}
		return []bench.Figure{
			{Name: figureRate, Unit: "Gb/s", Value: 8 * bytes / m.took.Seconds() / 1e9},
			{Name: "source CPU", Unit: "s/GiB", Value: m.cpuSource / gib},
			{Name: "destination CPU", Unit: "s/GiB", Value: dest / gib},
		}, nil
	}
}

// plain sends a run's pages over the bare connection.
func (s *src) plain(ctx context.Context) (moved, error) {
	if err := s.orders.Encode(order{Op: opBare}); err != nil {
		return moved{}, fmt.Errorf("%w: %w", errGone, err)
	}
	start, cpu := time.Now(), cpuSeconds()
	sent := make(chan error, 1)
	go func() { sent <- s.bare.send(s.cfg.Pages, s.buf) }()
	select {
	case err := <-sent:
		if err != nil {
			return moved{}, err
		}
	case <-ctx.Done():
		s.bare.quit() // ends the write
		<-sent
		return moved{}, ctx.Err()
	}
	r, err := s.reply(ctx)
	return moved{took: time.Since(start), cpuSource: cpuSeconds() - cpu, cpuDest: r.CPU}, err
}

// copied copies a run's pages in memory.
func (s *src) copied(context.Context) (moved, error) {
	page := int(s.cfg.PageBytes)
	start, cpu := time.Now(), cpuSeconds()
	for i := range s.cfg.Pages {
		at := i % ring * page
		copy(s.other[at:at+page], s.buf[at:])
	}
	return moved{took: time.Since(start), cpuSource: cpuSeconds() - cpu}, nil
}

// handoff sends a run's pages as one handoff.
func (s *src) handoff(ctx context.Context) (moved, error) {
	b := state.Binding{
		Handoff: newID(), Request: "bench", Tenant: "bench",
		Source:      state.Peer{Worker: source, Incarnation: 1},
		Destination: state.Peer{Worker: destination, Incarnation: 1},
		Deadline:    time.Hour,
	}
	r, err := s.order(ctx, order{Op: opExpect, Binding: &b})
	if err != nil {
		return moved{}, err
	}
	room, opened, over := make(chan struct{}, 1), newOnce(), newOnce()
	snd, err := s.node.Push(b, s.peer, r.Ticket, wire.SenderEvents{
		Opened: func() { opened.fire(nil) },
		Room: func() {
			select {
			case room <- struct{}{}:
			default:
			}
		},
		Failed:   func(err error) { opened.fire(err); over.fire(err) },
		Quiesced: func() { over.fire(nil) },
	})
	if err != nil {
		return moved{}, err
	}
	defer snd.Abort("measured") // does nothing after the end
	if err := opened.in(ctx); err != nil {
		return moved{}, err
	}
	start, cpu := time.Now(), cpuSeconds()
	if err := s.orders.Encode(order{Op: opGrant}); err != nil {
		return moved{}, fmt.Errorf("%w: %w", errGone, err)
	}
	for i := 0; i < s.cfg.Pages; {
		buf, ok := snd.Buffer(int(s.cfg.PageBytes))
		if !ok {
			select {
			case <-room:
			case <-over.done:
				return moved{}, fmt.Errorf("the handoff ended: %w", over.wait())
			case <-ctx.Done():
				return moved{}, ctx.Err()
			}
			continue
		}
		if err := snd.Send(s.header(b.Handoff, i), buf); err != nil {
			return moved{}, err
		}
		i++
	}
	if err := snd.Finish(nil); err != nil {
		return moved{}, err
	}
	r, err = s.reply(ctx)
	m := moved{took: time.Since(start), cpuSource: cpuSeconds() - cpu, cpuDest: r.CPU}
	if err != nil {
		return m, err
	}
	if _, err := s.order(ctx, order{Op: opCommit}); err != nil {
		return m, err
	}
	return m, over.in(ctx)
}

// header is that of a page of zeros, as Sender.Buffer returns them.
func (s *src) header(id handoff.ID, i int) state.UnitHeader {
	return state.UnitHeader{
		Handoff: id, Unit: state.UnitPage, Component: state.AttentionKV, Codec: state.CodecRaw, DType: state.F16, DTypeV: state.F16,
		Index: uint32(i), Layers: state.Range{End: 1}, Tokens: state.Range{First: uint32(i), End: uint32(i) + 1},
		Length: uint64(s.cfg.PageBytes), Checksum: s.sum,
	}
}

// in waits for the event as long as ctx.
func (o *once) in(ctx context.Context) error {
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pings measures round trips on the pair, on which nothing else happens.
func (s *src) pings(ctx context.Context) ([]bench.Figure, error) {
	took := make([]float64, s.cfg.Pings)
	for i := range took {
		d, err := s.node.Ping(ctx, destination, 1<<10)
		if err != nil {
			return nil, err
		}
		took[i] = float64(d.Nanoseconds()) / 1000
	}
	slices.Sort(took)
	return []bench.Figure{
		{Name: "ping of 1 KiB, p50", Unit: "µs", Value: took[len(took)/2]},
		{Name: "ping of 1 KiB, p99", Unit: "µs", Value: took[len(took)*99/100]},
	}, nil
}

func newID() handoff.ID {
	var entropy [10]byte
	_, _ = rand.Read(entropy[:]) // never fails
	return handoff.Mint(uint64(time.Now().UnixMilli()), entropy)
}
