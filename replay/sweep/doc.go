// Package sweep runs a replay over a grid of settings: all cells of the grid on
// all cores, resumable, with results in the order of the grid whatever finished
// first; and searches for the goodput of each cell.
//
// It knows nothing of what a cell runs: the host gives it a function.
package sweep
