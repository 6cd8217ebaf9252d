package gguf

import (
	"errors"
	"fmt"
	"strconv"
)

// What can be wrong with a file. Use errors.Is; the error itself is an [*Error].
var (
	// ErrMagic reports a file that is not GGUF at all.
	ErrMagic = errors.New("not a GGUF file")
	// ErrVersion reports a format version other than 2 and 3.
	ErrVersion = errors.New("unsupported GGUF version")
	// ErrBigEndian reports a file in the byte order of big-endian machines.
	ErrBigEndian = errors.New("big-endian GGUF")
	// ErrTruncated reports a declared length or offset beyond the end of the
	// file: most often an unfinished download.
	ErrTruncated = errors.New("file too short")
	// ErrLimit reports a count or length above the reader's [Limits].
	ErrLimit = errors.New("limit exceeded")
	// ErrMalformed reports contents that break the format's rules.
	ErrMalformed = errors.New("malformed")
	// ErrTensorType reports a tensor of a type that this build does not know.
	ErrTensorType = errors.New("unknown tensor type")
	// ErrMissingKey reports that a metadata key is absent.
	ErrMissingKey = errors.New("missing metadata key")
	// ErrKeyType reports a metadata value of another type than asked for.
	ErrKeyType = errors.New("metadata value of another type")
)

// Error is a refused file: what is wrong and where.
type Error struct {
	// Path is the file's path, empty when it was read from elsewhere.
	Path string
	// Where names the part of the file, such as `key "general.name"` or
	// `tensor "output.weight"`.
	Where string
	// Offset is the position in the file in bytes at which the problem was
	// found.
	Offset int64
	// Reason is one of this package's Err values.
	Reason error
	// Detail says what was found and what was expected. May be empty.
	Detail string
}

// Error formats the error in one line.
func (e *Error) Error() string {
	s := "gguf: "
	if e.Path != "" {
		s += e.Path + ": "
	}
	s += fmt.Sprintf("%s at byte %d: %v", e.Where, e.Offset, e.Reason)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Reason }

// quote makes a name from a file safe to show: quoted, and cut when long.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
