package timeline

import (
	"fmt"
	"io"
	"strings"

	"github.com/tandem-llm/tandem/telemetry"
)

// Table writes one line for each record in the given order, below a heading unless bare.
func Table(w io.Writer, list []*telemetry.Handoff, s Style, bare bool) error {
	var b strings.Builder
	names := max(19, s.width()-61)
	line := func(c color, number, workers, prompt, bytes, hidden, ttft, tail, second, ending string) {
		text := pad(number, -5) + " " + pad(workers, names) + " " + pad(prompt, -6) + " " + pad(bytes, -8) + " " + pad(hidden, -4) + " " +
			pad(ttft, -6) + " " + pad(tail, -6) + " " + pad(second, -6) + " " + ending
		b.WriteString(s.paint(c, strings.TrimRight(text, " ")) + "\n")
	}
	if !bare {
		line(strong, "#", "workers", "prompt", "bytes", "hid", "ttft", "tail", "2nd", "end")
	}
	for _, h := range list {
		m := &h.Summary
		c := plain
		if h.Ending == telemetry.EndedFailed {
			c = warning
		}
		bytes, hidden, tail := "-", "-", "-"
		if h.Destination != nil && h.Source.Stream.Units > 0 {
			bytes, hidden = size(m.Bytes), percent(m.Overlap.Bytes)
		}
		if h.Target == telemetry.TargetCommitted {
			tail = length(m.Tail)
		}
		ttft, second := "-", "-"
		if h.Request.TTFT > 0 {
			ttft = length(h.Request.TTFT)
		}
		if m.Second > 0 {
			second = length(m.Second)
		}
		line(c, fmt.Sprint(h.Seq), workers(h, names), fmt.Sprint(h.Request.Prompt), bytes, hidden, ttft, tail, second, ending(h))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// workers names both sides in at most n columns.
func workers(h *telemetry.Handoff, n int) string {
	if h.Destination == nil {
		return clean(h.Source.Worker, n)
	}
	const arrow = ">"
	a, b := clean(h.Source.Worker, 64), clean(h.Destination.Worker, 64)
	if len(a)+len(arrow)+len(b) > n {
		half := (n - len(arrow)) / 2
		a, b = clean(a, half), clean(b, half)
	}
	return a + arrow + b
}

// ending is how an attempt ended, in few columns, with its number if it was not the first.
func ending(h *telemetry.Handoff) string {
	text := clean(string(h.Ending), 12)
	switch h.Ending {
	case telemetry.EndedHandedOff:
		text = "handed off"
	case telemetry.EndedAtSource:
		text = "at source"
	case telemetry.EndedColocated:
		text = "whole"
	}
	if h.Attempt > 1 {
		text += fmt.Sprintf(" %d", h.Attempt)
	}
	return text
}

func percent(v float64) string { return fmt.Sprintf("%d%%", int(v*100)) }
