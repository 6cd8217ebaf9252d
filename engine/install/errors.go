package install

import (
	"errors"
	"strings"
)

// The kinds of failure, for errors.Is. Each *Error has exactly one.
var (
	ErrNotInstalled  = errors.New("llama.cpp libraries are not installed")
	ErrPlatform      = errors.New("no llama.cpp libraries for this platform")
	ErrOption        = errors.New("bad option")
	ErrCache         = errors.New("cache cannot be used")
	ErrTool          = errors.New("tool not found")
	ErrFetch         = errors.New("download failed")
	ErrIntegrity     = errors.New("download does not have the expected digest")
	ErrArchive       = errors.New("archive is malformed")
	ErrVersion       = errors.New("wrong llama.cpp version")
	ErrIncomplete    = errors.New("directory lacks llama.cpp libraries")
	ErrSystemLibrary = errors.New("system library missing")
)

// Error is every failure of this package: what kind, about what, why, and what
// the user does next.
type Error struct {
	Kind    error  // one of the Err variables
	Subject string // the file, directory, tool or package it is about
	Err     error  // cause, may be nil
	Next    string // what to do, imperative; may be empty
}

// Error formats the failure with the next step last.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("install: ")
	b.WriteString(e.Kind.Error())
	if e.Subject != "" {
		b.WriteString(": " + e.Subject)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	if e.Next != "" {
		b.WriteString(" (" + e.Next + ")")
	}
	return b.String()
}

// Unwrap exposes the kind and the cause to errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}
