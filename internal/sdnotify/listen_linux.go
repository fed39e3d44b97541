package sdnotify

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Socket is the receiving end, one bound datagram socket. Safe for concurrent
// use. Close unblocks a waiting Recv.
type Socket struct {
	path string
	file *os.File
	raw  syscall.RawConn

	recv sync.Mutex // guards buf and oob
	buf  []byte
	oob  []byte
}

// Listen binds path, or the abstract name after a leading "@". The file has
// mode (less the umask) from its first instant and then belongs to uid and gid
// (-1: unchanged). A socket file that is there already is replaced: the caller
// holds the lock on the directory. Close does not remove the file.
func Listen(path string, mode os.FileMode, uid, gid int) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("sdnotify: listen %s: %w", path, os.NewSyscallError("socket", err))
	}
	if err := bind(fd, path, mode, uid, gid); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("sdnotify: listen %s: %w", path, err)
	}
	return NewSocket(fd, path)
}

func bind(fd int, path string, mode os.FileMode, uid, gid int) error {
	abstract := path != "" && path[0] == '@'
	if !abstract {
		if fi, err := os.Lstat(path); err == nil && fi.Mode().Type() == os.ModeSocket {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
		// bind(2) gives the file the mode of the socket's inode, so no one
		// can connect between bind and a later chmod.
		if err := unix.Fchmod(fd, uint32(mode.Perm())); err != nil {
			return os.NewSyscallError("fchmod", err)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if !abstract && (uid >= 0 || gid >= 0) {
		if err := os.Lchown(path, uid, gid); err != nil {
			return errors.Join(err, os.Remove(path))
		}
	}
	return nil
}

// NewSocket takes fd, a datagram socket bound to path earlier, by Listen in
// this process or in another. It closes fd when it fails.
func NewSocket(fd int, path string) (*Socket, error) {
	s, err := newSocket(fd, path)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("sdnotify: %s: %w", path, err)
	}
	return s, nil
}

func newSocket(fd int, path string) (*Socket, error) {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	// The kernel, not the sender, says who sent a message (unix(7)).
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return nil, os.NewSyscallError("setsockopt SO_PASSCRED", err)
	}
	file := os.NewFile(uintptr(fd), path)
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &Socket{
		path: path,
		file: file,
		raw:  raw,
		buf:  make([]byte, MaxDatagram+1),
		// 253 descriptors are SCM_MAX_FD of the kernel.
		oob: make([]byte, unix.CmsgSpace(unix.SizeofUcred)+unix.CmsgSpace(253*4)),
	}, nil
}

// Path is what Listen was given: the value for $NOTIFY_SOCKET.
func (s *Socket) Path() string { return s.path }

// SyscallConn gives access to the descriptor, for duplicating it.
func (s *Socket) SyscallConn() (syscall.RawConn, error) { return s.raw, nil }

// Recv waits for one message. cred is its sender, pid 0 if that lives in a
// foreign pid namespace. Descriptors are never kept: they are closed here,
// which is the answer that the sender of BARRIER=1 waits for.
//
// After [ErrEmpty], [ErrNUL] and [ErrTruncated] (the sender's fault; cred is
// valid) the caller goes on; every other error is final. Close gives
// [os.ErrClosed].
func (s *Socket) Recv() (m Message, cred unix.Ucred, err error) { return s.receive(0) }

// Peek is Recv, and leaves the message where it is: for a supervisor that is to have
// written down what it said before it is gone. Drop takes it away, also after one of the sender's faults. The
// sender of BARRIER=1 has its answer then.
func (s *Socket) Peek() (m Message, cred unix.Ucred, err error) { return s.receive(unix.MSG_PEEK) }

// Drop takes away the message that Peek has shown, without waiting.
func (s *Socket) Drop() {
	s.recv.Lock()
	defer s.recv.Unlock()
	_ = s.raw.Control(func(fd uintptr) { // it fails only after Close
		_, noob, _, _, err := unix.Recvmsg(int(fd), s.buf, s.oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		if err == nil {
			_, _, _ = control(s.oob[:noob])
		}
	})
}

func (s *Socket) receive(peek int) (m Message, cred unix.Ucred, err error) {
	s.recv.Lock()
	defer s.recv.Unlock()
	var n, noob, flags int
	cerr := s.raw.Read(func(fd uintptr) bool {
		for {
			n, noob, flags, _, err = unix.Recvmsg(int(fd), s.buf, s.oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT|peek)
			if !errors.Is(err, unix.EINTR) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	})
	if cerr != nil {
		// Package os hands out an internal error here; without deadlines
		// only Close causes it.
		return Message{}, cred, fmt.Errorf("sdnotify: receive: %w (%w)", os.ErrClosed, cerr)
	}
	if err != nil {
		return Message{}, cred, fmt.Errorf("sdnotify: receive: %w", os.NewSyscallError("recvmsg", err))
	}
	cred, nfds, err := control(s.oob[:noob])
	if err != nil {
		return Message{}, cred, fmt.Errorf("sdnotify: receive: %w", os.NewSyscallError("recvmsg", err))
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return Message{}, cred, ErrTruncated
	}
	m, err = Parse(s.buf[:n])
	m.Barrier = m.Barrier && nfds == 1
	return m, cred, err
}

// control reads the control messages and closes every descriptor in them; n
// is how many there were.
func control(oob []byte) (cred unix.Ucred, n int, err error) {
	if len(oob) == 0 {
		return cred, 0, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return cred, 0, err
	}
	for _, m := range msgs {
		if m.Header.Level != unix.SOL_SOCKET {
			continue
		}
		switch m.Header.Type {
		case unix.SCM_RIGHTS:
			fds, err := unix.ParseUnixRights(&m)
			if err != nil {
				return cred, n, err
			}
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
			n += len(fds)
		case unix.SCM_CREDENTIALS:
			c, err := unix.ParseUnixCredentials(&m)
			if err != nil {
				return cred, n, err
			}
			cred = *c
		}
	}
	return cred, n, nil
}

// Close closes the socket. The file stays: whoever removes the directory's
// contents removes it too. Safe twice: later calls return [os.ErrClosed].
func (s *Socket) Close() error { return s.file.Close() }
