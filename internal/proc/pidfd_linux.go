package proc

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenPidfd returns a close-on-exec descriptor of the process (pidfd_open(2), Linux 5.3), owned by the caller. It
// becomes readable when the process ends. The number may have been used again before the call: compare StartTime
// after it. ESRCH says that there is no such process; a zombie can be opened.
func OpenPidfd(pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, fmt.Errorf("process %d: %w", pid, os.NewSyscallError("pidfd_open", err))
	}
	return fd, nil
}

// SignalPidfd sends sig to the process of a pidfd, which it borrows (pidfd_send_signal(2), Linux 5.1). ESRCH says
// that the process has been reaped; a zombie takes a signal without an error.
func SignalPidfd(fd int, sig unix.Signal) error {
	return os.NewSyscallError("pidfd_send_signal", unix.PidfdSendSignal(fd, sig, nil, 0))
}
