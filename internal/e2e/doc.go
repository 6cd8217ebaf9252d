// Package e2e tests Tandem as its users meet it: it builds the program, starts
// `tandem up` and its processes, asks over HTTP, kills processes, and reads the
// lifecycle events, metrics and state dumps they leave. It has no code of its own
// outside tests.
//
// The tests take the small models of package model/tiny, real llama.cpp, real
// sockets and real signals. None depends on how fast the machine is: they wait
// for events, with limits that only a hung process reaches.
package e2e
