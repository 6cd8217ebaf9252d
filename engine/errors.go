package engine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem/state"
)

// The errors of an engine, to be tested with errors.Is. They carry no token,
// text, state or digest of content.
var (
	// ErrBatch: the rows of a Decode break a rule (count, order, token range).
	// Nothing changed. It is a bug of the caller.
	ErrBatch = errors.New("engine: batch refused")
	// ErrSequence: the slot is out of range, or not in the state the call needs
	// (empty, held, importing). Nothing changed.
	ErrSequence = errors.New("engine: sequence refused")
	// ErrContext: the positions would pass Info.ContextTokens. Nothing changed.
	ErrContext = errors.New("engine: context too long")
	// ErrNoCells: not enough free cells. Nothing changed (an import that meets
	// it is dead, as after any error); free sequences and try again.
	ErrNoCells = errors.New("engine: no free cells")
	// ErrLost: the engine gave up on a batch. Every sequence in it was dropped.
	ErrLost = errors.New("engine: batch lost, its sequences were dropped")
	// ErrFatal: the engine cannot be trusted any more. Close it.
	ErrFatal = errors.New("engine: fatal failure, close the engine")
	// ErrNoOutput: the row has no logits.
	ErrNoOutput = errors.New("engine: row has no output")
	// ErrBuffer: the destination buffer is too small.
	ErrBuffer = errors.New("engine: buffer too small")
	// ErrPayload: state bytes were refused; see PayloadError for where and why.
	ErrPayload = errors.New("engine: state payload refused")
	// ErrCoverage: pages overlap, repeat, leave the sequence, or are missing.
	ErrCoverage = errors.New("engine: pages do not cover the sequence exactly once")
	// ErrOutOfOrder: the snapshot came before the last page, or twice.
	ErrOutOfOrder = errors.New("engine: out of order")
	// ErrImportDead: the import was committed, discarded or failed before.
	ErrImportDead = errors.New("engine: import is over")
	// ErrUnsupported: this engine or model cannot do that; the text says why.
	ErrUnsupported = errors.New("engine: not supported")
	// ErrConcurrent: two goroutines are inside one engine. Nothing changed.
	ErrConcurrent = errors.New("engine: called from two goroutines at once")
	// ErrClosed: the engine was closed.
	ErrClosed = errors.New("engine: closed")
)

// PayloadError says which part of a page or snapshot was refused, and why. It
// matches ErrPayload.
type PayloadError struct {
	// Unit is "page" or "snapshot".
	Unit string
	// Component is the component the fault was found in; zero when it is in the
	// framing around components.
	Component state.Kind
	// Layer is the trunk layer of the fault, -1 when it is in no layer.
	Layer int
	// Reason says what was found and what was expected, without content.
	Reason string
}

// Error describes the fault.
func (e *PayloadError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "engine: %s payload refused", e.Unit)
	if e.Component != 0 {
		fmt.Fprintf(&b, ": %v", e.Component)
	}
	if e.Layer >= 0 {
		fmt.Fprintf(&b, ": layer %d", e.Layer)
	}
	fmt.Fprintf(&b, ": %s; discard the handoff and retry it from the prompt", e.Reason)
	return b.String()
}

// Is reports whether target is ErrPayload.
func (e *PayloadError) Is(target error) bool { return target == ErrPayload }
