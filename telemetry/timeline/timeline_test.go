package timeline

import (
	"bytes"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/telemetry"
)

var update = flag.Bool("update", false, "rewrite golden files")

const ms = time.Millisecond

func work(n int, busy time.Duration, spans ...telemetry.Span) telemetry.Work {
	return telemetry.Work{Count: n, Busy: busy, Spans: spans}
}

func span(begin, end, busy time.Duration) telemetry.Span {
	return telemetry.Span{Begin: begin, End: end, Busy: busy}
}

func handedOff() *telemetry.Handoff {
	h := &telemetry.Handoff{
		Seq: 12, ID: handoff.Mint(1, [10]byte{1}), Attempt: 1, Why: telemetry.RetryNone, Mode: telemetry.Disaggregated, Chosen: telemetry.ChosenPair,
		Ending: telemetry.EndedHandedOff, Target: telemetry.TargetCommitted, MTP: telemetry.MTPNotBuilt,
		Request: telemetry.Request{
			Key: "cmpl-X43MPA2YEM3YU7SCO3264JOADG.0", Arrived: time.Unix(1_790_000_000, 5e6), Mode: telemetry.Disaggregated, Outcome: telemetry.Length,
			Attempts: 1, Prompt: 2013, Completion: 64, Admitted: 20 * time.Microsecond, TTFT: 212 * ms, TPOT: 12 * ms, Total: 980 * ms,
			SLO: telemetry.Verdicts{TTFT: telemetry.VerdictWithin, TPOT: telemetry.VerdictOutside},
		},
		Source: telemetry.Part{
			Worker: "prefill-0", Role: "prefill", Reported: true, At: 2 * ms, Slot: ms, Opened: 4 * ms, Granted: 5 * ms, Prompted: 205 * ms, Sent: 216 * ms,
			Committed: 221 * ms, Compute: work(4, 196*ms, span(ms, 50*ms, 49*ms), span(52*ms, 103*ms, 50*ms), span(105*ms, 155*ms, 49*ms), span(156*ms, 205*ms, 48*ms)),
			Export: work(5, 9*ms, span(50*ms, 51*ms, ms), span(103*ms, 104*ms, ms), span(155*ms, 156*ms, ms), span(206*ms, 212*ms, 6*ms)),
			Seal:   work(5, 4*ms, span(51*ms, 52*ms, ms), span(104*ms, 105*ms, ms), span(207*ms, 213*ms, 2*ms)),
			Stall:  work(1, ms, span(3*ms, 4*ms, ms)),
			Before: telemetry.Before{Exported: 6 << 20, Sent: 6 << 20, Export: 6 * ms, Wire: 5 * ms},
			Stream: telemetry.Stream{Lane: "tls", Bytes: 9 << 20, Units: 5, Busy: 9 * ms, RTT: 85 * time.Microsecond}, Pages: 4, Snapshots: 1, Computed: 2013,
			Components: []telemetry.Component{{Name: "attention_kv", Bytes: 8 << 20}, {Name: "recurrent", Bytes: 1<<20 - 512}, {Name: "conv", Bytes: 512}},
		},
		Destination: &telemetry.Part{
			Worker: "decode-0", Role: "decode", Reported: true, At: ms / 2, Slot: ms / 10, Complete: 219 * ms, Ready: 221 * ms, Computed: 63,
			Verify: work(5, 5*ms, span(54*ms, 56*ms, 2*ms), span(212*ms, 216*ms, 3*ms)), Wait: work(5, ms, span(56*ms, 217*ms, ms)),
			Import: work(5, 7*ms, span(56*ms, 58*ms, 2*ms), span(108*ms, 110*ms, 2*ms), span(216*ms, 219*ms, 3*ms)),
			Commit: work(1, 2*ms, span(219*ms, 221*ms, 2*ms)), Decode: work(1, 11*ms, span(222*ms, 233*ms, 11*ms)),
		},
		Gateway: telemetry.Times{
			Placed: 100 * time.Microsecond, Reserve: 200 * time.Microsecond, Reserved: 2 * ms, Dispatched: 2 * ms, Committed: 222 * ms, Ended: 980 * ms,
			Tokens: []time.Duration{212 * ms, 235 * ms, 247 * ms, 259 * ms, 271 * ms, 283 * ms, 295 * ms, 307 * ms}, Sampled: true,
		},
	}
	h.Summarize()
	return h
}

