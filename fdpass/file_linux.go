package fdpass

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// newFile makes a file of fd, which it takes: on error fd is closed. Sockets that
// are only held stay out of the runtime's poller (see the package comment).
func newFile(fd int, name string) (*os.File, error) {
	if !heldOnly(fd) {
		return os.NewFile(uintptr(fd), name), nil
	}
	// os.NewFile registers what has O_NONBLOCK at that moment. The flag must not
	// be cleared, not for an instant, so the file is made around a blocking
	// descriptor, and the socket is then put in that one's place by dup3(2).
	place, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("eventfd", err)
	}
	f := os.NewFile(uintptr(place), name)
	err = unix.Dup3(fd, place, unix.O_CLOEXEC)
	_ = unix.Close(fd)
	if err != nil {
		_ = f.Close()
		return nil, os.NewSyscallError("dup3", err)
	}
	return f, nil
}

// heldOnly reports whether fd is a non-blocking socket that listens, or one for
// datagrams that has no peer.
func heldOnly(fd int) bool {
	typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return false
	}
	if typ == unix.SOCK_DGRAM {
		_, err := unix.Getpeername(fd)
		return errors.Is(err, unix.ENOTCONN)
	}
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && n == 1
}
