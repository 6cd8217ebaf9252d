package replay

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/workload"
)

// What happens at time 0 happened: a handoff that begins there is measured as a
// later one is.
func TestTimeZeroCounts(t *testing.T) {
	points := regexp.MustCompile(`"(arrival|end)_s":[^,]*,`)
	for _, rtt := range []string{"0s", "10ms"} {
		for _, streaming := range []string{"true", "false"} {
			config := fmt.Sprintf(pair, streaming, "0s", 1)
			config = regexp.MustCompile(`rtt: 0s`).ReplaceAllString(config, "rtt: "+rtt)
			var lines [2]string
			for i, at := range []timed.Time{0, timed.Second} {
				_, got := simulate(t, config, &list{requests: []workload.Request{{Arrival: at, Input: 2000, Output: 3}}}, Options{})
				lines[i] = points.ReplaceAllString(string(got), "")
			}
			if diff := cmp.Diff(lines[1], lines[0]); diff != "" {
				t.Errorf("with %s between gateway and workers, streaming %s, at time 0 instead of 1 s:\n%s", rtt, streaming, diff)
			}
		}
	}
}

// Memory that sequences grow by counts, in the mean and in the peak, whether they end
// or their worker does.
func TestGrowthCounts(t *testing.T) {
	for _, c := range []struct {
		more string
		life float64 // of the sequence, in seconds
		most float64 // blocks at its end
	}{
		{"", 32.16, 210},
		{"failures: [{at: 16160ms, worker: all-0}]\n", 16.16, 110},
	} {
		res, _ := simulate(t, colocated+c.more, &list{requests: []workload.Request{{Input: 160, Output: 3201}}}, Options{})
		var o struct {
			End   float64 `json:"end_s"`
			Pools []struct {
				Active float64
				Blocks float64
				Peak   float64 `json:"peak_used_blocks"`
			}
		}
		if err := json.Unmarshal(res, &o); err != nil {
			t.Fatal(err)
		}
		// A prompt of 10 blocks in 160 ms, then a token every 10 ms: a block every 160.
		p := &o.Pools[0]
		got, want := p.Active*p.Blocks*o.End, 0.16*10+(c.life-0.16)*(10+c.most)/2
		if math.Abs(got-want) > 0.01*want {
			t.Errorf("%q: %g block seconds, want about %g", c.more, got, want)
		}
		if math.Abs(p.Peak-c.most) > 1 {
			t.Errorf("%q: at most %g blocks, want %g", c.more, p.Peak, c.most)
		}
	}
}

// Pages that the destination has need not travel, so they wait for nothing.
func TestQueueLeavesOutWhatStays(t *testing.T) {
	config := fmt.Sprintf(pair, "true", "0s", 2)
	_, lines := simulate(t, config, &list{requests: []workload.Request{
		{Input: 3200, Output: 3, Hashes: []uint64{1, 2}, HashTokens: 1600},
		{Arrival: timed.Second, Input: 3200, Output: 3, Hashes: []uint64{1, 3}, HashTokens: 1600},
	}}, Options{})
	want := regexp.MustCompile(`"cached_source":0,.*"skipped_tokens":1600,.*"queue_s":0,`)
	if second := strings.Split(string(lines), "\n")[1]; !want.MatchString(second) {
		t.Errorf("%s\ndoes not match %s", second, want)
	}
}
