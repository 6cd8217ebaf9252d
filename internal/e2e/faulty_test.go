package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/engine/llama"
	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/supervise"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/wire"
	"github.com/tandem-llm/tandem/worker"
)

// The test binary also plays workers that a test can kill, freeze or hold at an
// exact point: real workers with a real engine, whose wrapper, or whose event
// sink, does it. And it plays an external bus server.

const (
	workerEnv = "TANDEM_E2E_WORKER" // holds a workerSpec
	busEnv    = "TANDEM_E2E_BUS"    // holds a busSpec
)

// workerSpec describes such a worker.
type workerSpec struct {
	Mesh, Bus, Model, Role, Trace string
}

// busSpec describes an external bus server.
type busSpec struct {
	Mesh, Listen string
}

// announced is the line that a process prints when it is ready; gateways of the
// program under test print the first and the last two fields too.
type announced struct {
	Ready   string `json:"ready"`
	Metrics string `json:"metrics"`
	HTTP    string `json:"http"`
	Bus     string `json:"bus"`
}

// playChild runs this process as a worker or bus server if the environment says
// so, and does not return then.
func playChild() {
	var err error
	switch {
	case os.Getenv(workerEnv) != "":
		err = runWorker(os.Getenv(workerEnv))
	case os.Getenv(busEnv) != "":
		err = runBus(os.Getenv(busEnv))
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// childContext ends on SIGTERM and when the test process is gone.
func childContext() (context.Context, func()) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	ctx, cancel := supervise.ParentGone(ctx, os.Stdin)
	return ctx, func() { cancel(); stop() }
}

func announce(a announced) {
	line, _ := json.Marshal(a)
	fmt.Println(string(line))
}

// Sizes of the lab's workers: small pages, so that short prompts have several,
// and more decode slots than there are background requests.
const (
	labContext = 2048
	labPage    = 128
	labSlots   = 6
)

// labWire makes waiting for a dead or silent peer short, and connections without
// handoffs go away soon, so that goroutines and descriptors can be compared with
// their numbers at the start.
var labWire = wire.Timeouts{
	FirstByte: 5 * time.Second, Progress: 5 * time.Second, Commit: 5 * time.Second, Retry: 200 * time.Millisecond,
	Dead: 4 * time.Second, Idle: 700 * time.Millisecond,
}

// labGrace is how long a silent gateway keeps its requests on the lab's workers.
const labGrace = 4 * time.Second

func runWorker(raw string) error {
	var spec workerSpec
	if err := json.Unmarshal([]byte(raw), &spec); err != nil {
		return err
	}
	ctx, stop := childContext()
	defer stop()
	lib, err := install.Ensure(ctx, install.Options{})
	if err != nil {
		return err
	}
	eng, err := llama.Open(llama.Options{
		Lib: lib.Dir, Model: spec.Model, Slots: labSlots, Cells: labSlots * labContext,
		BatchTokens: labPage, UBatch: labPage, Threads: 1,
	})
	if err != nil {
		return err
	}
	id, err := mesh.Load(spec.Mesh, nil)
	if err != nil {
		return err
	}
	trace, err := os.OpenFile(spec.Trace, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	events := telemetry.NewEvents(id.Name(), 0, func() time.Duration { return time.Duration(time.Now().UnixNano()) })
	faults := &faults{events: events}
	if err := events.Attach(&faultySink{file: trace, faults: faults}); err != nil {
		return err
	}
	defer events.Close()
	metrics := telemetry.NewWorker("e2e", spec.Role)
	w, err := worker.New(ctx, worker.Config{
		Engine: &faultyEngine{Engine: eng, faults: faults}, Identity: id, Incarnation: uint64(time.Now().UnixMilli()),
		Role: worker.Role(spec.Role), ModelName: labModel, PageTokens: labPage, ContextTokens: labContext,
		Wire: wire.Config{Addr: "127.0.0.1:0", Lanes: 2, Timeouts: labWire}, Bus: bus.Options{URL: spec.Bus},
		GatewayGrace: labGrace, Quarantine: 2 * time.Second,
		Log:     slog.New(slog.NewTextHandler(os.Stderr, nil)).With("process", id.Name()),
		Metrics: metrics, Events: events,
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler())
	mux.Handle("/faults", faults)
	mux.HandleFunc("GET /footprint", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(ownFootprint()) })
	go func() { _ = http.Serve(l, mux) }()
	announce(announced{Ready: "worker", Metrics: l.Addr().String()})
	return w.Run(ctx, 2*time.Second)
}

// ownFootprint is what this process has now. The metrics say the same, but the
// goroutines that collect them, a number that varies, are among those counted.
func ownFootprint() footprint {
	fds, _ := os.ReadDir("/proc/self/fd") // where there is none, none is counted
	return footprint{Goroutines: runtime.NumGoroutine(), Files: len(fds)}
}

func runBus(raw string) error {
	var spec busSpec
	if err := json.Unmarshal([]byte(raw), &spec); err != nil {
		return err
	}
	ctx, stop := childContext()
	defer stop()
	id, err := mesh.Load(spec.Mesh, nil)
	if err != nil {
		return err
	}
	srv, err := bus.StartServer(bus.ServerOptions{Identity: id, Listen: spec.Listen})
	if err != nil {
		return err
	}
	defer srv.Close()
	announce(announced{Ready: "bus", Bus: srv.URL()})
	<-ctx.Done()
	return nil
}
