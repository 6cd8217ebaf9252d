//go:build !unix

package supervise

import (
	"os"
	"syscall"
)

func childAttr() *syscall.SysProcAttr { return nil }

func stopSignal(p *os.Process) error { return p.Kill() }
