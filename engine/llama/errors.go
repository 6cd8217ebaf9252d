package llama

import (
	"errors"
	"fmt"
)

// The errors of opening a library, a model or a context, to be tested with
// errors.Is. What a running engine answers is in package engine.
var (
	// ErrLibrary: the shared libraries cannot be opened, or miss a function.
	ErrLibrary = errors.New("llama: libraries cannot be used")
	// ErrVersion: the libraries are of another llama.cpp version.
	ErrVersion = errors.New("llama: libraries of another version")
	// ErrLibraryInUse: this process has already opened libraries elsewhere.
	ErrLibraryInUse = errors.New("llama: other libraries are in use")
	// ErrOptions: an option is out of range, or options contradict each other.
	ErrOptions = errors.New("llama: bad option")
	// ErrModel: llama.cpp cannot load the model, or it has no text to generate.
	ErrModel = errors.New("llama: model cannot be used")
	// ErrContext: llama.cpp cannot make a context; usually memory is short.
	ErrContext = errors.New("llama: no context")
	// ErrFlashAttention: flash attention is not available, so that the V cache
	// would be transposed.
	ErrFlashAttention = errors.New("llama: flash attention is not available")
	// ErrText: the text cannot be tokenized.
	ErrText = errors.New("llama: text cannot be tokenized")
)

// Error is an error of this package: what failed, on what, and what to do.
type Error struct {
	// Kind is one of the errors above.
	Kind error
	// Subject is the file, directory or option.
	Subject string
	// Reason is what was found and expected. It may quote llama.cpp's own
	// messages about files, never content of requests.
	Reason string
	// Next is what the user can do.
	Next string
	// Err is the cause, when there is one.
	Err error
}

// Error describes the fault and the way out.
func (e *Error) Error() string {
	s := e.Kind.Error()
	if e.Subject != "" {
		s += ": " + e.Subject
	}
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Next != "" {
		s += "; " + e.Next
	}
	return s
}

// Unwrap gives errors.Is both the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

func badOption(name, format string, args ...any) error {
	return &Error{Kind: ErrOptions, Subject: name, Reason: fmt.Sprintf(format, args...)}
}
