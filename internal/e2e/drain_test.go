package e2e

import (
	"strings"
	"testing"
)

// TestDrain asks a worker to stop at several points of a request, with eight others running and steps so slow
// that none of its answers is finished in the time it has. Every answer is whole: what the worker does not
// finish goes on elsewhere, from the tokens that the client has. The worker ends well, and nothing is left.
func TestDrain(t *testing.T) {
	l := newLab(t, false)
	for _, k := range []struct {
		name  string
		point fault
		role  string
		mode  string
		order string
	}{
		{name: "prefilling", role: "prefill", point: fault{Point: "prefill", N: 2}},
		{name: "handing off", role: "prefill", point: fault{Point: "snapshot", N: 1}},
		{name: "being pulled from", role: "prefill", point: fault{Point: "export", N: 2}, order: sourceFirst},
		{name: "colocated", role: "prefill", point: fault{Point: "decode", N: 4}, mode: "colocated"},
		{name: "receiving", role: "decode", point: fault{Point: "import", N: 2}},
		{name: "pulling", role: "decode", point: fault{Point: "import", N: 2}, order: sourceFirst},
		{name: "decoding", role: "decode", point: fault{Point: "decode", N: 4}},
	} {
		if !t.Run(k.name, func(t *testing.T) {
			l.during(t, func() {
				dead, before := l.dead(), l.retries()
				k.point.Act, k.point.Claim = "term", "asked"
				q := victim("disaggregated")
				if k.mode != "" {
					q.mode = k.mode
				}
				q.order = k.order
				all := l.crowdThen(k.role, k.point, q)
				name, _ := l.awaitDeath(dead)
				if roleOf(name) != k.role {
					l.t.Errorf("%s stopped", name)
				}
				l.endedWell(name)
				l.disarm()
				for _, a := range all {
					if !l.wait(a) {
						l.t.Errorf("%s: not answered, although another worker was there", a)
					}
				}
				if k.role == "decode" && l.retries() == before {
					l.t.Error("no request was tried again: nothing was handed over")
				}
				l.alone(question{prompt: prompt(400, 77), max: 12})
				l.idle()
			})
		}) && t.Failed() {
			break
		}
	}
	l.replay()
}

// endedWell checks how the last process of that name that is gone ended.
func (l *lab) endedWell(name string) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.children) - 1; i >= 0; i-- {
		p := l.children[i]
		select {
		case <-p.exited:
		default:
			continue
		}
		if p.name == name {
			if p.err != nil {
				l.t.Errorf("%s ended with %v", name, p.err)
			}
			return
		}
	}
	l.t.Errorf("%s is not gone", name)
}

// retries is the number of attempts after the first that the gateway has made.
func (l *lab) retries() (n float64) {
	l.t.Helper()
	m, err := l.scrape("gateway")
	if err != nil {
		l.t.Fatal(err)
	}
	for sample, v := range m {
		if strings.HasPrefix(sample, "tandem_retries_total{") {
			n += v
		}
	}
	return n
}
