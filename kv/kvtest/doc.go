// Package kvtest checks that a kv.Manager keeps the promises of package kv. Run
// is the whole suite: random operations beside a reference model that is slow and
// obviously correct, the behaviours that the contract names, and that steady-state
// operations allocate nothing. Script runs the scenarios of a testdata directory.
//
// A failing random run prints the seed that reproduces it: go test -seed N.
package kvtest
