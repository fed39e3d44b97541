package fdpass

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// portTries bounds how often another port is chosen when one that the kernel
// just gave out was taken before it could be bound for good.
const portTries = 16

// Bind makes a socket for a with the options o, bound and (but for datagram
// kinds) listening, close-on-exec, and non-blocking unless o says otherwise. The
// caller owns it.
//
// TCP sockets get SO_REUSEADDR, so that connections in TIME_WAIT do not block the
// address (socket(7)); UDP sockets do not, since there it lets another process
// take the address as well. IPv6 sockets get IPV6_V6ONLY set or cleared, never the
// system's default. Port 0 is replaced by a free number, which then stays: also
// after a shutdown by another holder the socket listens on it again.
//
// A UNIX path gets its mode from its first instant, then its owner and group, and
// a hard link beside it for Restore. A socket file that no process has bound is
// removed first; one that is in use, or a file that is no socket, is an error and
// left alone.
//
// Errors are *BindError; EADDRINUSE names the holders where /proc shows them.
func Bind(a Addr, o Options) (*Socket, error) {
	fail := func(err error) (*Socket, error) {
		e := &BindError{Op: "bind", Addr: a, Err: err}
		if errors.Is(err, unix.EADDRINUSE) {
			e.Owner = holders(a)
		}
		return nil, e
	}
	if err := o.check(); err != nil {
		return fail(err)
	}
	canonical, err := Canonical(a, o)
	if err != nil {
		return fail(err)
	}
	a = canonical
	var s *Socket
	if a.Kind.unix() {
		s, err = bindUnix(a, o)
	} else {
		s, err = bindInet(a, o)
	}
	if err != nil {
		return fail(err)
	}
	return s, nil
}

// newSocket makes an unbound socket.
func newSocket(family, typ int, o Options) (int, error) {
	typ |= unix.SOCK_CLOEXEC
	if o.nonblocking() {
		typ |= unix.SOCK_NONBLOCK
	}
	fd, err := unix.Socket(family, typ, 0)
	return fd, os.NewSyscallError("socket", err)
}

func socketType(k Kind) int {
	switch {
	case k == Unixpacket:
		return unix.SOCK_SEQPACKET
	case k.Datagram():
		return unix.SOCK_DGRAM
	}
	return unix.SOCK_STREAM
}

func bindInet(a Addr, o Options) (s *Socket, err error) {
	var fd int
	if a.Port == 0 {
		fd, a.Port, err = bindAnyPort(a, o)
	} else {
		fd, err = bindPort(a, o)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	if !a.Kind.Datagram() {
		if err := unix.Listen(fd, o.backlog()); err != nil {
			return nil, os.NewSyscallError("listen", err)
		}
	}
	ino, err := inode(fd)
	if err != nil {
		return nil, err
	}
	return &Socket{fd: fd, inode: ino, addr: a, opts: o}, nil
}

// bindAnyPort lets the kernel choose a port and binds that number on a second
// socket, since a socket that did not name its port loses it when it is
// disconnected (tcp_set_state and __udp_disconnect look for SOCK_BINDPORT_LOCK):
// one holder's shutdown(2) would move the listener to another port for ever.
func bindAnyPort(a Addr, o Options) (fd int, port uint16, err error) {
	for range portTries {
		fd, port, err = bindChosenPort(a, o)
		if !errors.Is(err, unix.EADDRINUSE) {
			return fd, port, err
		}
	}
	return -1, 0, fmt.Errorf("no free port in %d tries: %w", portTries, err)
}

// bindChosenPort holds the number with the first socket until the second has it:
// two sockets that do not listen yet and both have SO_REUSEADDR may share it.
func bindChosenPort(a Addr, o Options) (int, uint16, error) {
	first, err := openInet(a, o)
	if err != nil {
		return -1, 0, err
	}
	defer unix.Close(first)
	if err := setInt(first, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1, "SO_REUSEADDR"); err != nil {
		return -1, 0, err
	}
	if err := bindInetFD(first, a); err != nil {
		return -1, 0, err
	}
	if a.Port, err = boundPort(first); err != nil {
		return -1, 0, err
	}
	second, err := openInet(a, o)
	if err != nil {
		return -1, 0, err
	}
	err = setInt(second, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1, "SO_REUSEADDR")
	if err == nil {
		err = bindInetFD(second, a)
	}
	if err == nil && a.Kind.Datagram() {
		err = setInt(second, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0, "SO_REUSEADDR")
	}
	if err != nil {
		_ = unix.Close(second)
		return -1, 0, err
	}
	return second, a.Port, nil
}

func bindPort(a Addr, o Options) (int, error) {
	fd, err := openInet(a, o)
	if err != nil {
		return -1, err
	}
	if err := bindInetFD(fd, a); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openInet makes the socket of a with all that has to be set before bind(2).
func openInet(a Addr, o Options) (fd int, err error) {
	family := unix.AF_INET
	if a.ip().Is6() {
		family = unix.AF_INET6
	}
	fd, err = newSocket(family, socketType(a.Kind), o)
	if err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
			fd = -1
		}
	}()
	if !a.Kind.Datagram() {
		if err := setInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1, "SO_REUSEADDR"); err != nil {
			return fd, err
		}
	}
	if o.ReusePort {
		if err := setInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1, "SO_REUSEPORT"); err != nil {
			return fd, err
		}
	}
	if family == unix.AF_INET6 {
		v6only := 1
		if a.dual() || o.V6Only != nil && !*o.V6Only {
			v6only = 0
		}
		if err := setInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, v6only, "IPV6_V6ONLY"); err != nil {
			return fd, err
		}
	}
	return fd, nil
}

func bindInetFD(fd int, a Addr) error {
	sa, err := inetSockaddr(a)
	if err != nil {
		return err
	}
	return os.NewSyscallError("bind", unix.Bind(fd, sa))
}

func inetSockaddr(a Addr) (unix.Sockaddr, error) {
	ip := a.ip()
	if ip.Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port), Addr: ip.As4()}, nil
	}
	sa := &unix.SockaddrInet6{Port: int(a.Port), Addr: ip.As16()}
	if zone := ip.Zone(); zone != "" {
		index, err := zoneIndex(zone)
		if err != nil {
			return nil, err
		}
		sa.ZoneId = index
	}
	return sa, nil
}

// zoneIndex is the interface of a scoped address, by number or name.
func zoneIndex(zone string) (uint32, error) {
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	ifi, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, fmt.Errorf("interface %q of the address: %w", zone, err)
	}
	return uint32(ifi.Index), nil
}

func setInt(fd, level, option, value int, name string) error {
	if err := unix.SetsockoptInt(fd, level, option, value); err != nil {
		return fmt.Errorf("%s: %w", name, os.NewSyscallError("setsockopt", err))
	}
	return nil
}

func boundPort(fd int) (uint16, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return uint16(sa.Port), nil
	case *unix.SockaddrInet6:
		return uint16(sa.Port), nil
	}
	return 0, fmt.Errorf("getsockname: unexpected address %T", sa)
}

// inode is the number of the socket in sockfs.
func inode(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	return st.Ino, nil
}

// Close closes the descriptor. It never removes a path: the socket may live on
// in other processes. A second Close does nothing.
func (s *Socket) Close() error {
	if s.fd < 0 {
		return nil
	}
	fd := s.fd
	s.fd = -1
	// close(2): on Linux the descriptor is gone also after EINTR.
	if err := unix.Close(fd); err != nil && err != unix.EINTR {
		return s.fail("close", os.NewSyscallError("close", err))
	}
	return nil
}
