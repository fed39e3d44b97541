package shim

import "golang.org/x/sys/unix"

// Adopted is the Process of a program that another process has started: it runs
// already, so there is nothing to tell it and nothing to wait for (Result is
// [ErrAborted]). It is no child of the caller, who cannot reap it. Adopted takes
// pidfd, -1 for a process that has ended.
func Adopted(pid int, startTime uint64, pidfd int) *Process {
	if pidfd >= 0 {
		unix.CloseOnExec(pidfd)
	}
	return &Process{PID: pid, StartTime: startTime, pidfd: pidfd, control: control{fd: -1, closing: true}}
}
