package model

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/tandem-llm/tandem/state"
)

// Report writes what `tandem model inspect` prints: one fact per line, then the
// state components with their sizes under half-precision caches.
func (m *Model) Report(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	if m.Name != "" {
		row("name", "%.80q", m.Name)
	}
	row("architecture", "%s", m.Architecture)
	row("family", "%s", m.Family)
	if m.Refusal == "" {
		row("handoff", "exact")
	} else {
		row("handoff", "no: %s", m.Refusal)
		row("colocated", "%s", yes(m.Colocated))
	}
	row("size", "%s in %d file(s), %d parameters", size(uint64(m.FileBytes)), len(m.Files), m.Parameters)
	row("layers", "%d", m.LayerCount)
	if m.Window > 0 {
		row("sliding window", "%d tokens", m.Window)
	}
	row("context", "%d tokens", m.Context)
	row("vocabulary", "%d tokens, %s", m.Tokenizer.Size, m.Tokenizer.Model)
	row("tokenizer digest", "%x", m.Tokenizer.Digest[:8])
	row("chat template", "%s", yes(m.Template != ""))
	if m.MTP.Present {
		row("speculation", "MTP inactive: %s", m.MTP.Inactive)
	}
	if err := m.components(row); err != nil {
		return err
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("model: write report: %w", err)
	}
	return nil
}

func (m *Model) components(row func(name, format string, args ...any)) error {
	if len(m.Layers) == 0 {
		return nil
	}
	for _, t := range []state.DType{state.F16, state.BF16, state.Q8_0} {
		name := "bytes per token, " + t.String()
		if n, ok := m.TokenBytes(t); ok {
			row(name, "%d", n)
		} else {
			row(name, "does not fit the model's dimensions")
		}
	}
	row("fixed bytes", "%d", m.FixedBytes())
	inv, err := m.Inventory(DefaultConfig)
	if err != nil {
		return err
	}
	for _, c := range inv {
		s := fmt.Sprintf("%d layer(s), ", c.Count)
		if c.Kind == state.MTPHidden {
			s = ""
		}
		if c.PerToken > 0 {
			s += fmt.Sprintf("%d bytes per token %s", c.PerToken, c.DType)
		} else {
			s += fmt.Sprintf("%d bytes %s", c.Fixed, c.DType)
		}
		if !c.Active() {
			s += ", inactive: " + c.Inactive
		}
		row("state "+c.Kind.String(), "%s", s)
	}
	return nil
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// size formats a number of bytes with a binary unit.
func size(n uint64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	f, prefix := float64(n)/unit, 0
	for f >= unit && prefix < 5 {
		f, prefix = f/unit, prefix+1
	}
	return fmt.Sprintf("%.1f %ciB", f, "KMGTPE"[prefix])
}
