// Package timed says how long an engine would take: cost models that turn a
// step's batch into virtual time, without llama.cpp, a clock or a machine.
//
// A [Time] is a whole number of picoseconds. All arithmetic on it is exact, so
// that a stretch of steps skipped in closed form ends at the same picosecond as
// the steps taken one by one.
//
// The package is pure: no goroutine, no wall clock, no global state.
package timed
