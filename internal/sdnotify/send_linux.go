package sdnotify

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sendWait is how long Send waits for room in the receiver's queue, which holds
// net.unix.max_dgram_qlen datagrams (unix(7)): 10, or 512 where systemd has booted
// the machine. Its caller is handoverd's loop.
const sendWait = 100 * time.Millisecond

// Sender reports to one service manager. It is for one goroutine at a time, and
// owns one socket, which is not connected: a manager that has bound its path anew
// is found again.
type Sender struct {
	fd int
	to unix.SockaddrUnix
}

// NewSender prepares to send to socket: a path or, with a leading "@", an abstract
// name, as $NOTIFY_SOCKET gives it. It does not ask whether anybody is there.
func NewSender(socket string) (*Sender, error) {
	if !strings.HasPrefix(socket, "/") && !strings.HasPrefix(socket, "@") {
		return nil, fmt.Errorf("sdnotify: socket %q: neither a path nor an abstract name", socket)
	}
	// Blocking, for SO_SNDTIMEO: with O_NONBLOCK nothing would wait.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("sdnotify: %w", os.NewSyscallError("socket", err))
	}
	wait := unix.NsecToTimeval(sendWait.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("sdnotify: %w", os.NewSyscallError("setsockopt SO_SNDTIMEO", err))
	}
	return &Sender{fd: fd, to: unix.SockaddrUnix{Name: socket}}, nil
}

// Send sends state, KEY=VALUE lines of at most MaxDatagram bytes, as one datagram,
// and copies of the descriptors with it, which it borrows. It waits at most 0.1 s for
// room in the manager's queue; the error wraps EAGAIN then, and nothing was sent.
// That the manager has kept a descriptor is told to nobody (sd_notify(3), FDSTORE).
func (s *Sender) Send(state string, fds ...int) error {
	if len(state) > MaxDatagram {
		return fmt.Errorf("sdnotify: %w: %d bytes, more than %d", unix.EMSGSIZE, len(state), MaxDatagram)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		err := unix.Sendmsg(s.fd, []byte(state), oob, &s.to, unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) {
			if err != nil {
				return fmt.Errorf("sdnotify: %s: %w", s.to.Name, os.NewSyscallError("sendmsg", err))
			}
			return nil
		}
	}
}

// Close closes the socket.
func (s *Sender) Close() error { return os.NewSyscallError("close", unix.Close(s.fd)) }

// MonotonicUsec is CLOCK_MONOTONIC in microseconds, as MONOTONIC_USEC= of RELOADING=1
// wants it (sd_notify(3), systemd 253): taken when it is sent, which is after the
// reload was asked for.
func MonotonicUsec() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // it has no error on Linux (clock_gettime(2))
	}
	return uint64(ts.Nano()) / 1000
}
