//go:build !unix

package soak

import (
	"errors"
	"os"
	"syscall"
)

const drainSignal = syscall.SIGTERM

func makePipe(string) (*os.File, error) {
	return nil, errors.New("soak: this system has no named pipes and no signals to end workers with; run it on a Unix")
}
