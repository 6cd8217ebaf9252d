package timeline

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/telemetry"
)

const (
	nameColumns  = 11 // of a stage's name, with the space behind it
	valueColumns = 17 // of its time and count, with the space before
)

// Draw writes one record: who and what, the stages on one axis of time since the request arrived, and
// what it comes to.
func Draw(w io.Writer, h *telemetry.Handoff, s Style) error {
	d := &drawing{h: h, s: s}
	d.head()
	d.chart(0, d.extent())
	if begin, end, ok := d.handover(); ok {
		d.chart(begin, end)
	}
	d.foot()
	_, err := io.WriteString(w, d.b.String())
	return err
}

type drawing struct {
	h *telemetry.Handoff
	s Style
	b strings.Builder

	begin, end time.Duration // of the axis
	cells      int           // of the axis
	mark       int           // the cell in which prefill ended, -1 when that is not on the axis
}

// line writes one line; what does not fit goes on, indented, behind the last comma that does. Colours
// are given for the whole of it.
func (d *drawing) line(c color, format string, args ...any) {
	text := []rune(clean(strings.TrimRight(fmt.Sprintf(format, args...), " "), 2000))
	for indent := ""; len(text) > 0; indent = "  " {
		room := d.s.width() - len(indent)
		cut := len(text)
		if cut > room {
			cut = room
			for i := room; i > room/2; i-- {
				if text[i-1] == ' ' && text[i-2] == ',' {
					cut = i
					break
				}
			}
		}
		d.b.WriteString(d.s.paint(c, indent+strings.TrimRight(string(text[:cut]), " ")) + "\n")
		text = text[cut:]
	}
}

func (d *drawing) head() {
	h, r := d.h, &d.h.Request
	d.line(strong, "#%d  handoff %s", h.Seq, h.ID)
	d.line(plain, "request %s at %s, %s", clean(r.Key, 48), r.Arrived.UTC().Format("2006-01-02 15:04:05.000 MST"), r.Outcome)
	attempt := fmt.Sprintf("attempt %d of %d", h.Attempt, r.Attempts)
	if h.Why != telemetry.RetryNone {
		attempt += fmt.Sprintf(" (%s)", h.Why)
	}
	mode := string(h.Mode)
	if h.Policy == handoff.SourceFirst {
		mode += " " + h.Policy.String()
	}
	d.line(plain, "%s, %s (%s): %s, target %s, MTP %s", attempt, mode, h.Chosen, h.Ending, h.Target, h.MTP)
	if f := h.Failure; f != nil {
		d.line(warning, "failed at the %s in %s: %s", orGateway(string(f.Side)), f.Phase, orUnknown(f.Code))
	}
	d.line(plain, "tokens: prompt %d, cached %d, computed %d%s, answer %d", r.Prompt, r.Cached, h.Source.Computed, d.computedThere(), r.Completion)
	d.line(source, "from %s", d.party(&h.Source))
	if h.Destination == nil {
		return
	}
	d.line(target, "to   %s", d.party(h.Destination))
	if n := h.Source.Skipped; n > 0 {
		d.line(plain, "not sent: %s of %d tokens that the destination had", size(h.Source.SkippedBytes), n)
	}
	if h.Source.Stream.Units == 0 {
		return
	}
	var parts []string
	for _, c := range h.Source.Components {
		parts = append(parts, clean(c.Name, 24)+" "+size(c.Bytes))
	}
	d.line(plain, "%s in %d pages and %d snapshots: %s", size(h.Summary.Bytes), h.Source.Pages, h.Source.Snapshots, strings.Join(parts, ", "))
	d.line(plain, "lane %s at %s/s, RTT %s", clean(h.Source.Stream.Lane, 8), size(int64(h.Summary.Bandwidth)), length(h.Summary.RTT))
}

func (d *drawing) computedThere() string {
	if d.h.Destination == nil {
		return ""
	}
	return fmt.Sprintf("+%d", d.h.Destination.Computed)
}

func (d *drawing) party(p *telemetry.Part) string {
	text := clean(p.Worker, 40)
	if p.Role != "" {
		text += " (" + clean(p.Role, 8) + ")"
	}
	if !p.Reported {
		return text + ", which did not report"
	}
	return text
}

func orGateway(side string) string {
	if side == "" {
		return "gateway"
	}
	return side
}

func orUnknown(code string) string {
	if code == "" {
		return "no worker said why"
	}
	return clean(code, 40)
}

// extent finds the axis: to the last of the first few tokens, or as far as the attempt came.
func (d *drawing) extent() time.Duration {
	h := d.h
	at := []time.Duration{h.Request.Admitted, h.Gateway.Reserved, h.Gateway.Committed}
	for _, p := range []*telemetry.Part{&h.Source, h.Destination} {
		if p == nil {
			continue
		}
		for _, off := range []time.Duration{p.Slot, p.Prompted, p.Sent, p.Complete, p.Ready, p.Committed, p.Compute.End(), p.Export.End(), p.Import.End()} {
			if off > 0 {
				at = append(at, p.At+off)
			}
		}
	}
	at = append(at, h.Gateway.Tokens...)
	if len(h.Gateway.Tokens) == 0 {
		at = append(at, h.Gateway.Ended)
	}
	var end time.Duration
	for _, t := range at {
		end = max(end, t)
	}
	return max(end, time.Microsecond)
}

