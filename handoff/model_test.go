package handoff

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The model: both workers, the gateway and the network around the three
// machines of one request, small enough to be a comparable value. It is an
// honest host: it executes every action, turns it into pending facts, keeps
// those in the order in which their reporter learned them, and lets everything
// else happen in any order. Messages are a set that only grows: one that is
// never delivered is lost, one that is delivered again is repeated, and any order
// is possible. Explorer, property tests and scripts all drive this one model.

const (
	modelParts    = 2 // most source parts of the model
	modelAttempts = 2 // most attempts of the model's request
)

// Times of the model. Facts happen at time 0 except expiries, which happen
// exactly when they are due: machines compare times only there.
const (
	sourceDeadline  = 500 * time.Second
	pinLease        = 50 * time.Second
	renewFor        = 60 * time.Second
	quarantineTime  = 5 * time.Second
	requestDeadline = 1000 * time.Second
	attemptPatience = 100 * time.Second
)

// config is the shape of a model world.
type config struct {
	policy  Policy
	retry   Policy // policy of the second attempt
	parts   uint8
	retries uint8
	tokens  uint8 // completion limit
	onfail  Retry // what failed attempts are answered with
	stuck   bool  // an aborted stream becomes quiet only when it is forced
	nofail  bool  // leave out refusals, rejections and invalid data
	badstep bool  // with nofail: a decode step may fail all the same
	nokill  bool  // leave out dead processes
}

// message is one kind of message of an attempt.
type message uint8

const (
	mReserve message = iota // gateway to destination
	mCancelD
	mPrefill // gateway to source
	mRun
	mCancelS
	mRenew
	mRelay
	mPinned // source to gateway
	mStreamFailed
	mEndedS
	mReleasedS
	mTokensS
	mReserved // destination to gateway
	mRefused
	mCommitted
	mEndedD
	mReleasedD
	mTokensD
	messages
)

var messageNames = [...]string{
	"reserve", "cancel-destination", "prefill", "run", "cancel-source", "renew", "relay-commit",
	"pinned", "stream-failed", "ended-source", "released-source", "tokens-source",
	"reserved", "refused", "committed", "ended-destination", "released-destination", "tokens-destination",
}

// queue holds facts that one reporter has learned and the machine has not yet
// been told, in order.
type queue struct {
	n uint8
	k [5]FactKind
	p [5]uint8
}

func (q *queue) push(k FactKind, part uint8) {
	if int(q.n) == len(q.k) {
		panic("model: queue is full")
	}
	q.k[q.n], q.p[q.n] = k, part
	q.n++
}

func (q *queue) pop() (FactKind, uint8) {
	k, p := q.k[0], q.p[0]
	q.n--
	copy(q.k[:], q.k[1:])
	copy(q.p[:], q.p[1:])
	q.k[len(q.k)-1], q.p[len(q.p)-1] = 0, 0
	return k, p
}

// end is one side's view of a stream.
type end uint8

const (
	endNone    end = iota
	endDialing     // initiated, not accepted
	endOffered     // waiting to be dialed
	endOpen
	endClosed
)

type ticket uint8

const (
	ticketNone ticket = iota
	ticketLive
	ticketRedeemed
	ticketRevoked
)

// link is the stream between one source part and the destination.
type link struct {
	src, dst                 end
	srcQ, dstQ               queue
	ticket                   ticket
	conn, broken             bool
	final, delivered, acked  bool // SendFinal executed; everything arrived; source knows
	srcAborted, dstAborted   bool
	srcForced, dstForced     bool
	credit                   bool // the destination granted credit: bytes may be written
	ackOut, ackDone, ackGone bool
}

// srcUses reports whether the transport may read the source's memory.
func (l *link) srcUses() bool {
	return !l.acked && (l.src == endDialing || l.src == endOpen)
}

// dstUses reports whether the transport may write the destination's memory.
func (l *link) dstUses() bool {
	return l.credit && !l.delivered && l.dst != endClosed && l.dst != endNone
}

// job is one part's work at the source's scheduler.
type job uint8

