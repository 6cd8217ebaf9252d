package report

import (
	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
)

// Request is what became of one request. All times are points of the run's
// virtual time, except those of Handoff, which are lengths.
type Request struct {
	Index   int64 // position in the trace, from 0
	Session uint64
	Turn    int
	Tenant  string

	// Arrival ≤ First ≤ Second ≤ End. First means something with Output ≥ 1, Second
	// with Output ≥ 2.
	Arrival timed.Time // the request came
	First   timed.Time // its first token was there
	Second  timed.Time // its second one
	End     timed.Time // its last token was there, or it was given up

	Input  int // prompt tokens
	Output int // tokens that came

	CachedSource      int // prompt tokens found in the prefix cache where the prompt was computed
	CachedDestination int // prompt tokens that the destination of a handoff had already

	Status    handoff.Status
	Reason    string // why it did not complete; a constant of the host, "" for completed ones
	Policy    handoff.Policy
	Retries   int // attempts after the first
	Preempted int // times that its memory was taken and computed again

	Prefill int32 // index of the worker that computed the prompt, in the fleet; -1: none
	Decode  int32 // index of the worker that decoded; equal to Prefill when colocated; -1: none

	HandedOff bool // Handoff says how; false for colocated requests and those that ended before
	Handoff   Handoff
}

// Handoff is where the time of one handoff went, as lengths. The phases may
// overlap, so they add up to no total.
type Handoff struct {
	Reserve timed.Time // the destination was asked for memory, until it reserved it
	Queue   timed.Time // state was ready and waited for a destination or the link, before its first byte moved
	Prefill timed.Time // the prompt's first step began, until its last one ended, at the source
	Export  timed.Time // bytes out of the engine, summed over pages
	Wire    timed.Time // first byte sent, until the last one received
	Import  timed.Time // bytes into the engine, summed over pages
	Commit  timed.Time // the state was whole at the destination, until the source was free to let go

	Overlapped timed.Time // bytes moved for so long while the prompt was still being computed
	Tail       timed.Time // prefill ended, until decode could start: what the client waits for

	Bytes         int64 // that went over the link
	SkippedTokens int   // prompt tokens not sent, because the destination had them
}

// TTST is the time from the first token to the second. It means something with
// Output ≥ 2.
func (q *Request) TTST() timed.Time { return q.Second - q.First }

// TPOT is the mean time per token after the first, truncated to picoseconds; 0
// with fewer than two tokens.
func (q *Request) TPOT() timed.Time {
	if q.Output < 2 {
		return 0
	}
	return (q.End - q.First) / timed.Time(q.Output-1)
}
