package archtest

// module is the path all package names below are relative to.
const module = "github.com/tandem-llm/tandem"

// row says which of the module's packages one package may import, beside the
// standard library. "core" stands for all packages of the core.
type row struct {
	pkg     string // or "dir/..." for everything below a directory
	imports []string
	why     string
}

// The core decides and knows nothing of the world: the same code runs live,
// under test and on a virtual clock. Its packages may import each other.
var core = []string{"handoff", "state", "sample", "text", "route", "kv", "kv/block", "kv/radix", "kv/internal/ledger", "kv/mirror", "sched", "place", "reshard", "spec"}

// coreLibraries are the modules from outside that a core package may import.
var coreLibraries = map[string]map[string]string{
	"state": {"github.com/zeebo/blake3": "a pure function of its input; the digests it makes are part of the wire format that state defines"},
}

// layers are all packages outside the core.
var layers = []row{
	{"engine", []string{"state"}, "the seam between hosts and engines names what moves, and nothing that decides"},
	{"engine/install", nil, "must run where nothing is installed yet, so it must not reach the bindings of what it installs"},
	{"engine/llama/internal/preflight", nil, "looks for libffi before anything that needs it is initialized, so it may depend on next to nothing"},
	{"engine/llama", []string{"engine", "engine/llama/blob", "engine/llama/internal/preflight", "model", "state"}, "one engine; scheduling, transport and policy are its host's"},
	{"engine/llama/blob", []string{"state"}, "parses llama.cpp's state as bytes, so that it can be fuzzed without llama.cpp"},
	{"engine/timed", []string{"internal/splitmix", "state"}, "says how long steps take, of whatever engine"},
	{"workload", []string{"engine/timed", "internal/splitmix"}, "what arrives and when; who serves it is replay's, and files are opened by the command"},
	{"engine/...", []string{"engine", "state"}, "what serves all engines knows none"},
	{"kv/kvtest", []string{"core"}, "a suite for managers of kv to run"},

	{"gguf", nil, "reads hostile files; the less it can reach the better"},
	{"model", []string{"gguf", "state"}, "says what a model keeps, from its file alone"},
	{"model/tiny", []string{"gguf", "internal/splitmix"}, "writes files; what they mean is model's"},
	{"model/wide", []string{"gguf"}, "writes files, like model/tiny"},
	{"chat", nil, "a template and messages in, a prompt out"},

	{"mesh", nil, "proves who a peer is, not what it may do"},
	{"wire", []string{"handoff", "mesh", "state"}, "an adapter: moves what state describes, decides nothing"},
	{"bus/buspb", nil, "generated messages"},
	{"bus", []string{"bus/buspb", "handoff", "mesh", "state"}, "an adapter: carries facts and commands, decides nothing"},
	{"api/...", []string{"handoff", "state", "text"}, "an adapter: a dialect of requests and answers, ignorant of workers"},
	{"telemetry", []string{"handoff", "state"}, "observes; nothing may depend on what it observed"},
	{"telemetry/timeline", []string{"handoff", "telemetry"}, "renders records for people"},
	{"telemetry/otlp", []string{"handoff", "telemetry"}, "sends traces, and keeps what that pulls in away from workers"},
	{"supervise", nil, "keeps processes alive, whatever they are"},

	{"worker", []string{"core", "bus", "bus/buspb", "engine", "mesh", "telemetry", "wire"}, "hosts any engine, so it names none; what runs next and whose memory is whose the core decides; HTTP is the gateway's"},
	{"gateway", []string{"core", "api/openai", "bus", "bus/buspb", "chat", "engine", "mesh", "telemetry", "telemetry/otlp"}, "hosts requests; of engines it knows the vocabulary seam, of the data plane nothing"},

	{"bench", nil, "takes turns and reports; what is measured is the business of the packages below"},
	{"bench/lane", []string{"bench", "handoff", "mesh", "state", "wire"}, "the data plane beside what it is made of; no engine, no hosts"},
	{"bench/move", []string{"bench", "engine", "engine/llama", "model", "model/wide", "pair", "profile", "state", "wire"}, "engines and a pair of processes, without hosts"},
	{"bench/serve", []string{"bench", "bench/sse"}, "a client of any server, so it knows none"},
	{"bench/sse", nil, "a format, for clients"},
	{"bench/soak", []string{"bench", "bench/sse", "engine", "handoff", "sample", "telemetry"}, "asks a fleet that it was given and an engine of its own the same; how the fleet is started it does not know"},
	{"profile", []string{"bench", "engine", "engine/timed", "state"}, "measures whatever engine it is given; opening one is the command's"},
	{"pair", []string{"engine", "engine/llama", "handoff", "mesh", "sample", "state", "wire"}, "two processes and the data plane between them, driven by hand: no bus, no policy, no machine"},

	{"verify", []string{"engine", "engine/llama", "model", "pair", "state", "wire"}, "asks one engine here and one in another process the same; what serves requests is not in it"},

	{"replay/agenda", []string{"engine/timed"}, "orders times, whatever they are of"},
	{"replay/fleet", []string{"core", "engine/timed", "workload"}, "what a fleet is; what happens on it is the host's"},
	{"replay", []string{"core", "engine/timed", "internal/splitmix", "replay/agenda", "replay/fleet", "replay/link", "replay/report", "telemetry", "workload"}, "hosts the core on a virtual clock: no engine, no socket, no file"},
	{"replay/link", []string{"engine/timed", "replay/agenda"}, "bytes and rates; what travels is the host's"},
	{"replay/page", nil, "knows what a chart looks like, not what is drawn"},
	{"replay/report", []string{"engine/timed", "handoff", "kv", "replay/page"}, "says what came out of a run; what ran is the host's"},
	{"replay/sweep", []string{"engine/timed", "replay/page", "replay/report"}, "runs whatever function it is given, so it knows neither fleets nor hosts"},

	{"cmd/tandem", []string{"api/openai", "bench", "bench/lane", "bench/move", "bench/serve", "bench/soak", "bus", "chat", "core", "engine", "engine/install", "engine/llama", "engine/timed", "gateway", "gguf", "mesh", "model", "model/tiny", "model/wide", "pair", "profile", "replay", "replay/fleet", "replay/report", "replay/sweep", "supervise", "telemetry", "telemetry/otlp", "telemetry/timeline", "verify", "wire", "worker", "workload"}, "flags and wiring: the one place where hosts, engines and adapters meet"},
	{"internal/splitmix", nil, "one function of numbers"},
	{"internal/archtest", nil, "tests only"},
	{"internal/e2e", nil, "tests only; what they import is not limited"},
}

