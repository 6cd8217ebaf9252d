//go:build unix

package supervise

import (
	"os"
	"syscall"
)

// childAttr puts a child into a process group of its own, so that an interrupt
// typed at the terminal reaches the supervisor alone and children stop in order.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func stopSignal(p *os.Process) error { return p.Signal(syscall.SIGTERM) }
