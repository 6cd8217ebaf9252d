package pair

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/llama"
	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

// EngineOptions say which engine to open. They travel to the child; see llama.Options.
type EngineOptions struct {
	Lib         string      `json:"lib"`
	Model       string      `json:"model"`
	Slots       int         `json:"slots,omitempty"`
	Cells       int         `json:"cells,omitempty"`
	BatchTokens int         `json:"batch_tokens,omitempty"`
	UBatch      int         `json:"ubatch,omitempty"`
	Threads     int         `json:"threads,omitempty"`
	KVType      state.DType `json:"kv_type,omitempty"`
	GPULayers   int         `json:"gpu_layers,omitempty"`
}

// OpenEngine opens an engine in this process as the child does.
func OpenEngine(o EngineOptions) (*llama.Engine, error) {
	return llama.Open(llama.Options{
		Lib: o.Lib, Model: o.Model, Slots: o.Slots, Cells: o.Cells, BatchTokens: o.BatchTokens, UBatch: o.UBatch,
		Threads: o.Threads, KVType: o.KVType, GPULayers: o.GPULayers, Log: slog.New(slog.DiscardHandler),
	})
}

// Transport configures the data plane between the two processes: one node per lane on each side.
type Transport struct {
	// Lanes are the modes that Send may ask for; LaneTLS alone by default.
	Lanes []wire.LaneMode `json:"lanes"`
	// PageTokens is the largest page, in tokens, and Tokens the longest sequence.
	PageTokens int `json:"page_tokens"`
	Tokens     int `json:"tokens"`
	// Window is the credit of one handoff and TLSLanes the number of lanes, as in wire.Config.
	Window   int64 `json:"window,omitempty"`
	TLSLanes int   `json:"tls_lanes,omitempty"`
	// PageBytes and LargestUnit follow from the engine and are filled in by the child.
	PageBytes   int64 `json:"page_bytes,omitempty"`
	LargestUnit int64 `json:"largest_unit,omitempty"`
}

// size fills in the sizes that follow from an engine, as a worker does.
func (t *Transport) size(e engine.Engine) {
	t.PageBytes = max(int64(e.PageBytes(t.PageTokens)), 1<<16)
	_, snapshot := e.Info().Inventory.SnapshotBytes(uint32(t.Tokens))
	t.LargestUnit = max(t.PageBytes, int64(snapshot), 1<<20)
}

// Info is what the child says of itself after Open.
type Info struct {
	Architecture string     `json:"architecture"`
	Model        string     `json:"model"`
	Backend      string     `json:"backend"`
	Build        string     `json:"build"`
	KVType       string     `json:"kv_type"`
	Threads      int        `json:"threads"`
	Slots        int        `json:"slots"`
	Cells        int        `json:"cells"`
	BatchTokens  int        `json:"batch_tokens"`
	Identity     []byte     `json:"identity"` // state.Identity.Encode
	Transport    Transport  `json:"transport"`
	Peer         state.Peer `json:"peer"`
	PID          int        `json:"pid"`
	OpenTook     int64      `json:"open_took"` // nanoseconds
	_            struct{}   `json:"-"`
}

// nodes are the data planes of one process, by lane.
type nodes map[wire.LaneMode]*wire.Node

// listen opens one node per lane.
func listen(id *mesh.Identity, incarnation uint64, t *Transport) (nodes, error) {
	if len(t.Lanes) == 0 || len(t.Lanes) > 3 {
		return nil, fmt.Errorf("%w: %d lanes", ErrCall, len(t.Lanes))
	}
	ns := nodes{}
	for _, lane := range t.Lanes {
		if ns[lane] != nil {
			continue
		}
		n, err := listenOne(id, incarnation, lane, t)
		if err != nil {
			return nil, errors.Join(err, ns.close())
		}
		ns[lane] = n
	}
	return ns, nil
}

func listenOne(id *mesh.Identity, incarnation uint64, lane wire.LaneMode, t *Transport) (*wire.Node, error) {
	return wire.Listen(wire.Config{
		Identity: id, Incarnation: incarnation, Addr: "127.0.0.1:0", Lane: lane, Lanes: t.TLSLanes, Window: t.Window,
		PageBytes: t.PageBytes, LargestUnit: t.LargestUnit,
		// As in a worker: imports wait for the step that is running.
		Timeouts: wire.Timeouts{FirstByte: 30 * time.Second, Progress: time.Minute},
	})
}

func (ns nodes) close() error {
	var errs []error
	for _, n := range ns {
		errs = append(errs, n.Close())
	}
	return errors.Join(errs...)
}

// count adds what the nodes own to s.
func (ns nodes) count(s *Stats) {
	for _, n := range ns {
		w := n.Stats()
		s.Streams += w.Handoffs
		s.Tickets += w.Tickets
		s.Buffers += w.Sending + w.Receiving
		s.Granted += w.Granted
	}
	s.Goroutines = runtime.NumGoroutine()
	s.Files = -1
	if list, err := os.ReadDir("/proc/self/fd"); err == nil {
		s.Files = len(list)
	}
}

func limits(t *Transport) state.Limits {
	l := state.DefaultLimits()
	l.UnitBytes = uint64(t.LargestUnit)
	return l
}
