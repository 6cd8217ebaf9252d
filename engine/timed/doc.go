// Package timed says how long an engine would take: cost models that turn a
// step's batch into virtual time, without llama.cpp, a clock or a machine.
//
// A [Model] is made in one of five ways: [New] estimates it from a description of
// a model and of hardware, [NewFitted] and [NewTable] take what was measured (by
// `tandem profile`), [NewPolynomial] and [NewFixed] what is known. A [Spec] is any
// of them in YAML, which [Load] reads; [Models], [Hardwares] and [Presets] list what
// is built in, with a source for each number. docs/timing.md has the formulas.
//
// A [Time] is a whole number of picoseconds. A step of decodes only is a curve over
// the batch's context, linear in pieces and whole in every coefficient, so that
// [Model.Stretch], [Model.StepsWithin] and [Model.StretchITL] equal the steps taken
// one by one exactly. Floating point, where there is some, is the same on every
// machine.
//
// The package is pure: no goroutine, no wall clock, no global state.
package timed
