package llama

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/llama/blob"
	"github.com/tandem-llm/tandem/model"
)

// Open loads the libraries (once per process), the model and a context. The
// calling goroutine, or another one that it hands the engine to, is its owner.
func Open(o Options) (*Engine, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	lib, err := load(o.Lib)
	if err != nil {
		return nil, err
	}
	file, err := model.Inspect(o.Model)
	if err != nil {
		return nil, &Error{Kind: ErrModel, Subject: o.Model, Err: err}
	}
	e := &Engine{lib: lib, log: o.Log, scratchSeq: int32(o.Slots), depth: blob.Depth(o.CheckOneIn)}
	if err := e.open(&o, file); err != nil {
		e.free()
		return nil, err
	}
	e.logNew(false)
	return e, nil
}

func (e *Engine) open(o *Options, file *model.Model) error {
	var err error
	if e.model, err = e.lib.loadModel(file.Files[0], modelParams(o)); err != nil {
		return err
	}
	if llama.ModelHasEncoder(e.model) || !llama.ModelHasDecoder(e.model) {
		return &Error{
			Kind: ErrModel, Subject: o.Model, Reason: "it has an encoder; only decoder models generate text here",
			Next: "choose another model",
		}
	}
	e.recurrence = llama.ModelIsRecurrent(e.model) || llama.ModelIsHybrid(e.model)
	if e.vocab, err = newVocab(e.lib, e.model); err != nil {
		return err
	}
	if err := e.openContext(o); err != nil {
		return err
	}
	e.slots = make([]slot, o.Slots)
	e.batch = newBatch(o.BatchTokens, o.Slots)
	reason := ""
	if err := file.Handoff(); err != nil {
		reason = err.Error()
	} else if err := e.learn(file); err != nil {
		if errors.Is(err, ErrFlashAttention) || errors.Is(err, ErrContext) {
			return err
		}
		reason = err.Error()
	}
	return e.describe(o, file, reason)
}

// loadModel loads a file that model.Inspect has accepted.
func (l *library) loadModel(path string, p llama.ModelParams) (llama.Model, error) {
	l.sink.take()
	m, err := llama.ModelLoadFromFile(path, p)
	if err != nil || m == 0 {
		lines, _ := l.sink.take()
		return 0, &Error{
			Kind: ErrModel, Subject: path, Reason: "llama.cpp refuses it: " + reasons(lines),
			Next: "check the file, or choose another model",
		}
	}
	return m, nil
}

func modelParams(o *Options) llama.ModelParams {
	p := llama.ModelDefaultParams()
	p.LoadMTP = 0
	if o.GPULayers == 0 {
		p.SetCPUOnly()
	} else {
		p.NGpuLayers = int32(o.GPULayers)
	}
	if o.CheckWeights {
		p.CheckTensors = 1
	}
	return p
}

// threadPoll is how long, in llama.cpp's units of 131,072 looks, the threads of a
// pool look for the next step before they sleep: a few milliseconds, which
// outlasts the pause between two steps. llama.cpp's own 50 would keep the cores
// busy for a tenth of a second that other processes on the machine need.
const threadPoll = 1

// attachThreads gives the context threads that live as long as it does.
// Without them llama.cpp starts and joins its threads for every step, which takes
// longer than a small model computes.
func (e *Engine) attachThreads() {
	n := llama.NThreads(e.ctx)
	if n < 2 {
		return
	}
	p := llama.ThreadpoolParamsDefault(n)
	p.Poll = threadPoll
	pool, err := llama.ThreadpoolNew(&p)
	if err != nil {
		e.log.Debug("steps start their own threads", "error", err) // slower, not wrong
		return
	}
	e.pool = pool
	llama.AttachThreadpool(e.ctx, uintptr(pool), 0)
}

func (e *Engine) openContext(o *Options) error {
	p := llama.ContextDefaultParams()
	p.NCtx = uint32(o.Cells)
	p.NBatch = uint32(o.BatchTokens)
	p.NUbatch = uint32(o.UBatch)
	p.NSeqMax = uint32(o.Slots + extraSequences)
	p.NRsSeq = 0 // no rollback: it is not exact after an import
	if o.Threads > 0 {
		p.NThreads, p.NThreadsBatch = int32(o.Threads), int32(o.Threads)
	}
	p.FlashAttentionType = llama.FlashAttentionTypeEnabled
	p.TypeK, p.TypeV = cacheTypes[o.KVType], cacheTypes[o.KVType]
	p.KVUnified = 1
	p.SwaFull = 0
	p.NoPerf = 1
	if o.GPULayers == 0 {
		p.Offload_kqv, p.OpOffload = 0, 0
	}
	ctx, err := llama.InitFromModel(e.model, p)
	if err != nil || ctx == 0 {
		lines, _ := e.lib.sink.take()
		return &Error{
			Kind: ErrContext, Subject: o.Model, Reason: reasons(lines),
			Next: fmt.Sprintf("try fewer cells (%d) or slots (%d), or another cache type (%v)", o.Cells, o.Slots, o.KVType),
		}
	}
	e.ctx = ctx
	mem, err := llama.GetMemory(ctx)
	if err != nil || mem == 0 {
		return &Error{
			Kind: ErrModel, Subject: o.Model, Reason: "it keeps no sequence memory: it is not a text generator",
			Next: "choose another model",
		}
	}
	e.attachThreads()
	e.native = newNative(&e.lib.fn, ctx, mem)
	// What llama.cpp made of the wishes is what counts from here on.
	o.Cells = int(llama.NCtx(ctx))
	o.BatchTokens = min(o.BatchTokens, int(llama.NBatch(ctx)))
	o.UBatch = int(llama.NUBatch(ctx))
	if got := int(llama.NSeqMax(ctx)); got != o.Slots+extraSequences {
		return &Error{Kind: ErrContext, Subject: o.Model, Reason: fmt.Sprintf("llama.cpp made %d sequences instead of %d", got, o.Slots+extraSequences)}
	}
	return nil
}

