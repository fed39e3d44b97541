package fdpass

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dup returns a file called name with a duplicate of c's descriptor; the caller
// owns it, and c stays as it was. It is the only way from a connection to a file
// that leaves the shared O_NONBLOCK alone: the File method of a net type gives a
// file whose Fd method clears the flag for every holder (golang/go#29277).
//
// The file of a listening or unconnected datagram socket is for holding and
// passing on; see the package comment.
func Dup(c syscall.Conn, name string) (*os.File, error) {
	fd, err := dup(c)
	if err != nil {
		return nil, fmt.Errorf("fdpass: duplicate %s: %w", name, err)
	}
	f, err := newFile(fd, name)
	if err != nil {
		return nil, fmt.Errorf("fdpass: duplicate %s: %w", name, err)
	}
	return f, nil
}

func dup(c syscall.Conn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var dupErr error
	err = raw.Control(func(from uintptr) {
		fd, dupErr = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err != nil {
		return -1, err
	}
	return fd, os.NewSyscallError("fcntl", dupErr)
}