// handover finds an axis on which the switch can be read, where it is a small part of the whole.
func (d *drawing) handover() (begin, end time.Duration, ok bool) {
	h, s, t := d.h, &d.h.Source, d.h.Destination
	if t == nil || s.Prompted == 0 || t.Ready == 0 {
		return 0, 0, false
	}
	from := s.At + s.Prompted
	end = max(t.At+t.Ready, t.At+t.Decode.End(), from+h.Summary.Tail)
	if len(h.Gateway.Tokens) > 1 {
		end = max(end, h.Gateway.Tokens[1])
	}
	took := end - from
	begin, end = max(0, from-took/4), end+took/16
	return begin, end, end > begin && end-begin < d.extent()/3
}

// cell is the column of a time.
func (d *drawing) cell(t time.Duration) int {
	return min(d.cells-1, max(0, int(float64(t-d.begin)/float64(d.end-d.begin)*float64(d.cells))))
}

// shows reports whether a stretch is on the axis.
func (d *drawing) shows(begin, end time.Duration) bool { return begin <= d.end && end >= d.begin }

func (d *drawing) chart(begin, end time.Duration) {
	h, s, g := d.h, &d.h.Source, &d.h.Gateway
	d.begin, d.end, d.cells, d.mark = begin, end, d.s.width()-nameColumns-valueColumns, -1
	if at := s.At + s.Prompted; s.Prompted > 0 && d.shows(at, at) {
		d.mark = d.cell(at)
	}
	d.b.WriteString("\n")
	d.axis()
	d.bar(plain, "admission", 0, h.Request.Admitted, "")
	if g.Reserved > 0 {
		d.bar(plain, "reserve", g.Reserve, g.Reserved, "")
	}
	if s.Slot > 0 {
		d.bar(source, "slot", s.At, s.At+s.Slot, "")
	}
	d.work(source, "prefill", s.At, s.Compute, "chunks")
	if t := h.Destination; t != nil {
		d.work(source, "export", s.At, s.Export, "units")
		d.work(source, "seal", s.At, s.Seal, "units")
		d.work(warning, "stall", s.At, s.Stall, "waits")
		if s.Stream.Units > 0 && s.Sent > 0 {
			span := telemetry.Span{Begin: s.Export.Begin(), End: max(s.Sent, s.Export.Begin()), Busy: s.Stream.Busy}
			d.work(source, "wire", s.At, telemetry.Work{Count: s.Stream.Units, Busy: s.Stream.Busy, Spans: []telemetry.Span{span}}, "units")
		}
		d.work(target, "verify", t.At, t.Verify, "units")
		d.work(target, "wait", t.At, t.Wait, "units")
		d.work(target, "import", t.At, t.Import, "units")
		if t.Ready > 0 {
			d.bar(target, "commit", t.At+t.Complete, t.At+t.Ready, "")
		}
		if h.Summary.Tail > 0 && s.Prompted > 0 {
			d.bar(warning, "tail", s.At+s.Prompted, s.At+s.Prompted+h.Summary.Tail, "")
		}
		d.work(target, "decode", t.At, t.Decode, "1st step")
	} else {
		d.work(source, "decode", s.At, s.Decode, "1st step")
	}
	d.tokens()
}

// axis writes the scale: the ends, and where prefill ended.
func (d *drawing) axis() {
	row := []rune(strings.Repeat(" ", d.cells))
	put := func(at int, text string) {
		for i, r := range text {
			if at+i < len(row) {
				row[at+i] = r
			}
		}
	}
	last := strings.ReplaceAll(length(d.end), "µ", "u")
	put(0, strings.ReplaceAll(length(d.begin), "µ", "u"))
	put(d.cells-len(last), last)
	if d.mark >= 0 {
		text := "prefill ends"
		if at := d.mark - len(text) + 1; at > 6 && d.mark < d.cells-len(last)-1 {
			put(at, text)
		} else if at := d.mark; at > 6 && at+len(text) < d.cells-len(last)-1 {
			put(at, text)
		}
	}
	d.line(plain, "%s%s", strings.Repeat(" ", nameColumns), string(row))
}

// bar draws one stretch that was filled.
func (d *drawing) bar(c color, name string, begin, end time.Duration, what string) {
	if end < begin {
		end = begin
	}
	d.work(c, name, 0, telemetry.Work{Count: 1, Busy: end - begin, Spans: []telemetry.Span{{Begin: begin, End: end, Busy: end - begin}}}, what)
}

