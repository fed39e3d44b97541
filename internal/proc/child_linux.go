package proc

import "golang.org/x/sys/unix"

// IsChild reports whether pid is a child of this process that nobody has reaped yet: it lives, or is a zombie
// (waitid(2): ECHILD for any other).
func IsChild(pid int) bool {
	_, err := waitid(unix.P_PID, pid, unix.WNOWAIT)
	return err == nil
}
