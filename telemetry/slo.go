package telemetry

import "time"

// SLO are a gateway's service level objectives. 0 turns one off.
type SLO struct {
	TTFT time.Duration `json:"ttft_ns"` // arrival to first token
	TPOT time.Duration `json:"tpot_ns"` // mean time per token after the first
}

// Verdicts are how one request did. Good says that it was answered to its end and missed no
// objective: goodput counts these.
type Verdicts struct {
	TTFT Verdict `json:"ttft"`
	TPOT Verdict `json:"tpot"`
	Good bool    `json:"good"`
}

// Judge compares an ended request with the objectives. A request that failed missed them all, one
// whose client went away tells nothing, and one of a single token has no time per further token to
// miss.
func (s SLO) Judge(r *Request) Verdicts {
	done := r.Outcome == Stopped || r.Outcome == Length
	one := func(limit, took time.Duration) Verdict {
		switch {
		case limit == 0:
			return VerdictOff
		case r.Outcome == Cancelled:
			return VerdictNone
		case done && took <= limit:
			return VerdictWithin
		}
		return VerdictOutside
	}
	v := Verdicts{TTFT: one(s.TTFT, r.TTFT), TPOT: one(s.TPOT, r.TPOT)}
	v.Good = done && v.TTFT != VerdictOutside && v.TPOT != VerdictOutside
	return v
}