// work draws work in pieces: full where its stretches were busy for most of the time, light where they
// were not.
func (d *drawing) work(c color, name string, at time.Duration, w telemetry.Work, what string) {
	if w.Count == 0 || len(w.Spans) == 0 || !d.shows(at+w.Begin(), at+w.End()) {
		return
	}
	full, light, mark := '#', '-', '|'
	if d.s.Blocks {
		full, light, mark = '█', '░', '│'
	}
	row := []rune(strings.Repeat(" ", d.cells))
	if d.mark >= 0 {
		row[d.mark] = mark
	}
	for _, s := range w.Spans {
		if !d.shows(at+s.Begin, at+s.End) {
			continue
		}
		r := full
		if s.Busy*2 < s.End-s.Begin {
			r = light
		}
		for i := d.cell(at + s.Begin); i <= d.cell(at+s.End); i++ {
			row[i] = r
		}
	}
	value := pad(length(w.Busy), -6)
	if w.Count > 1 {
		value += fmt.Sprintf(" %d %s", w.Count, what)
	} else if what == "1st step" {
		value += " " + what
	}
	d.b.WriteString(pad(name, nameColumns) + d.s.paint(c, string(row)) + " " + pad(clean(value, valueColumns-1), 0) + "\n")
}

// tokens marks the arrivals of the first tokens at the gateway: the first two by number, the rest by a
// dot. The earlier one is shown where two share a cell.
func (d *drawing) tokens() {
	list := d.h.Gateway.Tokens
	if len(list) == 0 {
		return
	}
	row := []rune(strings.Repeat(" ", d.cells))
	for i, t := range list {
		if !d.shows(t, t) {
			continue
		}
		mark := '.'
		if i < 2 {
			mark = rune('1' + i)
		}
		if at := d.cell(t); row[at] == ' ' {
			row[at] = mark
		}
	}
	d.b.WriteString(pad("tokens", nameColumns) + d.s.paint(strong, string(row)) + " at the gateway\n")
}

// step is one part of a sum.
type step struct {
	name string
	took time.Duration
}

// sum writes parts that add up to a whole.
func (d *drawing) sum(what string, whole time.Duration, parts []step) {
	var list []string
	for _, p := range parts {
		list = append(list, p.name+" "+length(p.took))
	}
	d.line(plain, "%s %s: %s", what, length(whole), strings.Join(list, ", "))
}

// parts turns a sequence of instants into what lies between them. Instants that did not happen are
// left out; one before its predecessor, by the clocks' alignment, moves to it.
func parts(from time.Duration, instants []step) []step {
	var out []step
	for _, s := range instants {
		if s.took <= 0 {
			continue
		}
		at := max(s.took, from)
		out = append(out, step{s.name, at - from})
		from = at
	}
	return out
}

func (d *drawing) foot() {
	h, s, m, g := d.h, &d.h.Source, &d.h.Summary, &d.h.Gateway
	d.b.WriteString("\n")
	offset := func(p *telemetry.Part, off time.Duration) time.Duration {
		if p == nil || off <= 0 {
			return 0
		}
		return p.At + off
	}
	ahead, behind := g.Reserved, time.Duration(0) // when memory was reserved, by the order
	if h.Policy == handoff.SourceFirst {
		ahead, behind = behind, ahead
	}
	if len(g.Tokens) > 0 && g.Sampled {
		first := g.Tokens[0]
		capped := func(t time.Duration) time.Duration { return min(t, first) }
		d.sum("first token", first, parts(0, []step{
			{"admission", capped(h.Request.Admitted)},
			{"placing", capped(g.Placed)},
			{"reserving", capped(ahead)},
			{"dispatch", capped(offset(s, s.Slot))},
			{"prefill", capped(offset(s, s.Prompted))},
			{"to the gateway", first},
		}))
	}
	if t := h.Destination; t != nil && len(g.Tokens) > 1 && g.Sampled {
		second := g.Tokens[1]
		capped := func(at time.Duration) time.Duration { return min(at, second) }
		d.sum("second token", second-g.Tokens[0], parts(g.Tokens[0], []step{
			{"reserving", capped(behind)},
			{"transfer", capped(offset(t, t.Complete))}, {"commit", capped(offset(t, t.Ready))}, {"decode step", capped(offset(t, t.Decode.End()))}, {"to the gateway", second},
		}))
	}
	if h.Destination != nil && h.Target == telemetry.TargetCommitted {
		d.line(warning, "tail %s after prefill; hidden behind prefill: %s of bytes, %s of the work", length(m.Tail), percent(m.Overlap.Bytes), percent(m.Overlap.Time))
	}
	r := &h.Request
	slo := fmt.Sprintf("TTFT %s, TPOT %s, in all %s", length(r.TTFT), length(r.TPOT), length(r.Total))
	if r.SLO.TTFT != telemetry.VerdictOff || r.SLO.TPOT != telemetry.VerdictOff {
		slo += fmt.Sprintf("; objectives: TTFT %s, TPOT %s", r.SLO.TTFT, r.SLO.TPOT)
	}
	d.line(plain, "%s", slo)
}
