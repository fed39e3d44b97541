package proc

import "golang.org/x/sys/unix"

// Exit tells how a child ended.
type Exit struct {
	PID    int
	Status unix.WaitStatus
	// Err is nil, or says why Status is not known: ECHILD, if somebody else has reaped the child.
	Err error
}