const (
	jobNone job = iota
	jobRunning
	jobDone    // pinned, or finished
	jobRetired // stopped or rejected
)

// attempt is one handoff: its two machines and their workers' share of it.
type attempt struct {
	policy           Policy
	src              Source
	dst              Destination
	srcDead, dstDead bool
	srcTold, dstTold bool // the other worker heard that this one is gone
	gwTold           uint8
	link             [modelParts]link

	// Source worker.
	srcQ          queue // the scheduler's answers
	jobs          [modelParts]job
	stop          bool
	srcHeld       bool // memory is accounted to this handoff
	lease         bool
	srcFreed      uint8
	srcFrom       uint8 // absolute index of the token that it samples
	srcCount      uint8 // tokens it knows
	srcFin        bool
	reuse         bool // takes over the first attempt's pin
	endedS        Outcome
	neverS        bool
	releasedS     Outcome
	coordLostTold uint8
	overtaken     uint8 // sides that were cancelled before they were created
	moved         bool  // the gateway made the destination the owner

	// Destination worker.
	dstQ                          queue
	queued, reserved, active      bool // in the reserve queue; classes of memory, exclusive
	activating, stepping, retires bool
	published, dstFreed           uint8
	dstCount                      uint8
	endedD                        Outcome
	neverD                        bool

	sent uint32 // messages that exist
}

// world is the whole model.
type world struct {
	cfg       config
	cut       bool // the network died for good; only local things happen
	gwDead    bool
	req       Request
	admitted  bool
	placing   bool
	reusable  bool
	n         uint8 // attempts placed
	booked    uint8
	unmade    uint8 // bookings asked of the router and not confirmed
	forwarded uint8
	finished  uint8
	status    Status
	renewals  uint8
	att       [modelAttempts]attempt
}

func newWorld(cfg config) world {
	w := world{cfg: cfg}
	return w
}

// attemptID names the model's attempts; the ids only need to differ.
func attemptID(a uint8) ID { return Mint(1_700_000_000_000+uint64(a), [10]byte{a}) }

func attemptOf(id ID) uint8 { return uint8(id.UnixMilli() - 1_700_000_000_000) }

func (a *attempt) send(m message)     { a.sent |= 1 << m }
func (a *attempt) has(m message) bool { return a.sent&(1<<m) != 0 }

// violation is a broken invariant, found by the model.
type violation struct {
	inv  int // number in the design; 0 for the model's own rules
	what string
}

func (v *violation) Error() string { return fmt.Sprintf("INV-%d: %s", v.inv, v.what) }

// runner executes events of one world and checks the invariants as it goes.
type runner struct {
	w       *world
	err     *violation
	facts   [RoleRequest + 1][factKinds]bool   // told to each machine
	actions [RoleRequest + 1][actionKinds]bool // asked for by each machine
	trace   func(format string, args ...any)   // nil unless someone reads it
	record  func(Record)                       // nil unless someone replays it
	records []Record
	script  []event     // what happened
	noise   *noiseMaker // facts may be repeated, reordered and dropped

	srcActs []SourceAction
	dstActs []DestinationAction
	reqActs []RequestAction
}

func (r *runner) fail(inv int, format string, args ...any) {
	if r.err == nil {
		r.err = &violation{inv, fmt.Sprintf(format, args...)}
	}
}

// refused judges an error: an honest host is never refused, a noisy one gets a
// typed error and an unchanged machine.
func (r *runner) refused(err error, unchanged bool, actions int) {
	var typed *FactError
	switch {
	case r.noise == nil:
		r.fail(0, "honest host was refused: %v", err)
	case !errors.As(err, &typed) || !unchanged || actions != 0:
		r.fail(7, "a refused fact changed the machine, or the error is untyped: %v", err)
	}
}

// scriptText returns what happened as a script.
func (r *runner) scriptText() string {
	lines := make([]string, len(r.script))
	for i, e := range r.script {
		lines[i] = e.String()
	}
	return strings.Join(lines, "\n")
}
