package replay

import (
	"fmt"
	"regexp"
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
