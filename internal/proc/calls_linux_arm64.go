package proc

import "golang.org/x/sys/unix"

// The system calls in which a program waits for connections. poll and select do not exist on arm64: libc calls
// ppoll and pselect6 for them.
var (
	acceptCalls = []int{unix.SYS_ACCEPT4, unix.SYS_ACCEPT}
	pollCalls   = []int{unix.SYS_PPOLL}
	selectCalls = []int{unix.SYS_PSELECT6}
)
