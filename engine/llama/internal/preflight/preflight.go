// Package preflight stops the process with one clear line when libffi is
// missing.
//
// The package that calls C functions, jupiterrider/ffi, opens libffi while it is
// initialized and panics when it cannot, before any code of this module could
// say what to do. Package initialization follows the import path among packages
// whose imports are ready (Go specification, "Program initialization"). This
// package imports nothing but syscall, so its turn comes before the packages
// that ffi waits for. A test of engine/llama checks the order.
//
// It only judges where it knows how libraries are found: on Linux with glibc,
// whose loader looks into LD_LIBRARY_PATH, its cache, and the system's library
// directories. Elsewhere, and when in doubt, it does nothing.
package preflight
