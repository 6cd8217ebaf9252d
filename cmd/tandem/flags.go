package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem/supervise"
)

// serveFlags say what is served. They are the same for `up`, `gateway` and
// `worker`, so that one configuration file fits all.
type serveFlags struct {
	Model     string        `help:"GGUF file to serve; for a split model its first part." placeholder:"FILE" type:"existingfile"`
	ModelName string        `help:"Name that clients use for the model; default: the file's name." placeholder:"NAME"`
	Drain     time.Duration `default:"15s" help:"How long to finish requests in flight when stopping."`
	LogLevel  string        `default:"info" enum:"debug,info,warn,error" help:"Least severe log lines to write: debug, info, warn or error."`
	LogFormat string        `default:"text" enum:"text,json" help:"Log format on standard error: text or json."`
}

func (f *serveFlags) logger(w io.Writer, process string) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(f.LogLevel)) // the enum admits valid names only
	opt := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewTextHandler(w, opt)
	if f.LogFormat == "json" {
		h = slog.NewJSONHandler(w, opt)
	}
	return slog.New(h).With("process", process)
}

func (f *serveFlags) args() []string {
	return []string{
		"--model=" + f.Model, "--model-name=" + f.ModelName, "--drain=" + f.Drain.String(),
		"--log-level=" + f.LogLevel, "--log-format=" + f.LogFormat,
	}
}

// engineFlags configure one engine.
type engineFlags struct {
	Slots         int    `default:"4" help:"Sequences a worker holds at once."`
	Context       int    `default:"0" help:"Most tokens of one sequence, prompt and answer; 0: what the model was trained for, at most 32768."`
	Cells         int    `default:"0" help:"Attention cells all sequences of a worker share; 0: slots times context."`
	PageTokens    int    `default:"512" help:"Tokens of one prefill chunk, which is one page of transfer."`
	StepTokens    int    `default:"0" help:"Prompt tokens of one step, beside one token of every answer in progress; from two pages on, several prompts are computed in turns. 0: one page, so that answers wait least."`
	Headroom      int    `default:"512" help:"Tokens of its answer that a request has room for when it is admitted. When cells are short beyond that, the youngest request waits and is computed again, or where no prompts are computed fails; the default number of cells has room for every answer."`
	PrefixCache   bool   `help:"Keep what prompts and answers were computed to, and compute later prompts that begin alike from there; what a decode worker has of a prompt is not sent to it."`
	CachedSlots   int    `default:"0" help:"Engine slots that keep prefixes, beside --slots; 0: 32 where they cost nothing, 4 where each takes a window or a recurrent state of memory. More of them keep more prefixes that differ at one position."`
	CachedTokens  int    `default:"0" help:"Most tokens of prefixes in the engine's cells beside those of requests. On a CPU each makes every request's attention a little slower. 0: 16384 where all layers have attention, else all cells."`
	SnapshotCache int64  `default:"2147483648" help:"Bytes of the host's memory for what the prefix cache keeps of windows and recurrent state."`
	Threads       int    `default:"0" help:"Threads that compute; 0: the number of cores divided by the workers that 'up' starts here."`
	KVType        string `name:"kv-type" default:"f16" enum:"f16,bf16,q8_0" help:"Element type of attention state: f16, bf16 or q8_0."`
	GPULayers     int    `name:"gpu-layers" default:"-1" help:"Layers to put on an accelerator; -1: all, where there is one."`
}

func (f *engineFlags) args(threads int) []string {
	return []string{
		"--slots=" + strconv.Itoa(f.Slots), "--context=" + strconv.Itoa(f.Context), "--cells=" + strconv.Itoa(f.Cells),
		"--page-tokens=" + strconv.Itoa(f.PageTokens), "--threads=" + strconv.Itoa(threads),
		"--kv-type=" + f.KVType, "--gpu-layers=" + strconv.Itoa(f.GPULayers),
		"--step-tokens=" + strconv.Itoa(f.StepTokens), "--headroom=" + strconv.Itoa(f.Headroom),
		"--prefix-cache=" + strconv.FormatBool(f.PrefixCache), "--cached-slots=" + strconv.Itoa(f.CachedSlots),
		"--cached-tokens=" + strconv.Itoa(f.CachedTokens), "--snapshot-cache=" + strconv.FormatInt(f.SnapshotCache, 10),
	}
}

// dataFlags configure the data plane.
type dataFlags struct {
	Lane   string `default:"auto" enum:"auto,quic,tls,local" help:"How bulk state travels: auto, quic, tls or local (docs/wire.md)."`
	Lanes  int    `default:"4" help:"Most TLS lanes to one peer."`
	Window int64  `default:"16777216" help:"Credit of one handoff in bytes; at least four pages are always allowed."`
}

func (f *dataFlags) args() []string {
	return []string{"--lane=" + f.Lane, "--lanes=" + strconv.Itoa(f.Lanes), "--window=" + strconv.FormatInt(f.Window, 10)}
}

// processFlags are those of a process that takes part in a mesh.
type processFlags struct {
	Mesh           string `help:"Directory with this process's identity (tandem mesh issue)." placeholder:"DIR" type:"existingdir" required:""`
	TraceLifecycle string `help:"Write lifecycle events as JSON lines to FILE." placeholder:"FILE"`
	Announce       bool   `hidden:"" help:"Print one JSON line when ready."`
	Supervised     bool   `hidden:"" help:"Stop when standard input ends."`
	RunDir         string `hidden:"" help:"Directory of the supervisor's run, removed if the supervisor is gone."`
}

// follow returns a context that also ends when the supervisor of this process is
// gone, if it has one. The returned function is called last: a supervisor that
// was killed leaves its directory with keys to its children.
func (f *processFlags) follow(ctx context.Context) (context.Context, func()) {
	if !f.Supervised {
		return ctx, func() {}
	}
	// Its pipes close with it. A log line must not end this process before its work is done.
	signal.Ignore(syscall.SIGPIPE)
	gone, stop := supervise.ParentGone(context.Background(), os.Stdin)
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(gone, cancel)
	return ctx, func() {
		if gone.Err() != nil && f.RunDir != "" {
			_ = os.RemoveAll(f.RunDir) // another child may be doing the same
		}
		cancel()
		stop()
	}
}

// openTrace opens the file of --trace-lifecycle, or returns nil.
func (f *processFlags) openTrace() (*os.File, error) {
	if f.TraceLifecycle == "" {
		return nil, nil
	}
	file, err := os.OpenFile(f.TraceLifecycle, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, usageError{fmt.Errorf("--trace-lifecycle: %w", err)}
	}
	return file, nil
}
