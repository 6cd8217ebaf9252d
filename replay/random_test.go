package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/workload"
	"pgregory.net/rapid"
)

// drawConfig draws a fleet, small enough that memory, slots and time get short.
func drawConfig(t *rapid.T) string {
	var b strings.Builder
	pick := func(name string, of ...string) string { return rapid.SampledFrom(of).Draw(t, name) }
	n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(t, name) }
	mode := pick("mode", "colocated", "disaggregated", "disaggregated", "auto")
	fmt.Fprintf(&b, "mode: %s\norder: %s\nstreaming: %s\nseed: %d\n", mode,
		pick("order", "destination-first", "source-first"), pick("streaming", "true", "false"), n("seed", 0, 9))
	fmt.Fprintf(&b, "gateway: {rtt: %s, timeout: %s, patience: %s, lease: %s, retries: %d, retry: %s, active: %d, queue: %d, detect: 200ms, place_wait: 1s, no_renewal: %s}\n",
		pick("rtt", "0s", "200us", "7ms"), pick("timeout", "1s", "10s", "1h"), pick("patience", "300ms", "5s", "1h"), pick("lease", "50ms", "10s"),
		n("retries", 0, 3), pick("retry", "recompute", "rebind", "none"), pick2(t, 0, 3), n("queue", 0, 2), pick("no renewal", "false", "false", "true"))
	fmt.Fprintf(&b, "worker: {lease: %s, quarantine: 100ms}\n", pick("worker lease", "60ms", "30s"))
	fmt.Fprintf(&b, "links: {default: {gbps: %s, rtt: %s, trunk: %s, convert: %s, quiesce: %s}}\n", pick("gbps", "0.001", "0.1", "400"),
		pick("link rtt", "0s", "3ms"), pick("trunk", "false", "true"), pick("convert", "0s", "10ms"), pick("quiesce", "0s", "20ms", "300ms"))
	b.WriteString("pools:\n")
	pool := func(name, role string, count int) {
		fmt.Fprintf(&b, "  - name: %s\n    count: %d\n    role: %s\n", name, count, role)
		switch n("timing", 0, 4) {
		case 0: // times depend on the context
			fmt.Fprintf(&b, "    model: llama-3.1-8b\n    hardware: m1-ultra\n")
		case 1:
			fmt.Fprintf(&b, "    model: llama-3.1-8b\n    hardware: h100-sxm\n    split: {share: 0.4, hardware: m1-ultra, rtt: 1ms}\n")
		default:
			fmt.Fprintf(&b, "    fixed: {decode_ms: %d, chunk_ms: %d, token_ms: 0.1}\n", n("decode", 1, 20), n("chunk", 0, 3))
			fmt.Fprintf(&b, "    geometry: {attention_per_token: 1000, recurrent: %d}\n", n("recurrent", 0, 1)*5000)
			fmt.Fprintf(&b, "    moves: {export_ms: %d, import_ms: %d}\n", n("export", 0, 2), n("import", 0, 2))
			if n("speculates", 0, 4) == 0 {
				b.WriteString("    speculation: {kind: suffix, draft: 3, accept: [0.7], hit: 0.5}\n")
			}
		}
		fmt.Fprintf(&b, "    memory: {kind: %s, block_tokens: %s, blocks: %d, slots: %d, prefix_cache: %s}\n", pick("kind", "block", "radix"),
			pick("block", "8", "16"), n("blocks", 10, 60), n("slots", 2, 8), pick("cache", "true", "false"))
		fmt.Fprintf(&b, "    schedule: {budget: %d, chunk: %d, running: %d, headroom: %d, priority: %s, waiting: %s}\n", n("budget", 8, 200), n("chunk size", 0, 64),
			n("running", 1, 8), n("headroom", 0, 20), pick("priority", "decodes-first", "prefills-first"), pick("waiting", "2", "1000"))
	}
	var names []string
	if mode == "colocated" {
		count := n("count", 1, 3)
		pool("all", pick("role", "prefill", "both"), count)
		names = append(names, "all-0")
	} else {
		pool("p", pick("p role", "prefill", "prefill", "both"), n("p count", 1, 2))
		pool("d", pick("d role", "decode", "decode", "both"), n("d count", 1, 2))
		names = append(names, "p-0", "d-0")
	}
	if n("failures", 0, 2) == 0 {
		b.WriteString("failures:\n")
		fmt.Fprintf(&b, "  - {at: %dms, worker: %s, for: %dms}\n", n("dies at", 0, 1500), rapid.SampledFrom(names).Draw(t, "who"), n("down", 0, 1)*n("down for", 1, 600))
		if len(names) > 1 {
			fmt.Fprintf(&b, "  - {at: %dms, from: p, to: d, gbps: %s, for: 300ms}\n", n("degrades at", 0, 1000), pick("to gbps", "0", "0.0005"))
			fmt.Fprintf(&b, "  - {at: %dms, stream: %d}\n", n("breaks at", 0, 1000), n("whose", 0, 9))
		}
	}
	if n("cancels", 0, 2) == 0 {
		fmt.Fprintf(&b, "cancels: {rate: 0.4, within: %dms, requests: [{request: %d, at: %dms}]}\n", n("within", 1, 1500), n("cancelled", 0, 9), n("at", 0, 1500))
	}
	return b.String()
}

