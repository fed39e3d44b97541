package supervisor

import "golang.org/x/sys/unix"

// seekData is the whence of lseek(2) that finds data after a hole.
const seekData = unix.SEEK_DATA

// fetchFD copies a descriptor of another process, close-on-exec (pidfd_getfd(2),
// Linux 5.6).
func fetchFD(pidfd, fd int) (int, error) { return unix.PidfdGetfd(pidfd, fd, 0) }
