//go:build !amd64 && !arm64

package proc

import "golang.org/x/sys/unix"

// The system calls in which a program waits for connections, as far as every architecture has them.
var (
	acceptCalls = []int{unix.SYS_ACCEPT4}
	pollCalls   = []int{unix.SYS_PPOLL}
	selectCalls = []int{unix.SYS_PSELECT6}
)
