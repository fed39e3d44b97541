package fdpass

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Send sends msg, which must not be empty, and the descriptors of files, at most
// MaxFiles, over c. It borrows files and blocks while c's buffer is full, until
// c's write deadline. On a stream it sends all of msg; the descriptors come with
// its first byte.
//
// ETOOMANYREFS means that this user has more descriptors under way, in all UNIX
// sockets together, than RLIMIT_NOFILE allows (unix(7)).
func Send(c *net.UnixConn, msg []byte, files []*os.File) error {
	if err := checkSend(len(msg), len(files)); err != nil {
		return err
	}
	fds := make([]int, 0, len(files))
	for _, f := range files {
		fd, err := number(f)
		if err != nil {
			return fmt.Errorf("fdpass: send %s: %w", f.Name(), err)
		}
		fds = append(fds, fd)
	}
	n, _, err := c.WriteMsgUnix(msg, rights(fds), nil)
	// The finalizer of a file closes its descriptor.
	runtime.KeepAlive(files)
	if err == nil && n < len(msg) {
		_, err = c.Write(msg[n:])
	}
	if err != nil {
		return fmt.Errorf("fdpass: send %d descriptors: %w", len(fds), err)
	}
	return nil
}

// SendFDs is Send on raw descriptors: fd is a UNIX socket, and both it and fds are
// borrowed. On a non-blocking fd a full buffer is EAGAIN; then nothing was sent,
// or, on a stream, a part of msg with all descriptors, which the error says. No
// SIGPIPE is raised.
func SendFDs(fd int, msg []byte, fds []int) error {
	if err := checkSend(len(msg), len(fds)); err != nil {
		return err
	}
	oob := rights(fds)
	for sent := 0; sent < len(msg); {
		n, err := unix.SendmsgN(fd, msg[sent:], oob, nil, unix.MSG_NOSIGNAL)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil && sent > 0:
			return fmt.Errorf("fdpass: send: %d of %d bytes went out, with the descriptors: %w",
				sent, len(msg), os.NewSyscallError("sendmsg", err))
		case err != nil:
			return fmt.Errorf("fdpass: send %d descriptors: %w", len(fds), os.NewSyscallError("sendmsg", err))
		}
		sent += n
		oob = nil
	}
	return nil
}

func checkSend(bytes, fds int) error {
	switch {
	case bytes == 0:
		// On a stream an empty message sends nothing, not even the descriptors,
		// and reports success; elsewhere the receiver takes it for the end.
		return fmt.Errorf("fdpass: send: the message is empty: %w", os.NewSyscallError("sendmsg", unix.EINVAL))
	case fds > MaxFiles:
		return fmt.Errorf("fdpass: send: %d descriptors in one message, at most %d fit: %w",
			fds, MaxFiles, os.NewSyscallError("sendmsg", unix.EINVAL))
	}
	return nil
}

func rights(fds []int) []byte {
	if len(fds) == 0 {
		return nil
	}
	return unix.UnixRights(fds...)
}

// number is the descriptor of f without its Fd method, which may make the shared
// description blocking.
func number(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	n := -1
	if err := raw.Control(func(fd uintptr) { n = int(fd) }); err != nil {
		// It fails only after Close, and with an error of an internal package.
		return -1, os.ErrClosed
	}
	return n, nil
}
