package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/mesh"
)

// costEnv makes the test binary the rest of the world of BenchmarkStream: a worker and its clients.
const costEnv = "TANDEM_TEST_GATEWAY_COST"

func TestMain(m *testing.M) {
	if dir := os.Getenv(costEnv); dir != "" {
		if err := streamWorld(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	m.Run()
}

// load is what the world of BenchmarkStream is told: the gateway's bus and address first, then one load a line.
type load struct {
	Bus, API        string
	Streams, Tokens int           // streams at once, tokens of each
	Step            time.Duration // between two tokens of a stream; 0: as fast as they go
}

// BenchmarkStream measures what a streamed token costs the gateway process, the embedded bus included:
// real HTTP and a real bus over the loopback interface, worker and clients in another process. Each
// operation is one token; cpu-µs/token is processor time of this process, user and system.
func BenchmarkStream(b *testing.B) {
	dir := b.TempDir()
	ca, err := mesh.NewCA(time.Now, time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	issue := func(role mesh.Role, name string) *mesh.Identity {
		id, err := ca.Issue(role, name, []string{"127.0.0.1"}, time.Hour)
		if err != nil {
			b.Fatal(err)
		}
		return id
	}
	if err := issue(mesh.RoleWorker, "w1").Save(dir); err != nil {
		b.Fatal(err)
	}
	server, err := bus.StartServer(bus.ServerOptions{Identity: issue(mesh.RoleBus, "bus")})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	g, err := New(Config{Name: "g1", Incarnation: 1, Model: "tiny", Vocab: newTestVocab(), Mode: Colocated})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	conn, err := bus.Connect(ctx, bus.Options{Identity: issue(mesh.RoleGateway, "g1"), Server: server})
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(context.Background())
	link, err := bus.ServeGateway(conn, 1, g.BusHandler())
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx, link, ln) }()
	defer func() { cancel(); <-ended }()

	world := exec.Command(os.Args[0])
	world.Env = append(os.Environ(), costEnv+"="+dir)
	world.Stderr = os.Stderr
	in, _ := world.StdinPipe()
	out, _ := world.StdoutPipe()
	if err := world.Start(); err != nil {
		b.Fatal(err)
	}
	defer world.Wait()
	defer in.Close()
	answers := bufio.NewScanner(out)
	tell := func(b *testing.B, l load) {
		json.NewEncoder(in).Encode(l)
		if !answers.Scan() || answers.Text() != "ok" {
			b.Fatalf("the clients failed: %q", answers.Text())
		}
	}
	tell(b, load{Bus: server.URL(), API: "http://" + ln.Addr().String()})

	for _, l := range []load{
		{Streams: 1, Step: 2 * time.Millisecond}, {Streams: 8, Step: 4 * time.Millisecond}, {Streams: 64, Step: 6 * time.Millisecond}, {Streams: 1}, {Streams: 64},
	} {
		b.Run(fmt.Sprintf("streams=%d/step=%v", l.Streams, l.Step), func(b *testing.B) {
			l.Tokens = max(2, b.N/l.Streams)
			b.ReportAllocs()
			began, switches := spent()
			tell(b, l)
			ended, switched := spent()
			n := float64(l.Tokens * l.Streams)
			b.ReportMetric(float64((ended-began).Nanoseconds())/1e3/n, "cpu-µs/token")
			b.ReportMetric(float64(switched-switches)/n, "switches/token") // threads that went to sleep
		})
	}
}

// spent is the processor time of this process, and how often its threads went to sleep.
func spent() (time.Duration, int64) {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), u.Nvcsw
}

// streamWorld is the other process: a worker named w1 whose tokens come in steps, and clients that read them.
func streamWorld(dir string) error {
	lines := json.NewDecoder(os.Stdin)
	var l load
	if err := lines.Decode(&l); err != nil {
		return err
	}
	api := l.API
	id, err := mesh.Load(dir, time.Now)
	if err != nil {
		return err
	}
	ctx := context.Background()
	conn, err := bus.Connect(ctx, bus.Options{Identity: id, URL: l.Bus})
	if err != nil {
		return err
	}
	runs := make(chan *buspb.Command, 1024)
	link, err := bus.ServeWorker(conn, 1, bus.WorkerHandler{Command: func(c *buspb.Command, reply func(*buspb.Reply)) {
		reply(&buspb.Reply{Verdict: buspb.Verdict_VERDICT_ACCEPTED})
		if c.GetRun() != nil {
			runs <- c
		}
	}})
	if err != nil {
		return err
	}
	announce := func() {
		w := &worker{name: "w1", role: "both", incarnation: 1, seq: map[string]uint64{}}
		r := w.registration()
		r.ContextTokens, r.CellsTotal = 1<<30, 1<<40
		link.Announce(r)
	}
	announce()
	go func() {
		for range time.Tick(bus.Beat) {
			announce()
		}
	}()
	for {
		r, err := http.Get(api + "/readyz")
		if err == nil && r.StatusCode == http.StatusOK {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("ok")
	for lines.Decode(&l) == nil {
		if err := stream(link, api, runs, l); err != nil {
			return err
		}
		fmt.Println("ok")
	}
	return nil
}

// stream serves one load.
func stream(link *bus.WorkerLink, api string, runs chan *buspb.Command, l load) error {
	errs := make(chan error, l.Streams)
	var wg sync.WaitGroup
	for range l.Streams {
		wg.Go(func() {
			body := fmt.Sprintf(`{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":%d}`, l.Tokens)
			r, err := http.Post(api+"/v1/chat/completions", "application/json", strings.NewReader(body))
			if err == nil {
				var n int64
				n, err = io.Copy(io.Discard, r.Body)
				if r.StatusCode != http.StatusOK || n < int64(l.Tokens) {
					err = fmt.Errorf("status %d, %d bytes", r.StatusCode, n)
				}
				r.Body.Close()
			}
			errs <- err
		})
	}
	var list []*buspb.Command
	for range l.Streams {
		list = append(list, <-runs)
	}
	for i := range l.Tokens {
		if l.Step > 0 {
			time.Sleep(l.Step)
		}
		s := &buspb.Statuses{GatewayIncarnation: 1}
		for _, c := range list {
			t := &buspb.Tokens{From: uint32(i), Tokens: []*buspb.Token{{Id: int32('a'), Piece: []byte("a")}}}
			if i == l.Tokens-1 {
				t.Finish = buspb.Finish_FINISH_LENGTH
			}
			s.Statuses = append(s.Statuses, &buspb.Status{
				Handoff: c.GetHandoff(), Request: c.GetRequest(), Side: buspb.Side_SIDE_SOURCE, Seq: uint64(i + 1),
				Body: &buspb.Status_Tokens{Tokens: t},
			})
		}
		if err := link.Statuses("g1", s); err != nil {
			return err
		}
	}
	wg.Wait()
	for range l.Streams {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}
