// Package archtest holds the project to its architecture. It has no code but
// tests: they read every package's sources, for all platforms at once, and
// compare what they find with the tables in rules_test.go, where each rule
// stands with its reason.
//
// A new package fails the tests until it has a row there, which is the moment
// to decide what it may know.
package archtest
