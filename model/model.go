// Package model answers, from a GGUF file's metadata alone, what a model is and
// what of it moves in a handoff: architecture, layers, the kinds of memory that
// llama.cpp keeps for a sequence, bytes per token and fixed bytes, vocabulary,
// chat template, and whether this build can hand the model off exactly.
//
// [Inspect] reads a file (all parts of a split one) and never touches
// llama.cpp. It treats the file as hostile: besides the checks of package gguf
// it refuses metadata on which llama.cpp would end the process instead of
// returning an error.
//
// What a layer keeps is decided by the architecture, so architectures are an
// allow-list (arch.go): each entry states the rule by which llama.cpp v0.5.0
// lays out its memory. A model of any other architecture is inspected as far as
// possible and refused by [Model.Handoff] with the reason; it may be served
// colocated.
//
// [Digest] identifies the weights. Package tiny makes small models.
package model

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem/gguf"
	"github.com/tandem-llm/tandem/state"
)

// Family says which kinds of sequence memory llama.cpp keeps for a model.
type Family string

// The families. An unknown one cannot be handed off.
const (
	FamilyUnknown    Family = "unknown"
	FamilyDense      Family = "dense"       // attention only
	FamilyISWA       Family = "iswa"        // attention, some layers in a sliding window
	FamilyRecurrent  Family = "recurrent"   // recurrent and convolution state only
	FamilyHybrid     Family = "hybrid"      // attention and recurrent
	FamilyHybridISWA Family = "hybrid-iswa" // attention, sliding windows and recurrent
)

// MTPNotBuilt is why multi-token prediction is inactive in this build.
const MTPNotBuilt = "speculation is not built yet"

// Model describes one model file. It is immutable and safe for concurrent use.
type Model struct {
	// Files are the paths of the file and, for a split model, of all parts in
	// order; the first is what llama.cpp opens.
	Files []string
	// FileBytes is the size of all parts together.
	FileBytes int64
	// Name is the model's own name for itself, possibly empty.
	Name string
	// Architecture is the name in the file, such as "nemotron_h_moe".
	Architecture string
	// Family is FamilyUnknown when the architecture is not supported.
	Family Family
	// Parameters is the number of weights.
	Parameters uint64
	// Layers are the trunk layers: speculation blocks are not among them. Empty
	// when the family is unknown.
	Layers []Layer
	// LayerCount is the number of trunk layers, also for unknown families.
	LayerCount int
	// Window is the width in tokens of the sliding window, 0 without one.
	Window int
	// Embedding is the width of the residual stream.
	Embedding int
	// Context is the context length in tokens that the model was trained for.
	Context int
	// Tokenizer describes the vocabulary.
	Tokenizer Tokenizer
	// Template is the chat template, empty when the file has none.
	Template string
	// MTP describes multi-token-prediction blocks.
	MTP MTP
	// Rope is the model's own rotary position configuration.
	Rope state.Rope
	// Refusal says why this build cannot hand the model off exactly, in words
	// for the user; empty when it can.
	Refusal string
	// Colocated is whether one worker alone can generate text with the model,
	// whether or not it can be handed off.
	Colocated bool
}

// Layer is what one layer keeps for a sequence, in elements. A layer may keep
// several kinds (Falcon-H1), or none (an expert layer of its own).
type Layer struct {
	// Key and Value are cached elements per token. Value is 0 for multi-head
	// latent attention, which caches one shared row.
	Key, Value uint32
	// Windowed marks a cache bounded by the sliding window.
	Windowed bool
	// Conv and Recurrent are elements of state that does not grow, both F32.
	Conv, Recurrent uint64
}

// MTP describes the multi-token-prediction blocks of a model.
type MTP struct {
	// Present is whether the file has such blocks.
	Present bool
	// Blocks are their layers.
	Blocks []Layer
	// Inactive says why they do not run; it is never empty when Present.
	Inactive string
}

// ErrUnsupported reports a model that this build cannot hand off exactly. The
// error itself is an [*UnsupportedError].
var ErrUnsupported = errors.New("model cannot be handed off")

// UnsupportedError says why a model cannot be handed off.
type UnsupportedError struct {
	// Architecture is the name in the file.
	Architecture string
	// Reason says why, in words for the user.
	Reason string
	// Colocated is whether one worker alone can serve the model.
	Colocated bool
}

// Error formats the error in one line, with what to do.
func (e *UnsupportedError) Error() string {
	next := "use a model that generates text"
	if e.Colocated {
		next = "serve it colocated, or use a model that `tandem model inspect` calls exact"
	}
	return fmt.Sprintf("model: architecture %.40q cannot be handed off: %s; %s", e.Architecture, e.Reason, next)
}

// Unwrap returns ErrUnsupported.
func (e *UnsupportedError) Unwrap() error { return ErrUnsupported }

// Handoff returns nil when this build can hand the model off exactly, and an
// [*UnsupportedError] with the reason otherwise.
func (m *Model) Handoff() error {
	if m.Refusal == "" {
		return nil
	}
	return &UnsupportedError{Architecture: m.Architecture, Reason: m.Refusal, Colocated: m.Colocated}
}

