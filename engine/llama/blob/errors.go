package blob

import (
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem/state"
)

// Error says where a blob is wrong and why. It carries no content.
type Error struct {
	// Kind is the component; KindNone for framing.
	Kind state.Kind
	// Layer is the index of the layer within its section, -1 for none.
	Layer int
	// Reason is what was found and expected.
	Reason string
}

// Error describes the fault.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("blob: ")
	if e.Kind != state.KindNone {
		fmt.Fprintf(&b, "%v: ", e.Kind)
	}
	if e.Layer >= 0 {
		fmt.Fprintf(&b, "layer %d: ", e.Layer)
	}
	b.WriteString(e.Reason)
	return b.String()
}

func fault(k state.Kind, layer int, format string, args ...any) error {
	return &Error{Kind: k, Layer: layer, Reason: fmt.Sprintf(format, args...)}
}