func pick2(t *rapid.T, a, b int) int { return rapid.SampledFrom([]int{a, b}).Draw(t, "one of two") }

// drawRequests draws requests, some of which begin alike.
func drawRequests(t *rapid.T) []workload.Request {
	var list []workload.Request
	at := timed.Time(0)
	for i := range rapid.IntRange(1, 25).Draw(t, "requests") {
		at += timed.Time(rapid.SampledFrom([]int{0, 1, 10, 50, 300}).Draw(t, "gap")) * timed.Millisecond
		q := workload.Request{Arrival: at, Input: rapid.IntRange(1, 200).Draw(t, "input"), Output: rapid.IntRange(1, 120).Draw(t, "output")}
		if rapid.IntRange(0, 3).Draw(t, "named") > 0 {
			q.HashTokens = 16
			group := uint64(rapid.IntRange(0, 2).Draw(t, "group"))
			shared := rapid.IntRange(0, 12).Draw(t, "shared")
			for b := range (q.Input + 15) / 16 {
				id := group<<32 | uint64(b)
				if b >= shared {
					id = uint64(i+1)<<48 | uint64(b)
				}
				q.Hashes = append(q.Hashes, id)
			}
			if rapid.Bool().Draw(t, "answer named") {
				for b := q.Input / 16; b < (q.Input+q.Output)/16; b++ {
					q.Answer = append(q.Answer, uint64(i+1)<<48|1<<40|uint64(b))
				}
			}
		}
		list = append(list, q)
	}
	return list
}

// Whatever the fleet and whatever goes wrong: no machine refuses a fact, everything
// is given back, and stretches taken at once give the report of single steps.
func TestStretchesEqualSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config, requests := drawConfig(t), drawRequests(t)
		fast, fastLines := simulate(t, config, &list{requests: requests}, Options{})
		slow, slowLines := simulate(t, config, &list{requests: requests}, Options{StepByStep: true})
		if !bytes.Equal(fastLines, slowLines) {
			t.Fatalf("%s\n%v\nrequests differ:\n%s", config, requests, cmp.Diff(string(slowLines), string(fastLines)))
		}
		if !bytes.Equal(fast, slow) {
			t.Fatalf("%s\n%v\nreports differ:\n%s", config, requests, cmp.Diff(string(slow), string(fast)))
		}
		// A lifecycle trace changes nothing, and fresh machines decide the same from it.
		var trace bytes.Buffer
		traced, _ := simulate(t, config, &list{requests: requests}, Options{Lifecycle: &trace})
		if !bytes.Equal(traced, fast) {
			t.Fatalf("%s\n%v\na trace changes the report:\n%s", config, requests, cmp.Diff(string(fast), string(traced)))
		}
		if _, err := replayed(&trace); err != nil {
			t.Fatalf("%s\n%v\n%v", config, requests, err)
		}
		countGaps(t, fast, fastLines)
		if n := bytes.Count(fastLines, []byte("\n")); n != len(requests) {
			t.Fatalf("%s\n%d requests ended of %d", config, n, len(requests))
		}
	})
}

// countGaps fails unless a request of n tokens has n-1 gaps between them. Where an
// attempt ended early, tokens were lost with it, and their gaps count.
func countGaps(t *rapid.T, result, lines []byte) {
	var o struct {
		Latency struct{ ITL struct{ N int } }
		Counts  []counted
	}
	if err := json.Unmarshal(result, &o); err != nil {
		t.Fatal(err)
	}
	want := 0
	for line := range bytes.Lines(lines) {
		var e each
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		want += max(0, e.Output-1)
		if e.Status != "completed" && e.Status != "refused" || e.Retries > 0 {
			return
		}
	}
	if o.Latency.ITL.N != want {
		t.Fatalf("%d gaps between tokens, want %d", o.Latency.ITL.N, want)
	}
}