// Serve returns nil when one worker alone can generate text with the model, and
// an [*UnsupportedError] otherwise.
func (m *Model) Serve() error {
	if m.Colocated {
		return nil
	}
	return m.Handoff()
}

// ErrInvalid reports metadata that is missing, contradictory or beyond what
// llama.cpp accepts. The error itself is an [*InvalidError].
var ErrInvalid = errors.New("invalid model")

// InvalidError says which metadata key is wrong and how.
type InvalidError struct {
	Path, Key, Detail string
	// Err is the underlying error, or nil.
	Err error
}

// Error formats the error in one line.
func (e *InvalidError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "model: %s is not a model that can be loaded: ", e.Path)
	switch {
	case e.Err != nil:
		b.WriteString(strings.TrimPrefix(e.Err.Error(), "gguf: "))
	default:
		fmt.Fprintf(&b, "key %q: %s", e.Key, e.Detail)
	}
	return b.String()
}

// Unwrap returns ErrInvalid and the underlying error.
func (e *InvalidError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrInvalid}
	}
	return []error{ErrInvalid, e.Err}
}

// Inspect reads the metadata of the model at path. For a split model path is the
// first part, and every other part must lie beside it. A model that cannot be
// handed off is not an error here: see [Model.Handoff]. Errors are those of
// [gguf.Open], or [*InvalidError].
func Inspect(path string) (*Model, error) {
	files, heads, err := openParts(path)
	if err != nil {
		return nil, err
	}
	return describe(files, heads)
}

// describe makes a Model of the heads of its parts.
func describe(files []string, heads []*gguf.File) (*Model, error) {
	m := &Model{Files: files, Family: FamilyUnknown, Colocated: true}
	for _, h := range heads {
		m.FileBytes += h.Size
		for i := range h.Tensors {
			m.Parameters += h.Tensors[i].Elements()
		}
	}
	r := &reader{f: heads[0], path: files[0]}
	m.read(r)
	if r.err != nil {
		return nil, r.err
	}
	return m, nil
}

func (m *Model) read(r *reader) {
	m.Architecture = r.text("general.architecture")
	r.arch = m.Architecture
	m.Name = r.textOr("general.name", "")
	if kind := r.textOr("general.type", "model"); kind != "model" || m.Architecture == "clip" {
		r.fail("general.type", "%.40q of architecture %.40q: not a language model", kind, m.Architecture)
	}
	if r.err != nil {
		return
	}
	arch, why := lookup(m.Architecture)
	m.refuse(why)
	h := readHyper(r)
	m.Tokenizer = readTokenizer(r)
	m.Template = r.textOr("tokenizer.chat_template", "")
	if r.err != nil {
		return
	}
	m.LayerCount = h.trunk
	m.Embedding = h.embedding
	m.Context = h.context
	m.Rope = h.rope
	if h.blocks > h.trunk {
		m.MTP = MTP{Present: true, Inactive: MTPNotBuilt}
	}
	m.refuse(h.refusal())
	if m.Refusal == "" {
		h.check(r, arch)
		m.layers(r, arch, h)
	}
}

// refuse records why the model cannot be handed off; the first reason wins, and
// an empty one is none.
func (m *Model) refuse(why string) {
	if m.Refusal == "" {
		m.Refusal = why
	}
	switch why {
	case embeddingReason, diffusionReason, encoderReason, draftReason, notCausalReason:
		m.Colocated = false
	}
}

// layers fills in what each layer keeps and the family that follows from it.
func (m *Model) layers(r *reader, arch arch, h *hyper) {
	recurrent := arch.recurrentLayers(r, h)
	window, windowed := arch.windowLayers(r, h)
	ssm := readSSM(r, arch, h)
	if r.err != nil {
		return
	}
	var attention, windows, states int
	for i := range h.blocks {
		var l Layer
		trunk := i < h.trunk
		if trunk && recurrent[i] {
			l.Conv, l.Recurrent = ssm.conv, ssm.state
			states++
		}
		if arch.attends(i, h, recurrent[i]) || !trunk {
			l.Key, l.Value = h.kvRow(i, windowed[i])
			l.Windowed = windowed[i]
			if l.Key == 0 && trunk {
				r.fail(r.key("attention.head_count_kv"), "layer %d attends and has no key heads", i)
				return
			}
			if trunk && l.Windowed {
				windows++
			} else if trunk {
				attention++
			}
		}
		if trunk {
			m.Layers = append(m.Layers, l)
		} else {
			m.MTP.Blocks = append(m.MTP.Blocks, l)
		}
	}
	if windows > 0 {
		m.Window = window
	}
	switch {
	case states > 0 && windows > 0:
		m.Family = FamilyHybridISWA
	case states > 0 && attention > 0:
		m.Family = FamilyHybrid
	case states > 0:
		m.Family = FamilyRecurrent
	case windows > 0:
		m.Family = FamilyISWA
	default:
		m.Family = FamilyDense
	}
	if hybrid := arch.recurrent != never && arch.recurrent != every; hybrid && m.Family == FamilyRecurrent {
		m.refuse("it has no attention layer, which its architecture is expected to have")
	}
	if _, err := m.Inventory(DefaultConfig); err != nil {
		m.refuse(err.Error())
	}
}
