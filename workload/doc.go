// Package workload says what arrives at a fleet and when: requests as a trace
// recorded them, or as a generator draws them.
//
// Everything is a Source, which hands out one Request at a time in order of
// arrival. Read makes one from a trace, New one from a Spec, which has a text
// form for flags:
//
//	poisson rate=40 input=512 output=normal:128:64:1:256 requests=100000
//	closed sessions=64 turns=uniform:1:8 think=exponential:5 input=300 output=200 requests=10000
//
// Speed and Cut wrap a source into a faster or a shorter one. The package
// knows lengths, times and which prompts begin alike, never a token: block ids
// (Request.Hashes) say what two prompts share.
//
// It does not open files and has no clock and no randomness of its own: the
// same input and seed give the same requests, and memory is bounded by the
// longest line and the sessions that are alive, never by the length of a trace.
package workload
