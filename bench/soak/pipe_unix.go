//go:build unix

package soak

import (
	"fmt"
	"os"
	"syscall"
)

const drainSignal = syscall.SIGTERM

// makePipe makes a named pipe and opens it. Reading waits for writers, who come and go.
func makePipe(path string) (*os.File, error) {
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("soak: make a pipe at %s: %w", path, err)
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}
