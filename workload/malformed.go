package workload

import "fmt"

// Problem is what is wrong with a line of a trace.
type Problem uint8

// The problems, in the order of Malformed.Counts.
const (
	Syntax     Problem = iota // is not what the format's lines look like
	Missing                   // lacks a field that every request has
	OutOfRange                // has a number that no request can have
	TooLong                   // is longer than the limit of a line
	Disorder                  // arrived before a request already handed out
	Blocks                    // has another number of block ids than blocks
	problems
)

var problemNames = [problems]string{"syntax", "missing field", "out of range", "line too long", "out of order", "wrong number of block ids"}

// String returns the problem's name.
func (p Problem) String() string {
	if p < problems {
		return problemNames[p]
	}
	return "unknown"
}

// LineError is a malformed line. It quotes nothing of the line.
type LineError struct {
	Line    int // counts from 1
	Problem Problem
	Detail  string // which field, and what was expected
}

// Error names the line, the problem and what was expected.
func (e *LineError) Error() string {
	if e.Detail == "" {
		return fmt.Sprintf("workload: line %d: %v", e.Line, e.Problem)
	}
	return fmt.Sprintf("workload: line %d: %v: %s", e.Line, e.Problem, e.Detail)
}

// listed is how many malformed lines are kept with their numbers.
const listed = 20

func malformed(p Problem, detail string) *LineError {
	return &LineError{Problem: p, Detail: detail}
}

// Malformed is what was skipped while reading a trace.
type Malformed struct {
	Lines  int           // malformed lines in all
	Counts [problems]int // by Problem
	First  []LineError   // the first 20
}

func (m *Malformed) add(e LineError) {
	m.Lines++
	m.Counts[e.Problem]++
	if len(m.First) < listed {
		m.First = append(m.First, e)
	}
}
