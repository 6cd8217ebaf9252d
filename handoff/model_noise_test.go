package handoff

import "math/rand/v2"

// noiseMaker remembers facts that were true once. Telling a machine again, or not
// at all, or in another order must never do harm.
type noiseMaker struct {
	rand        *rand.Rand
	source      []told[SourceFact]
	destination []told[DestinationFact]
	request     []told[RequestFact]
}

type told[F any] struct {
	a uint8
	r Record
	f F
}

// makeNoise repeats an old fact, or drops or reorders pending local facts.
func (r *runner) makeNoise() {
	n := r.noise
	switch n.rand.IntN(5) {
	case 0:
		if len(n.source) > 0 {
			o := n.source[n.rand.IntN(len(n.source))]
			if !r.w.att[o.a].srcDead {
				r.toSource(o.a, o.r.Now, o.f)
			}
		}
	case 1:
		if len(n.destination) > 0 {
			o := n.destination[n.rand.IntN(len(n.destination))]
			if !r.w.att[o.a].dstDead {
				r.toDestination(o.a, o.r.Now, o.f)
			}
		}
	case 2:
		if len(n.request) > 0 && !r.w.gwDead {
			o := n.request[n.rand.IntN(len(n.request))]
			r.toRequest(o.r.Now, o.f)
		}
	default:
		a := &r.w.att[n.rand.IntN(modelAttempts)]
		l := &a.link[n.rand.IntN(modelParts)]
		q := []*queue{&a.srcQ, &a.dstQ, &l.srcQ, &l.dstQ}[n.rand.IntN(4)]
		switch {
		case q.n == 0:
		case n.rand.IntN(2) == 0:
			q.pop()
		default:
			q.push(q.pop())
		}
	}
}

// remember keeps a fact for later repetition.
func (r *runner) remember(rec Record) {
	if r.noise == nil {
		return
	}
	switch rec.Role {
	case RoleSource:
		r.noise.source = append(r.noise.source, told[SourceFact]{attemptOf(rec.Handoff), rec, *rec.SourceFact})
	case RoleDestination:
		r.noise.destination = append(r.noise.destination, told[DestinationFact]{attemptOf(rec.Handoff), rec, *rec.DestinationFact})
	case RoleRequest:
		r.noise.request = append(r.noise.request, told[RequestFact]{0, rec, *rec.RequestFact})
	}
}
