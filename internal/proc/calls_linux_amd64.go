package proc

import "golang.org/x/sys/unix"

// The system calls in which a program waits for connections.
var (
	acceptCalls = []int{unix.SYS_ACCEPT4, unix.SYS_ACCEPT}
	pollCalls   = []int{unix.SYS_POLL, unix.SYS_PPOLL}
	selectCalls = []int{unix.SYS_SELECT, unix.SYS_PSELECT6}
)
