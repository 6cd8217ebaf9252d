package soak

import (
	"context"
	"fmt"
	"sync"
)

// judge holds finished answers against the reference. Its methods may be called from
// any goroutine; follow is called by one at a time.
type judge struct {
	follow func(q *Request, tokens []int32, bound float64) (verdict, error)
	// explain returns which of the tokens at far no batching explains.
	explain func(ctx context.Context, q *Request, tokens []int32, far []int) ([]int, error)
	bound   float64 // of what the reference may prefer

	mu       *sync.Mutex // the report's
	report   *Report
	check    func(name string) *Check
	differed []string // ids of handed-off greedy answers that differ
}

// kind is what an answer is judged as.
type kind int

const (
	handedOff kind = iota
	colocated
	alone
	// aloneCached: with nobody else, in engines that keep prefixes. What is kept lies
	// between the cells of a sequence, which then has other last bits.
	aloneCached
)

// answer judges a whole answer, unless ctx ends.
func (j *judge) answer(ctx context.Context, a *Answer, k kind) {
	v, err := j.follow(a.Request, a.Tokens, j.bound)
	var left []int
	if err == nil && a.Request.greedy() && len(v.far) > 0 {
		left, err = j.explain(ctx, a.Request, a.Tokens, v.far)
	}
	if ctx.Err() != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	q, tokens := a.Request, j.check(checkTokens)
	differs := v.first >= 0
	switch {
	case err != nil:
		tokens.fail("request %d: the reference cannot follow the answer: %v", q.Index, err)
		return
	case a.Finish == "stop" && !v.stops:
		tokens.fail("request %d (%s) ends with the reason stop, its last token ends nothing", q.Index, a.ID)
	}
	text := ""
	if differs && (k == alone || k == aloneCached) {
		text = fmt.Sprintf("request %d (%s, %s): token %d of %d is another one than the reference's, which prefers it by %.3g; %d of %d tokens of the prompt came from a cache",
			q.Index, a.ID, where(a), v.first, len(a.Tokens), v.gap, a.Cached, len(q.Prompt))
	}
	switch k {
	case alone:
		c := j.check(checkAlone)
		c.judged()
		if differs {
			c.fail("%s", text)
		}
	case aloneCached:
		d := &j.report.Divergence
		if d.AloneCached.add(differs); differs && len(d.AloneDetails) < mostDetails {
			d.AloneDetails = append(d.AloneDetails, text)
		}
	}
	if !q.greedy() {
		switch k {
		case handedOff:
			j.report.Divergence.SampledHandedOff.add(differs)
		case colocated:
			j.report.Divergence.SampledColocated.add(differs)
		}
		return
	}
	tokens.judged()
	j.report.Tokens += int64(len(a.Tokens))
	j.report.Gap = max(j.report.Gap, v.gap)
	j.report.Explained += len(v.far) - len(left)
	if len(left) > 0 {
		tokens.fail("request %d (%s, %s): tokens %v of %d, behind a prompt of %d, are explained by no batching; it parts at token %d, and at token %d the reference prefers another one by %.4g, the bound is %.4g",
			q.Index, a.ID, where(a), left[:min(len(left), 8)], len(a.Tokens), len(q.Prompt), v.first, v.at, v.gap, j.bound)
	}
	d := &j.report.Divergence
	switch k {
	case colocated:
		d.Colocated.add(differs)
	case handedOff:
		d.HandedOff.add(differs)
		s := d.Orders[q.Order]
		s.add(differs)
		d.Orders[q.Order] = s
		if differs {
			j.differed = append(j.differed, a.ID)
		}
	}
}

func where(a *Answer) string {
	if a.Mode == modeColocated {
		return a.Mode
	}
	return string(a.Request.Order)
}

func (s *Share) add(counts bool) {
	s.Of++
	if counts {
		s.Count++
	}
}

// judge judges the divergence. Handed-off answers are not allowed to differ oftener,
// beyond what chance explains.
func (d *Divergence) judge(c *Check) {
	if d.HandedOff.Of == 0 || d.Colocated.Of == 0 {
		return
	}
	c.judged()
	d.Chance = higher(d.HandedOff, d.Colocated)
	if d.Chance < mostChance {
		c.fail("handed-off answers differ from the reference's in %s, colocated ones in %s", d.HandedOff, d.Colocated)
	}
}

// mostChance is how unlikely a difference must be to count as one.
const mostChance = 0.01
