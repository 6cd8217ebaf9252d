//go:build unix

package model

import (
	"fmt"
	"os"
	"syscall"
)

// fileIdentity tells files apart that share a path, a size and a time.
func fileIdentity(info os.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprint(st.Dev, st.Ino)
}
