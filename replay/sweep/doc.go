// Package sweep runs a replay over a grid of settings: all cells of the grid on
// all cores, resumable, with results in the order of the grid whatever finished
// first; and searches for the goodput of each cell.
//
//	counts, err := sweep.ParseAxis("pools.prefill.count:pools.decode.count=8") // 1:7, 2:6, … 7:1
//	s := sweep.Sweep{Base: doc, Axes: []sweep.Axis{counts}, Run: run}
//	results, err := s.Do(ctx)
//	err = results.CSV(w)
//
// It knows nothing of what a cell runs: the host gives it a function, and a
// configuration as a YAML or JSON decoder makes it of a document.
//
// Results do not depend on how many cells run at once. A [Store] keeps every
// run that finished in a file, under a digest of all that it depends on, so that
// a sweep that was interrupted, or is made again with more values, runs only what
// is missing.
package sweep