func colocated() *telemetry.Handoff {
	h := handedOff()
	h.Seq, h.Mode, h.Chosen, h.Ending, h.Target, h.MTP = 13, telemetry.Colocated, telemetry.ChosenFallback, telemetry.EndedColocated, telemetry.TargetNone, telemetry.MTPUnknown
	s := h.Source
	h.Source = telemetry.Part{Worker: s.Worker, Role: s.Role, Reported: true, At: s.At, Slot: s.Slot, Prompted: s.Prompted, Compute: s.Compute, Decode: work(1, 10*ms, span(206*ms, 216*ms, 10*ms)), Computed: 2076}
	h.Destination, h.Gateway.Reserve, h.Gateway.Reserved, h.Gateway.Committed = nil, 0, 0, 0
	h.Request.SLO = telemetry.Verdicts{TTFT: telemetry.VerdictOff, TPOT: telemetry.VerdictOff, Good: true}
	h.Summarize()
	return h
}

// lost is an attempt whose destination died without a word.
func lost() *telemetry.Handoff {
	h := handedOff()
	h.Seq, h.Ending, h.Target, h.Attempt, h.Why, h.Request.Attempts = 14, telemetry.EndedFailed, telemetry.TargetReserved, 2, telemetry.RetryFailed, 3
	h.Failure = &telemetry.Failure{Side: telemetry.Destination, Phase: "transfer", Code: "worker_lost"}
	h.Destination = &telemetry.Part{Worker: "decode-0", Role: "decode"}
	h.Gateway.Tokens, h.Gateway.Committed, h.Gateway.Ended, h.Source.Committed, h.Source.Sent = nil, 0, 230*ms, 0, 0
	h.Summarize()
	return h
}

// sourceFirst is one whose destination reserved when the prompt was done.
func sourceFirst() *telemetry.Handoff {
	h := handedOff()
	h.Seq, h.Policy = 15, handoff.SourceFirst
	h.Gateway.Reserve, h.Gateway.Reserved, h.Gateway.Dispatched = 213*ms, 214*ms, ms
	s, d := &h.Source, h.Destination
	s.Granted, s.Opened, s.Before, s.Stall = 214*ms, 214*ms, telemetry.Before{}, telemetry.Work{}
	s.Export, s.Seal = work(5, 8*ms, span(214*ms, 222*ms, 8*ms)), work(5, ms, span(215*ms, 223*ms, ms))
	s.Sent, s.Committed = 228*ms, 232*ms
	d.At, d.Slot, d.Complete, d.Ready = 213*ms, ms/10, 17*ms, 19*ms
	d.Verify, d.Wait, d.Import = work(5, 2*ms, span(4*ms, 15*ms, 2*ms)), work(5, ms, span(5*ms, 16*ms, ms)), work(5, 7*ms, span(5*ms, 17*ms, 7*ms))
	d.Commit, d.Decode = work(1, 2*ms, span(17*ms, 19*ms, 2*ms)), work(1, 9*ms, span(20*ms, 29*ms, 9*ms))
	h.Gateway.Tokens = []time.Duration{212 * ms, 243 * ms, 255 * ms}
	s.Skipped, s.SkippedBytes, d.Cached = 1024, 3<<20, 1024
	h.Summarize()
	return h
}