var memories = map[model.Family]blob.Memory{
	model.FamilyDense:      blob.Dense,
	model.FamilyISWA:       blob.ISWA,
	model.FamilyRecurrent:  blob.Recurrent,
	model.FamilyHybrid:     blob.Hybrid,
	model.FamilyHybridISWA: blob.HybridISWA,
}

// learn computes one token in the scratch sequence, reads the layout of state
// blobs from it, and leaves the context as new.
func (e *Engine) learn(file *model.Model) error {
	shape := blob.Shape{Memory: memories[file.Family], Window: file.Window, NoValues: true}
	for i, l := range file.Layers {
		switch {
		case l.Windowed:
			e.layers.window = append(e.layers.window, i)
		case l.Key > 0:
			e.layers.base = append(e.layers.base, i)
		}
		if l.Conv > 0 || l.Recurrent > 0 {
			e.layers.recurrent = append(e.layers.recurrent, i)
		}
		shape.NoValues = shape.NoValues && l.Value == 0
	}
	e.batch.put(0, e.vocab.probeToken(), 0, e.scratchSeq, true)
	e.batch.bind(&e.native.batch, 1)
	if code := e.native.decode(); code != 0 {
		lines, _ := e.lib.sink.take()
		return &Error{
			Kind: ErrContext, Reason: fmt.Sprintf("the first token fails with code %d; %s", code, reasons(lines)),
			Next: "look at the log, or choose another model",
		}
	}
	full := make([]byte, llama.StateSeqGetSizeExt(e.ctx, llama.SeqId(e.scratchSeq), 0))
	if n := e.native.stateGet(full, e.scratchSeq, 0); n != len(full) {
		return fmt.Errorf("llama: llama.cpp exports %d of %d bytes", n, len(full))
	}
	schema, err := blob.Learn(shape, full)
	if err != nil {
		if strings.Contains(err.Error(), "transposed") {
			return &Error{Kind: ErrFlashAttention, Err: err, Next: "use a model or backend with flash attention"}
		}
		return err
	}
	if len(schema.Base.K) != len(e.layers.base) || len(schema.Window.K) != len(e.layers.window) || len(schema.R) != len(e.layers.recurrent) {
		return fmt.Errorf("llama: the context keeps %d+%d+%d layers, the file says %d+%d+%d",
			len(schema.Base.K), len(schema.Window.K), len(schema.R), len(e.layers.base), len(e.layers.window), len(e.layers.recurrent))
	}
	if err := llama.MemoryClear(e.native.mem, true); err != nil {
		return err
	}
	e.schema, e.stripBlobs = schema, makeStripBlobs(schema)
	return nil
}

// describe fills in Info.
func (e *Engine) describe(o *Options, file *model.Model, colocatedOnly string) error {
	inv, err := file.Inventory(model.Config{KVTypeK: o.KVType, KVTypeV: o.KVType})
	if err == nil && e.schema != nil {
		err = frame(inv, e.schema)
	}
	if err != nil && colocatedOnly == "" {
		colocatedOnly = err.Error()
	}
	if colocatedOnly != "" {
		e.schema = nil
	}
	weights, err := model.Digest(o.Model)
	if err != nil {
		return &Error{Kind: ErrModel, Subject: o.Model, Err: err}
	}
	context := o.Cells
	if file.Context > 0 {
		context = min(context, file.Context)
	}
	e.info = engine.Info{
		Identity:      identity(o, file, weights),
		Inventory:     inv,
		Architecture:  file.Architecture,
		Model:         llama.ModelDesc(e.model),
		Layers:        file.LayerCount,
		Embedding:     int(llama.ModelNEmbd(e.model)),
		Slots:         o.Slots,
		Cells:         o.Cells,
		ContextTokens: context,
		BatchTokens:   o.BatchTokens,
		Threads:       int(llama.NThreads(e.ctx)),
		Backend:       e.lib.backend(o.GPULayers),
		Build:         "llama.cpp v" + Version + " (" + e.lib.version + ", ggml " + e.lib.ggml + ")",
		KVType:        o.KVType.String(),
		ColocatedOnly: colocatedOnly,
	}
	return nil
}
