// Package bench is how Tandem measures itself: things run in turn, A B A B …,
// and reports of medians, spread and ratios that can be read by people and by
// programs.
//
// The machines are shared and their speed drifts, so a rate alone says little.
// [Alternate] runs two sides turn by turn, after turns that do not count, and
// each figure is compared within its turn: the ratio of a figure has as many
// values as there were turns, and its median is what a [Bar] judges. A [Report]
// collects [Result] values with the [Machine] they were measured on; the names of
// its JSON fields are stable. A run that was interrupted still has a report, of
// the turns that were completed.
//
// The packages below measure one thing each: bench/serve an HTTP endpoint,
// bench/lane the data plane, bench/move the state of a model. docs/bench.md
// explains every figure to users.
package bench
