package telemetry

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// TestMemo: a member exists from its first use, known to the memo or not, and is the vector's own.
func TestMemo(t *testing.T) {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "x", Help: "x"}, []string{"k"})
	reg := prometheus.NewRegistry()
	reg.MustRegister(v)
	members := func() map[string]float64 {
		got := map[string]float64{}
		list, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range list {
			for _, m := range family.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
		return got
	}
	m := newMemo(v.WithLabelValues, "a", "b")
	if got := members(); len(got) != 0 {
		t.Errorf("before the first use: %v", got)
	}
	for _, k := range []string{"a", "c", "a", "c"} {
		m.of(k).Inc()
	}
	if d := cmp.Diff(map[string]float64{"a": 2, "c": 2}, members()); d != "" {
		t.Error(d)
	}
}

// TestTokenCountsAllocateNothing: what is counted with each token.
func TestTokenCountsAllocateNothing(t *testing.T) {
	g := NewGateway("test")
	count := func() {
		g.Status(StatusApplied)
		g.NextToken(Colocated, 3*time.Millisecond)
	}
	count()
	if n := testing.AllocsPerRun(100, count); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
