package fdpass

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Listening reports whether the socket still does what it was bound for.
//
// Any holder can undo that for all: shutdown(2) and connect(2) with AF_UNSPEC end
// the listening of a TCP socket (SO_ACCEPTCONN tells); shutdown ends that of a
// UNIX listener, whose SO_ACCEPTCONN stays 1 (poll(2) tells: POLLRDHUP); a
// datagram socket can be shut down, or connected to one peer.
func (s *Socket) Listening() (bool, error) {
	if err := s.open(); err != nil {
		return false, s.fail("listen", err)
	}
	ok, err := listening(s.fd, s.addr.Kind)
	return ok, s.fail("listen", err)
}

func listening(fd int, k Kind) (bool, error) {
	down, err := shutDown(fd)
	if err != nil || down && (k.unix() || k.Datagram()) {
		return false, err
	}
	if !k.Datagram() {
		n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		return n == 1, os.NewSyscallError("getsockopt", err)
	}
	_, err = unix.Getpeername(fd)
	if errors.Is(err, unix.ENOTCONN) {
		return true, nil
	}
	return false, os.NewSyscallError("getpeername", err)
}

// shutDown reports whether the receiving side was shut down.
func shutDown(fd int) (bool, error) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	for {
		_, err := unix.Poll(p, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP) != 0, os.NewSyscallError("poll", err)
	}
}

// Relisten gives the socket its configured backlog again, which any holder's
// listen(2) sets for all, and revives what can be revived: a TCP listener that
// was shut down or disconnected, a datagram socket that was connected. Clients
// that were queued when it was shut down are lost. A UNIX or datagram socket that
// was shut down stays dead: the error wraps ErrShutDown.
func (s *Socket) Relisten() error { return s.fail("listen", s.relisten()) }

func (s *Socket) relisten() error {
	if err := s.open(); err != nil {
		return err
	}
	k := s.addr.Kind
	if k.unix() || k.Datagram() {
		down, err := shutDown(s.fd)
		if err != nil {
			return err
		}
		if down {
			return ErrShutDown
		}
	}
	if k.Datagram() {
		ok, err := listening(s.fd, k)
		if ok || err != nil {
			return err
		}
		return s.disconnect()
	}
	return listenAgain(s.fd, s.addr, s.opts.backlog())
}

// disconnect undoes a connect(2) of a datagram socket.
func (s *Socket) disconnect() error {
	// x/sys/unix has no sockaddr for AF_UNSPEC; 16 zero bytes are one.
	if err := connectUnspec(s.fd); err != nil {
		return err
	}
	return sameName(s.fd, s.addr)
}

func listenAgain(fd int, a Addr, backlog int) error {
	if err := unix.Listen(fd, backlog); err != nil {
		return os.NewSyscallError("listen", err)
	}
	return sameName(fd, a)
}

// sameName checks that the socket is bound where it is thought to be.
func sameName(fd int, a Addr) error {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	var ok bool
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		ok = a.ip().Is4() && sa.Addr == a.ip().As4() && sa.Port == int(a.Port)
	case *unix.SockaddrInet6:
		ok = a.ip().Is6() && sa.Addr == a.ip().As16() && sa.Port == int(a.Port)
	case *unix.SockaddrUnix:
		ok = a.Kind.unix() && sa.Name == a.Path
	}
	if !ok {
		return fmt.Errorf("the socket is bound to %s", sockaddrString(sa))
	}
	return nil
}

// Nonblocking reports whether O_NONBLOCK is set on the shared description.
func (s *Socket) Nonblocking() (bool, error) {
	if err := s.open(); err != nil {
		return false, s.fail("nonblock", err)
	}
	flags, err := unix.FcntlInt(uintptr(s.fd), unix.F_GETFL, 0)
	return flags&unix.O_NONBLOCK != 0, s.fail("nonblock", os.NewSyscallError("fcntl", err))
}

// SetNonblocking sets O_NONBLOCK again after another holder cleared it. With the
// option nonblocking = false it does nothing: a holder that set the flag for
// itself would hang if it were cleared under it.
func (s *Socket) SetNonblocking() error {
	if err := s.open(); err != nil {
		return s.fail("nonblock", err)
	}
	if !s.opts.nonblocking() {
		return nil
	}
	return s.fail("nonblock", os.NewSyscallError("fcntl", unix.SetNonblock(s.fd, true)))
}