// A fence says that only some packages may import a library, directly.
type fence struct {
	library string // import path; "path/..." includes everything below
	by      []string
	why     string
}

var fences = []fence{
	{"github.com/hybridgroup/yzma/...", []string{"engine/llama"}, "one package calls llama.cpp, so that every trap is closed in one place"},
	{"github.com/jupiterrider/ffi", []string{"engine/llama"}, "the same, and it stops the process at its initialization where libffi is missing"},
	{"github.com/ebitengine/purego", []string{"engine/llama", "engine/install"}, "opens libraries: llama.cpp's, and the system's to see whether they are there"},
	{"unsafe", []string{"engine/llama", "bus/buspb"}, "C memory has one owner; generated messages bring their own"},
	{"C", nil, "no cgo: cross-builds need no compiler"},
	{"github.com/quic-go/quic-go/...", []string{"wire", "bench/lane"}, "one data plane; and what it is measured against"},
	{"github.com/nats-io/...", []string{"bus"}, "one control plane; hosts see messages, not NATS"},
	{"google.golang.org/protobuf/...", []string{"bus", "bus/buspb", "worker", "gateway"}, "the encoding of control messages, which hosts fill and read"},
	{"github.com/prometheus/...", []string{"telemetry"}, "one definition of each metric"},
	{"go.opentelemetry.io/...", []string{"telemetry/otlp"}, "traces are made in one place, from records"},
	{"github.com/ardanlabs/jinja/...", []string{"chat"}, "templates come from model files and are hostile input"},
	{"github.com/HdrHistogram/...", []string{"bench/serve"}, "live latencies are telemetry's"},
	{"github.com/alecthomas/kong", []string{"cmd/tandem"}, "flags are wiring"},
	{"go.yaml.in/yaml/...", []string{"cmd/tandem", "engine/timed", "replay/fleet"}, "configuration files are wiring; timing models and fleets are files too"},
	{"net/http", []string{"api/...", "bench/serve", "bench/soak", "gateway", "telemetry", "telemetry/otlp", "cmd/tandem"}, "workers speak bus and wire, never HTTP"},
	{"crypto/tls", []string{"mesh", "wire", "bench/lane", "bus", "gateway", "cmd/tandem"}, "TLS settings come from mesh"},
	{"log", nil, "log/slog is the one logger"},
	{"testing", []string{"engine/enginetest", "kv/kvtest"}, "not in what is shipped, except suites for implementations to run"},
	{"github.com/google/go-cmp/...", []string{"engine/enginetest", "kv/kvtest"}, "for tests"},
	{"pgregory.net/rapid", nil, "for tests"},
	{"github.com/cockroachdb/datadriven", []string{"kv/kvtest"}, "for tests"},
	{"go.uber.org/goleak", nil, "for tests"},
	{"github.com/openai/openai-go/...", nil, "for tests"},
	{"golang.org/x/tools/...", nil, "for tests"},
}

// forbiddenImports are the parts of the standard library that the core does
// without. "path/..." includes the path itself and everything below.
var forbiddenImports = map[string]string{
	"log/...":           "the host logs what the core returns",
	"os/...":            "no files, processes, environment",
	"net/...":           "no sockets",
	"syscall":           "no operating system",
	"io/ioutil":         "no files",
	"io/fs":             "no files",
	"path/filepath":     "no files",
	"embed":             "no files",
	"sync/...":          "a core value belongs to one goroutine; a lock would say otherwise",
	"context":           "cancellation is a fact, a deadline is data",
	"runtime/...":       "nothing may depend on the machine or the scheduler",
	"math/rand/...":     "randomness is an input: a seed in the parameters, or entropy as an argument",
	"crypto/rand":       "randomness is an input",
	"unsafe":            "bytes come from the network",
	"plugin":            "no code from outside",
	"testing/...":       "not in what is shipped",
	"hash/maphash":      "seeded by the process: not the same twice",
	"unique":            "global state",
	"weak":              "depends on the garbage collector",
	"database/...":      "no stores",
	"expvar":            "the host measures",
	"html/template":     "no presentation",
	"text/template/...": "no presentation",
	"flag":              "parameters are arguments",
}

// forbiddenNames are identifiers of otherwise allowed packages that the core
// does without, by import path.
var forbiddenNames = map[string]map[string]string{
	"time": {
		"Now": clock, "Since": clock, "Until": clock, "Sleep": clock, "After": clock, "AfterFunc": clock, "Tick": clock,
		"NewTimer": clock, "NewTicker": clock, "Timer": clock, "Ticker": clock, "Local": "depends on the machine", "LoadLocation": "reads files",
	},
	"fmt": {
		"Print": printing, "Printf": printing, "Println": printing, "Scan": printing, "Scanf": printing, "Scanln": printing,
	},
}

const (
	clock    = "time is an argument, now time.Duration; a deadline is returned as data"
	printing = "no I/O of its own; formatting into a value is fine"
)
