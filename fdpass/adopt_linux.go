package fdpass

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// Adopt makes a Socket of a descriptor that is bound already, as it comes from
// another holder. Its type, its name and whether it listens are compared with a
// and o; its options are not touched, but for close-on-exec. With port 0 the
// socket's port is taken. A filter of classic BPF is taken off (socket(7),
// SO_DETACH_FILTER): one that a stop left behind, whose supervisor was killed in the
// middle of it, would keep every new connection away.
//
// Adopt takes fd if it succeeds; on error fd stays the caller's. A TCP socket that
// does not listen is an error that wraps ErrShutDown as well, though listen(2) on
// fd revives it: the caller decides.
func Adopt(fd int, a Addr, o Options) (*Socket, error) {
	s, ok, err := adopt(fd, a, o)
	if err == nil && !ok {
		err = fmt.Errorf("descriptor %d does not listen: %w", fd, ErrShutDown)
	}
	if err != nil {
		return nil, &BindError{Op: "adopt", Addr: a, Err: err}
	}
	unix.CloseOnExec(fd)
	return s, nil
}

// AdoptDead is Adopt for a socket that was shut down, whether or not it was. There is no way back for a datagram
// socket or one in the abstract namespace, whose holders have it as it is.
func AdoptDead(fd int, a Addr, o Options) (*Socket, error) {
	s, _, err := adopt(fd, a, o)
	if err != nil {
		return nil, &BindError{Op: "adopt", Addr: a, Err: err}
	}
	unix.CloseOnExec(fd)
	return s, nil
}

// Replace binds a new socket in the place of fd, a UNIX socket that Adopt refuses since
// it was shut down, as [Socket.Rebind] does for one that was adopted before. fd stays
// the caller's.
func Replace(fd int, a Addr, o Options) (*Socket, error) {
	s, _, err := adopt(fd, a, o)
	if err == nil && !s.addr.onDisk() {
		err = fmt.Errorf("descriptor %d has no path: %w", fd, ErrShutDown)
	}
	if err != nil {
		return nil, &BindError{Op: "adopt", Addr: a, Err: err}
	}
	return s.Rebind()
}

// adopt reports also whether the socket listens.
func adopt(fd int, a Addr, o Options) (_ *Socket, ok bool, err error) {
	if err := o.check(); err != nil {
		return nil, false, err
	}
	if a, err = Canonical(a, o); err != nil {
		return nil, false, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, false, fmt.Errorf("SO_DETACH_FILTER of descriptor %d: %w", fd, os.NewSyscallError("setsockopt", err))
	}
	typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return nil, false, fmt.Errorf("SO_TYPE of descriptor %d: %w", fd, os.NewSyscallError("getsockopt", err))
	}
	if want := socketType(a.Kind); typ != want {
		return nil, false, fmt.Errorf("descriptor %d is a socket of type %d, not %d", fd, typ, want)
	}
	if err := sameProtocol(fd, a); err != nil {
		return nil, false, err
	}
	if a.Kind.inet() && a.Port == 0 {
		if a.Port, err = boundPort(fd); err != nil {
			return nil, false, err
		}
	}
	if err := sameName(fd, a); err != nil {
		return nil, false, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	if ok, err = listening(fd, a.Kind); err != nil {
		return nil, false, err
	}
	s := &Socket{fd: fd, addr: a, opts: o}
	if s.inode, err = inode(fd); err != nil {
		return nil, false, err
	}
	if a.onDisk() {
		if err := s.findPath(); err != nil {
			return nil, false, err
		}
	}
	return s, ok, nil
}

// sameProtocol compares what SO_TYPE and the name do not tell: MPTCP or SCTP from
// TCP, and dual-stack from v6only, which changes the key.
func sameProtocol(fd int, a Addr) error {
	if a.Kind.unix() {
		return nil
	}
	proto, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		return fmt.Errorf("SO_PROTOCOL: %w", os.NewSyscallError("getsockopt", err))
	}
	want := unix.IPPROTO_TCP
	if a.Kind.Datagram() {
		want = unix.IPPROTO_UDP
	}
	if proto != want {
		return fmt.Errorf("descriptor %d is a socket of protocol %d, not %d", fd, proto, want)
	}
	if a.ip() != netip.IPv6Unspecified() {
		return nil
	}
	v6only, err := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
	if err != nil {
		return fmt.Errorf("IPV6_V6ONLY of descriptor %d: %w", fd, os.NewSyscallError("getsockopt", err))
	}
	if (v6only == 0) != a.dual() {
		return fmt.Errorf("descriptor %d has IPV6_V6ONLY %d", fd, v6only)
	}
	return nil
}

// findPath learns which file the adopted socket is bound to. The kernel tells by
// SIOCUNIXFILE (Linux 4.11), which needs CAP_NET_ADMIN; without it the hard link
// is believed, whose name no other program has, and else the path. If both are
// gone the socket has no file that could be told from a foreign one.
func (s *Socket) findPath() error {
	d, err := lockDir(path.Dir(s.addr.Path))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.close()
	link := path.Base(linkPath(s.addr.Path))
	id, err := boundFile(s.fd)
	for _, name := range []string{link, path.Base(s.addr.Path)} {
		if err == nil {
			break
		}
		var st unix.Stat_t
		if st, err = d.stat(name); err == nil && st.Mode&unix.S_IFMT != unix.S_IFSOCK {
			err = unix.ENOTSOCK
		}
		id = pathID{dev: st.Dev, ino: st.Ino}
	}
	if err != nil {
		return nil
	}
	if id.linked, err = d.own(link, id); err != nil {
		return err
	}
	s.path = id
	return nil
}

// boundFile asks the kernel for the file that a UNIX socket is bound to.
func boundFile(fd int) (pathID, error) {
	const siocUnixFile = 0x89e0 // SIOCUNIXFILE, include/uapi/linux/un.h
	file, err := unix.IoctlRetInt(fd, siocUnixFile)
	if err != nil {
		return pathID{}, os.NewSyscallError("ioctl", err)
	}
	defer unix.Close(file)
	var st unix.Stat_t
	if err := unix.Fstat(file, &st); err != nil {
		return pathID{}, os.NewSyscallError("fstat", err)
	}
	return pathID{dev: st.Dev, ino: st.Ino}, nil
}
