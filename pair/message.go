package pair

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

// MaxMessage is the largest request or reply, in bytes: room for a prompt of half a million tokens.
const MaxMessage = 4 << 20

// ErrMessage: what came over the pipe is no message of this protocol.
var ErrMessage = errors.New("pair: not a message of this protocol; run the same build in both processes")

// request is one call of the parent. One field beside ID and Deadline is set.
type request struct {
	ID uint64 `json:"id"`
	// Within is how long the child may take.
	Within time.Duration `json:"within"`

	Hello    *helloRequest   `json:"hello,omitempty"`
	Open     *openRequest    `json:"open,omitempty"`
	Place    *Layout         `json:"place,omitempty"`
	Expect   *expectRequest  `json:"expect,omitempty"`
	Await    string          `json:"await,omitempty"` // awaitOpened, awaitReceived or awaitEnd
	Commit   bool            `json:"commit,omitempty"`
	Abort    string          `json:"abort,omitempty"` // the reason
	Continue int             `json:"continue,omitempty"`
	Prefill  *prefillRequest `json:"prefill,omitempty"`
	Keep     int             `json:"keep,omitempty"` // tokens of the prefix
	State    bool            `json:"state,omitempty"`
	Clear    bool            `json:"clear,omitempty"`
	Stats    bool            `json:"stats,omitempty"`
	Close    bool            `json:"close,omitempty"`
}

// The values of request.Await.
const (
	awaitOpened   = "opened"   // the stream is open, or the handoff ended
	awaitReceived = "received" // everything is here and was validated, or the handoff ended
	awaitEnd      = "end"      // the handoff ended and its transport is quiet
)

type helloRequest struct {
	// Mesh is the directory of the child's identity.
	Mesh        string `json:"mesh"`
	Incarnation uint64 `json:"incarnation"`
}

type openRequest struct {
	Engine    EngineOptions `json:"engine"`
	Transport Transport     `json:"transport"`
}

type expectRequest struct {
	Binding []byte        `json:"binding"` // state.Binding.Encode
	Lane    wire.LaneMode `json:"lane"`
	Tokens  uint32        `json:"tokens"`
	// Skip of them are in the prefix that is kept, and do not come.
	Skip uint32 `json:"skip,omitempty"`
	// Identity is what the source claims to be: state.Identity.Encode. Workers learn it by registration.
	Identity []byte `json:"identity"`
	// Hold keeps the child from committing before it is told to.
	Hold bool `json:"hold,omitempty"`
	// Pull lets the child come for the state; nil lets it make a ticket and wait. It is answered when the stream
	// is open or the handoff ended.
	Pull *pullRequest `json:"pull,omitempty"`
}

// pullRequest says with what and to whom the child comes.
type pullRequest struct {
	Ticket []byte        `json:"ticket"`
	From   wire.Endpoint `json:"from"`
	// Reopen closes the child's data plane and opens it again before, as the same process.
	Reopen bool `json:"reopen,omitempty"`
}

type prefillRequest struct {
	Tokens []engine.Token `json:"tokens"`
	Chunk  int            `json:"chunk"`
}

// reply answers the request with the same ID.
type reply struct {
	ID  uint64       `json:"id"`
	Err *RemoteError `json:"err,omitempty"`

	Info     *Info         `json:"info,omitempty"`
	Ticket   []byte        `json:"ticket,omitempty"`
	Endpoint wire.Endpoint `json:"endpoint,omitzero"`
	Received *Received     `json:"received,omitempty"`
	Steps    []Step        `json:"steps,omitempty"`
	First    engine.Token  `json:"first,omitempty"`
	State    *StateSum     `json:"state,omitempty"`
	Stats    *Stats        `json:"stats,omitempty"`
}

// Received is what the child says of a handoff.
type Received struct {
	// Active says that the sequence was committed and can be decoded.
	Active bool `json:"active"`
	// Units and Bytes count what was accepted.
	Units int    `json:"units"`
	Bytes uint64 `json:"bytes"`
	// Hash is the time spent on keyed digests (on the stream's goroutine), Import that spent in the
	// engine, and Commit that of the commit alone.
	Hash, Import, Commit time.Duration
	// Tail is the time from the last unit's arrival at the owner to the commit.
	Tail time.Duration
	// Wire is what the destination's end of the stream measured.
	Wire wire.Stats
	// Err is why the handoff ended early, or nil.
	Err *RemoteError `json:"err,omitempty"`
}

// StateSum is a digest of a sequence's canonical state. Two engines of one identity hold equal state
// exactly when their sums are equal.
type StateSum struct {
	Bytes  int          `json:"bytes"`
	Digest state.Digest `json:"digest"`
}

// Stats counts what a process of the pair owns.
type Stats struct {
	// Sequences counts slots that hold something, neighbours and padding included; Importing those
	// that state is arriving in.
	Sequences int `json:"sequences"`
	Importing int `json:"importing"`
	// Streams and Tickets count live handoffs and tickets of the data plane.
	Streams int `json:"streams"`
	Tickets int `json:"tickets"`
	// Buffers is the payload bytes in buffers of live handoffs, Granted what receivers were promised.
	Buffers int64 `json:"buffers"`
	Granted int64 `json:"granted"`
	// Goroutines and Files count goroutines and open file descriptors of the process; Files is -1 where
	// the system does not tell.
	Goroutines int `json:"goroutines"`
	Files      int `json:"files"`
}

// Idle reports whether nothing of a handoff is left.
func (s Stats) Idle() bool {
	return s.Sequences == 0 && s.Importing == 0 && s.Streams == 0 && s.Tickets == 0 && s.Buffers == 0 && s.Granted == 0
}

// writeMessage writes one message and flushes.
func writeMessage(w *bufio.Writer, m any) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(body) > MaxMessage {
		return fmt.Errorf("pair: a message of %d bytes, at most %d fit", len(body), MaxMessage)
	}
	var head [4]byte
	binary.BigEndian.PutUint32(head[:], uint32(len(body)))
	_, _ = w.Write(head[:]) // Flush repeats the error
	_, _ = w.Write(body)
	return w.Flush()
}

// readMessage reads one message into m. io.EOF means that the other side is gone, between messages.
func readMessage(r *bufio.Reader, m any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || n > MaxMessage {
		return fmt.Errorf("%w: a length of %d bytes", ErrMessage, n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if err := json.Unmarshal(body, m); err != nil {
		return fmt.Errorf("%w: %v", ErrMessage, err)
	}
	return nil
}
