package bus

import "errors"

// Kinds of failure, for errors.Is. The error value itself is an *Error and says what to do next.
var (
	// ErrDisconnected: there is no connection to the bus now, or it broke while an answer was awaited. Reconnecting goes
	// on in the background; whether the other side saw the message is unknown.
	ErrDisconnected = errors.New("disconnected")
	// ErrTimeout: no answer in time. Whether the other side saw the message is unknown.
	ErrTimeout = errors.New("no answer in time")
	// ErrNoWorker: nobody of that name listens on the bus.
	ErrNoWorker = errors.New("no such worker on the bus")
	// ErrTooLarge: a message is larger than the bus, or this kind of message, allows.
	ErrTooLarge = errors.New("message too large")
	// ErrForbidden: the server refused a subject; the certificate's role or name does not allow it.
	ErrForbidden = errors.New("not permitted")
	// ErrRefused: the server or the client refused the other's certificate or protocol.
	ErrRefused = errors.New("connection refused by policy")
	// ErrSlow: this process did not handle messages fast enough and some were dropped.
	ErrSlow = errors.New("messages dropped")
	// ErrMalformed: a message that is not valid, or claims to come from somebody else.
	ErrMalformed = errors.New("malformed message")
	// ErrConfig: options that cannot work.
	ErrConfig = errors.New("bad configuration")
	// ErrListen: the embedded server cannot listen.
	ErrListen = errors.New("cannot listen")
	// ErrClosed: the connection was closed by this process.
	ErrClosed = errors.New("closed")
	// ErrTooMany: the registry is full.
	ErrTooMany = errors.New("too many workers")
)

// next says what a person does about each kind.
var next = map[error]string{
	ErrDisconnected: "repeat it after the reconnect; check the bus address if none comes",
	ErrTimeout:      "repeat it: commands are idempotent",
	ErrNoWorker:     "wait for its registration, or choose another worker",
	ErrTooLarge:     "send less, or raise max_payload of the external NATS servers (tandem bus config prints what they need)",
	ErrForbidden:    "use the certificate of the right role and name; external servers need the users that tandem bus config prints",
	ErrRefused:      "give both sides certificates of the same mesh CA and check that the address is the bus",
	ErrSlow:         "the sender repeats what matters; if this recurs, give the process more CPU",
	ErrMalformed:    "run compatible releases; the message was ignored",
	ErrConfig:       "correct the option and try again",
	ErrListen:       "choose another address or port, or stop what uses it",
	ErrClosed:       "connect again",
	ErrTooMany:      "raise the registry's limit or run fewer workers per gateway",
}

// Error is every error of this package: what was wrong, and the next step. errors.Is matches Kind and Cause. It never
// holds message contents.
type Error struct {
	Kind   error  // one of the Err values of this package
	Detail string // what was found and what was expected
	Cause  error  // may be nil
}

// Error implements error.
func (e *Error) Error() string {
	s := "bus: " + e.Kind.Error()
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s + "; " + next[e.Kind]
}

// Unwrap gives errors.Is the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}
