package route

// Role says what a worker computes.
type Role uint8

const (
	Prefill Role = 1 + iota // prompts, and whole requests
	Decode                  // continuations only: it never computes a prompt
	Both                    // either
)

// String returns the role's name.
func (r Role) String() string {
	switch r {
	case Prefill:
		return "prefill"
	case Decode:
		return "decode"
	case Both:
		return "both"
	}
	return "unknown"
}

// Worker is what a registration says about a worker, as far as routing needs it.
type Worker struct {
	Name        string // unique among live workers
	Incarnation uint64 // changes when the worker restarts
	Role        Role
	Model       string

	Slots   int // sequences it can hold; at least 1
	Cells   int // tokens it can hold in all
	Context int // tokens one sequence can hold

	Draining    bool // takes no new request, and hands over what it holds
	Unreachable bool // did not take the last message; it may be gone, or reconnecting
}

// holds is the longest sequence that the worker can ever hold, in tokens.
func (w *Worker) holds() int { return min(w.Cells, w.Context) }

// Target is one incarnation of a worker. The zero Target is none.
type Target struct {
	Worker      string
	Incarnation uint64
}

// IsZero reports whether the target is none.
func (t Target) IsZero() bool { return t == Target{} }