// hostile is what no gateway would send.
func hostile() *telemetry.Handoff {
	h := handedOff()
	h.Source.Worker = strings.Repeat("w\x1b[31m", 40)
	h.Destination.Role = "\x07role"
	h.Request.Key = strings.Repeat("k", 500)
	h.Source.Compute = work(9, math.MaxInt64, span(-5, math.MaxInt64, math.MaxInt64), span(math.MaxInt64, 3, 1))
	h.Destination.At = -1 << 60
	h.Source.Stream.Lane = strings.Repeat("\n", 9)
	h.Source.Components = append(h.Source.Components, telemetry.Component{Name: strings.Repeat("c", 300), Bytes: math.MaxInt64})
	h.Gateway.Tokens = []time.Duration{-1, math.MaxInt64}
	h.Summary.Tail, h.Summary.Bandwidth = math.MaxInt64, math.Inf(1)
	return h
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s: run go test -update if the change is meant\n%s", path, d)
	}
}

// fits checks that no line is wider than the style allows, whatever it is made of.
func fits(t *testing.T, text []byte, width int) {
	t.Helper()
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if n := utf8.RuneCountInString(line); n > width {
			t.Errorf("%d columns: %q", n, line)
		}
		if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' }) {
			t.Errorf("control characters: %q", line)
		}
	}
}

func TestDraw(t *testing.T) {
	for name, h := range map[string]*telemetry.Handoff{"handed-off": handedOff(), "colocated": colocated(), "lost": lost(), "source-first": sourceFirst(), "hostile": hostile(), "empty": {}} {
		var b bytes.Buffer
		if err := Draw(&b, h, Style{}); err != nil {
			t.Fatal(err)
		}
		fits(t, b.Bytes(), 80)
		if name != "hostile" && name != "empty" {
			golden(t, name, b.Bytes())
			for _, r := range b.String() {
				if r > 127 && r != 'µ' {
					t.Errorf("%s: %q in plain text", name, r)
				}
			}
		}
		for _, width := range []int{1, 64, 100, 200} {
			b.Reset()
			if err := Draw(&b, h, Style{Width: width, Blocks: true}); err != nil {
				t.Fatal(err)
			}
			fits(t, b.Bytes(), max(width, MinWidth))
		}
	}
}

func TestTable(t *testing.T) {
	list := []*telemetry.Handoff{handedOff(), colocated(), lost(), hostile()}
	var b bytes.Buffer
	if err := Table(&b, list[:3], Style{}, false); err != nil {
		t.Fatal(err)
	}
	golden(t, "table", b.Bytes())
	b.Reset()
	_ = Table(&b, list[3:], Style{}, true)
	if err := Table(&b, list, Style{}, false); err != nil {
		t.Fatal(err)
	}
	fits(t, b.Bytes(), 80)
}

func TestColorOnlyWhenAsked(t *testing.T) {
	for _, color := range []bool{false, true} {
		var b bytes.Buffer
		_ = Draw(&b, handedOff(), Style{Color: color})
		_ = Table(&b, []*telemetry.Handoff{lost()}, Style{Color: color}, false)
		if got := strings.Contains(b.String(), "\x1b["); got != color {
			t.Errorf("color %v: escapes %v", color, got)
		}
	}
}

func TestLength(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-1: "0", 0: "0", 999: "999ns", 1234: "1.2µs", 999_999: "999µs", 1_234_567: "1.23ms", 9_999_999: "9.99ms", 12_345_678: "12.3ms",
		999_999_999: "999ms", 1_234_567_890: "1.23s", 59_990 * ms: "59.9s", 100 * time.Second: "1m40", 59*time.Minute + 59*time.Second: "59m59", 90 * time.Minute: "1h", math.MaxInt64: "2562047h",
	} {
		if got := length(d); got != want {
			t.Errorf("%d ns: %q, want %q", d, got, want)
		}
	}
	for n, want := range map[int64]string{-1: "0 B", 0: "0 B", 1023: "1023 B", 1024: "1.00 KiB", 1 << 20: "1.00 MiB", 999 << 10: "999 KiB", 1000 << 10: "1000 KiB", 123456789: "117 MiB", math.MaxInt64: "8192 PiB"} {
		if got := size(n); got != want {
			t.Errorf("%d bytes: %q, want %q", n, got, want)
		}
	}
}
