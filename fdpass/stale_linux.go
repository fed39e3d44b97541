package fdpass

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// removeStale makes room for name. It removes a socket file that no socket is
// bound to, and nothing else.
func (d lockedDir) removeStale(name string) error {
	st, err := d.stat(name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("the path exists and is %s, not a socket: it was left alone: %w",
			fileType(st.Mode), os.NewSyscallError("bind", unix.EADDRINUSE))
	}
	stale, err := d.stale(name)
	if err != nil {
		return err
	}
	if !stale {
		return os.NewSyscallError("bind", unix.EADDRINUSE)
	}
	return d.unlink(name)
}

// removeStaleLink makes room for the hard link and reports whether its name is
// free: a foreign file there is left, and the socket does without a link.
func (d lockedDir) removeStaleLink(link string) (bool, error) {
	st, err := d.stat(link)
	if errors.Is(err, unix.ENOENT) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return false, nil
	}
	stale, err := d.stale(link)
	if err != nil {
		return false, err
	}
	if !stale {
		// A program serves behind a path that was removed: to bind a new socket
		// there would leave two, and clients of only one.
		return false, fmt.Errorf("%s beside the path is in use: %w", link, os.NewSyscallError("bind", unix.EADDRINUSE))
	}
	return true, d.unlink(link)
}

// RemoveStale removes the path of a UNIX socket, and the hard link beside it, where no socket
// is bound to them any more: who held it last has ended without Unlink. It reports whether
// there was something to remove. What is in use, or is no socket, is left alone, with an
// error that wraps EADDRINUSE. For other addresses, and where nothing is, it does nothing.
func RemoveStale(a Addr) (removed bool, err error) {
	if !a.onDisk() {
		return false, nil
	}
	fail := func(err error) error { return &BindError{Op: "remove", Addr: a, Err: err} }
	d, err := lockDir(path.Dir(a.Path))
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fail(err)
	}
	defer d.close()
	name, link := path.Base(a.Path), path.Base(linkPath(a.Path))
	if !d.exists(name) && !d.exists(link) {
		return false, nil
	}
	if err := d.removeStale(name); err != nil {
		return false, fail(err)
	}
	if _, err := d.removeStaleLink(link); err != nil {
		return false, fail(err)
	}
	return true, nil
}

func (d lockedDir) exists(name string) bool {
	_, err := d.stat(name)
	return !errors.Is(err, unix.ENOENT)
}

// stale reports whether no socket is bound to the socket file name. It connects
// with a datagram socket, which no server notices: a bound stream or seqpacket
// socket is refused for its type (EPROTOTYPE), a datagram socket is only named as
// the peer, and a file without a socket gives ECONNREFUSED before the type is
// looked at (unix_find_bsd, net/unix/af_unix.c). So a socket that is bound and
// does not listen yet is not taken for stale.
func (d lockedDir) stale(name string) (bool, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	// Through the descriptor of the directory the name always fits sun_path,
	// also that of the hard link.
	sa := &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.fd, name)}
	err = unix.Connect(fd, sa)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return true, nil
	case err == nil, errors.Is(err, unix.EPROTOTYPE), errors.Is(err, unix.EPERM):
		// EPERM: a datagram socket that is connected to another one.
		return false, nil
	}
	return false, fmt.Errorf("is %s in use: %w", name, os.NewSyscallError("connect", err))
}

func fileType(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "a regular file"
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFLNK:
		return "a symbolic link"
	case unix.S_IFIFO:
		return "a FIFO"
	}
	return "a device"
}
