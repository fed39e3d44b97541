package keeper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// socketName is the keeper's socket in the runtime directory.
const socketName = "keeper.sock"

// Listen binds the keeper's socket in dir, which the caller has locked: one that
// another keeper has left is replaced. The caller owns the descriptor,
// close-on-exec and blocking, and hands it to the keeper at ListenFD.
func Listen(dir string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("keeper: %w", os.NewSyscallError("socket", err))
	}
	err = atPath(dir, func(path string) error {
		if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
			return os.NewSyscallError("unlink", err)
		}
		// bind(2) gives the file the mode of the socket's inode.
		if err := unix.Fchmod(fd, 0o600); err != nil {
			return os.NewSyscallError("fchmod", err)
		}
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			return os.NewSyscallError("bind", err)
		}
		return os.NewSyscallError("listen", unix.Listen(fd, 8))
	})
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("keeper: %s in %s: %w", socketName, dir, err)
	}
	return fd, nil
}

// atPath calls f with a path of the socket that fits into an address, however long
// that of the directory is (unix(7): 107 bytes).
func atPath(dir string, f func(path string) error) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", fd, socketName))
}

// Remove removes the socket of a keeper that has ended, and the lock file.
func Remove(dir string) error {
	for _, name := range []string{socketName, LockName} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("keeper: %w", err)
		}
	}
	return nil
}

// sendPacket sends one packet and borrows fds. On a full queue it waits until
// there is room, at most wait milliseconds, and so it does while the user has too
// many descriptors under way (ETOOMANYREFS, unix(7)), which the other end's
// reading ends.
func sendPacket(fd int, m message, fds []int, wait int) error {
	b, err := encode(m)
	if err != nil {
		return err
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	const pause = 5
	for {
		err = unix.Sendmsg(fd, b, oob, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case wait > 0 && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ETOOMANYREFS)):
			// SOCK_SEQPACKET is writable below half of its buffer, and ETOOMANYREFS
			// has no event: short pauses serve both.
			_, _ = unix.Poll(nil, pause)
			wait -= pause
			continue
		case err != nil:
			return fmt.Errorf("keeper: %s: %w", m.Verb, os.NewSyscallError("sendmsg", err))
		}
		return nil
	}
}
