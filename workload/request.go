package workload

import "github.com/tandem-llm/tandem/engine/timed"

// Request is one request: its size, its place in time, and what its prompt
// shares with others. It holds no content.
type Request struct {
	Arrival timed.Time // since the first request of a trace, or the start of a generator
	Input   int        // tokens of the prompt, at least 1
	Output  int        // tokens to generate, at least 1

	// Hashes are the ids of the prompt's blocks of HashTokens tokens, the last
	// one possibly partial: there are ⌈Input/HashTokens⌉. An id stands for its
	// block and all before it, so what two prompts share is the ids that they
	// begin with alike. Nil: nothing is known to be shared. Valid until the
	// source's next method is called.
	Hashes     []uint64
	HashTokens int
	// Answer are the ids of the blocks that are full once the answer is there,
	// from block Input/HashTokens on: what the session's next prompt begins
	// with. Nil where it is not known. Valid as long as Hashes.
	Answer []uint64

	Session uint64 // what the turns of one conversation have in common; 0: none
	Turn    int    // counts from 1 within a session; 0: none
	Tenant  string // requests of different tenants share nothing; "": one tenant
}

// Source hands out requests in order of arrival. It belongs to one goroutine.
//
// A closed loop needs feedback: a session's next turn arrives some time after
// its last one ended, and may then be earlier than what Peek showed before. So
// a host asks Peek after every Finished, and takes a request with Next only
// when its clock has come to the arrival.
type Source interface {
	// Peek returns the arrival of the request that Next would return, and
	// false when there is none now: the source has ended, or waits for
	// Finished (with no request in flight it has ended). Errors are those of
	// Next.
	Peek() (timed.Time, bool, error)
	// Next takes the next request. An error is final: it is returned again.
	Next() (Request, bool, error)
	// Finished says that the session's turn ended, well or not, at this time,
	// which never goes back. It does nothing for a session of 0 and for
	// sessions whose turns do not wait for each other.
	Finished(session uint64, at timed.Time)
}
