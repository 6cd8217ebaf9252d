//go:build unix

package pair

import (
	"os/exec"
	"syscall"
)

// ownGroup keeps the terminal's interrupt away from the child: its parent tells it when to leave.
func ownGroup(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
