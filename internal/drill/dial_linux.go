package drill

import (
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// bindWithoutPort leaves the choice of the port to connect, so that one port serves many pairs of addresses
// (IP_BIND_ADDRESS_NO_PORT, Linux 4.2, ip(7)).
func bindWithoutPort(fd int) error {
	return os.NewSyscallError("setsockopt IP_BIND_ADDRESS_NO_PORT",
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1))
}

// dialUnix connects with a blocking socket. A non-blocking one fails with EAGAIN when the backlog is full, as no other
// client does that waits (unix(7)), and polling cannot wait for room there; SO_SNDTIMEO bounds the wait (socket(7)).
func dialUnix(path string, deadline time.Time) (net.Conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := connectUnix(fd, path, deadline); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("unix %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("unix %s: %w", path, err)
	}
	return c, nil
}

func connectUnix(fd int, path string, deadline time.Time) error {
	// A zero SO_SNDTIMEO is no limit, hence at least one microsecond.
	left := unix.NsecToTimeval(int64(max(time.Until(deadline), time.Microsecond)))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &left); err != nil {
		return os.NewSyscallError("setsockopt SO_SNDTIMEO", err)
	}
	for {
		err := unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		switch err {
		case nil:
			return nil
		case unix.EINTR:
			// connect of a UNIX socket is not begun when it was interrupted: it is the same attempt that goes on.
		case unix.EAGAIN:
			return os.NewSyscallError("connect", unix.ETIMEDOUT)
		default:
			return os.NewSyscallError("connect", err)
		}
	}
}
