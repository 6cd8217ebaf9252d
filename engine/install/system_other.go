//go:build !linux

package install

// CheckSystem reports a missing system library. The bindings bring libffi with
// them here, so there is nothing to check.
func CheckSystem() error { return nil }
