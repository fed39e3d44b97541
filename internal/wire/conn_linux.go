package wire

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Conn is one end of the connection. Safe for concurrent use; packets sent at
// the same time keep whole. Close unblocks a waiting Recv.
type Conn struct {
	// An *os.File rather than a *net.UnixConn: package net takes a packet of
	// zero bytes for the end, waits when the peer's buffer is full, and works
	// on a duplicate of the descriptor.
	file *os.File
	raw  syscall.RawConn

	recv sync.Mutex // held by the one reader; guards buf and oob
	buf  []byte
	oob  []byte
}

// NewConn takes fd, one end of a SOCK_SEQPACKET pair: the Conn closes it, and
// so does NewConn itself when it fails. It sets O_NONBLOCK and FD_CLOEXEC.
func NewConn(fd int) (*Conn, error) {
	if err := checkSeqpacket(fd); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("wire: descriptor %d: %w", fd, err)
	}
	unix.CloseOnExec(fd)
	// os.NewFile gives a descriptor to the poller only if it is non-blocking
	// by then. The flag belongs to this end alone: the two ends of a pair are
	// two open file descriptions.
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("wire: descriptor %d: %w", fd, os.NewSyscallError("fcntl", err))
	}
	file := os.NewFile(uintptr(fd), "handover control")
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("wire: descriptor %d: %w", fd, err)
	}
	return &Conn{
		file: file,
		raw:  raw,
		buf:  make([]byte, MaxPacket),
		oob:  make([]byte, unix.CmsgSpace(MaxFiles*4)),
	}, nil
}

// checkSeqpacket says why fd cannot be an end of the connection.
func checkSeqpacket(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return os.NewSyscallError("getsockopt SO_DOMAIN", err)
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return os.NewSyscallError("getsockopt SO_TYPE", err)
	}
	if domain != unix.AF_UNIX || kind != unix.SOCK_SEQPACKET {
		return errors.New("not a UNIX SOCK_SEQPACKET socket")
	}
	return nil
}

// Pair makes a connection. childFD is the program's end, close-on-exec and
// blocking; the caller owns it and closes it once the program has it, because
// the supervisor sees no EOF as long as any copy is open.
func Pair() (supervisor *Conn, childFD int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("wire: %w", os.NewSyscallError("socketpair", err))
	}
	supervisor, err = NewConn(fds[0])
	if err != nil {
		_ = unix.Close(fds[1])
		return nil, -1, err
	}
	return supervisor, fds[1], nil
}

// SyscallConn gives access to the descriptor, for duplicating it.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

// Send writes one packet. It borrows files, at most [MaxFiles]. It never waits:
// if the peer's buffer is full it returns [ErrFull]. A peer that is gone is
// EPIPE or ECONNRESET; Recv tells more.
func (c *Conn) Send(m Message, files ...*os.File) error {
	b, err := Encode(m)
	if err != nil {
		return err
	}
	if len(files) > MaxFiles {
		return fmt.Errorf("wire: send %s: %d descriptors, more than %d", m.Verb, len(files), MaxFiles)
	}
	err = withFDs(files, make([]int, 0, len(files)), func(fds []int) error {
		var oob []byte
		if len(fds) > 0 {
			oob = unix.UnixRights(fds...)
		}
		return c.send(b, oob)
	})
	if err != nil {
		if errors.Is(err, ErrFull) {
			return err
		}
		return fmt.Errorf("wire: send %s: %w", m.Verb, err)
	}
	return nil
}

// Unread waits until the peer has received what was sent to it.
type Unread struct {
	file *os.File
	raw  syscall.RawConn
}

// Unread returns a wait for the peer to have received all that was sent. The
// caller closes it; it has a descriptor of its own, so neither Send nor the end of
// the Conn waits for it.
func (c *Conn) Unread() (*Unread, error) {
	fd, err := -1, error(nil)
	cerr := c.raw.Control(func(own uintptr) {
		fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0)
	})
	switch {
	case cerr != nil:
		return nil, closed(cerr)
	case err != nil:
		return nil, os.NewSyscallError("fcntl", err)
	}
	u := &Unread{file: os.NewFile(uintptr(fd), "control")} // non-blocking, as all duplicates are
	if u.raw, err = u.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, u.file.Close())
	}
	return u, nil
}

// Wait returns nil when the peer has received everything, also what was sent
// meanwhile, or will never receive it because its end is closed. A Wait that Close
// interrupts, or one after it, gives [os.ErrClosed]. It uses no processor: the
// socket becomes writable again, for epoll, whenever the peer has taken a packet
// (net/unix/af_unix.c, unix_write_space).
func (u *Unread) Wait() error {
	var err error
	cerr := u.raw.Write(func(fd uintptr) bool {
		var n int
		n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) // unix(7): what was sent and is not received yet
		return err != nil || n == 0
	})
	if cerr != nil {
		return closed(cerr)
	}
	return os.NewSyscallError("ioctl SIOCOUTQ", err)
}

// Close ends a Wait that is under way. Safe twice: later calls return [os.ErrClosed].
func (u *Unread) Close() error { return u.file.Close() }

func (c *Conn) send(b, oob []byte) error {
	var err error
	cerr := c.raw.Write(func(fd uintptr) bool {
		for {
			err = unix.Sendmsg(int(fd), b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if !errors.Is(err, unix.EINTR) {
				return true // also on EAGAIN: the poller must not wait for room
			}
		}
	})
	switch {
	case cerr != nil:
		return closed(cerr)
	case errors.Is(err, unix.EAGAIN):
		return ErrFull
	}
	return os.NewSyscallError("sendmsg", err)
}

// withFDs calls fn with the numbers of files, which stay open meanwhile.
// SyscallConn is used because Fd would make a socket blocking for every holder.
func withFDs(files []*os.File, fds []int, fn func([]int) error) error {
	if len(files) == 0 {
		return fn(fds)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	err = raw.Control(func(fd uintptr) {
		ferr = withFDs(files[1:], append(fds, int(fd)), fn)
	})
	if err != nil {
		return err
	}
	return ferr
}

// Recv waits for one packet. The caller owns the returned files, which are
// close-on-exec; with an error there are none. At the end of the connection
// the error is [io.EOF]; a Recv that Close interrupts, or one after it, gives
// [os.ErrClosed]. See [ErrFull] for the errors that are not final.
func (c *Conn) Recv() (Message, []*os.File, error) { return c.receive(0) }

// Peek is Recv, and leaves the packet where it is: for a supervisor that is to have
// written down what a packet said before it is gone. Drop takes it away, also after
// an error that is not final.
func (c *Conn) Peek() (Message, []*os.File, error) { return c.receive(unix.MSG_PEEK) }

// Drop takes away the packet that Peek has shown, without waiting.
func (c *Conn) Drop() {
	c.recv.Lock()
	defer c.recv.Unlock()
	_ = c.raw.Control(func(fd uintptr) { // it fails only after Close
		_, noob, _, _, err := unix.Recvmsg(int(fd), c.buf, c.oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		if err == nil {
			fds, _ := parseRights(c.oob[:noob])
			closeAll(fds)
		}
	})
}

func (c *Conn) receive(peek int) (Message, []*os.File, error) {
	c.recv.Lock()
	defer c.recv.Unlock()
	n, fds, err := c.recvmsg(peek)
	if err != nil {
		return Message{}, nil, err
	}
	m, err := Decode(c.buf[:n])
	if err != nil {
		closeAll(fds)
		return m, nil, err
	}
	var files []*os.File
	for _, fd := range fds {
		files = append(files, os.NewFile(uintptr(fd), fmt.Sprintf("received with %s", m.Verb)))
	}
	return m, files, nil
}

// recvmsg reads one packet of one byte or more into c.buf.
func (c *Conn) recvmsg(peek int) (n int, fds []int, err error) {
	var noob, flags int
	var events int16
	cerr := c.raw.Read(func(fd uintptr) bool {
		for {
			n, noob, flags, _, err = unix.Recvmsg(int(fd), c.buf, c.oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT|peek)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if err == nil && n == 0 {
			events, err = pollNow(int(fd))
		}
		return !errors.Is(err, unix.EAGAIN)
	})
	switch {
	case cerr != nil:
		return 0, nil, fmt.Errorf("wire: receive: %w", closed(cerr))
	case errors.Is(err, unix.ECONNRESET):
		// The peer closed with packets of ours unread (unix(7)).
		return 0, nil, io.EOF
	case err != nil:
		return 0, nil, fmt.Errorf("wire: receive: %w", err)
	}
	fds, err = parseRights(c.oob[:noob])
	switch {
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		closeAll(fds)
		return 0, nil, ErrTruncated
	case err != nil:
		closeAll(fds)
		return 0, nil, fmt.Errorf("wire: receive: %w", err)
	case n > 0:
		return n, fds, nil
	}
	closeAll(fds)
	// An empty packet that its sender left behind when it closed counts as
	// the end as well: whoever sends one has broken the protocol already.
	switch {
	case events&unix.POLLHUP != 0:
		return 0, nil, io.EOF
	case events&unix.POLLRDHUP != 0 && len(fds) == 0:
		return 0, nil, ErrShut
	}
	return 0, nil, ErrEmpty
}

// closed gives the error of a RawConn a name: package os hands out an internal
// one that matches nothing. No deadline is ever set, so Close is its only cause.
func closed(err error) error { return fmt.Errorf("%w (%w)", os.ErrClosed, err) }

// pollNow asks for the state of fd without waiting.
func pollNow(fd int) (int16, error) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
	for {
		_, err := unix.Poll(p, 0)
		if err == nil {
			return p[0].Revents, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return 0, os.NewSyscallError("poll", err)
		}
	}
}

// parseRights collects the descriptors of all control messages. Those found
// before an error are returned with it, for the caller to close.
func parseRights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, os.NewSyscallError("recvmsg", err)
	}
	var fds []int
	for _, m := range msgs {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			continue
		}
		got, err := unix.ParseUnixRights(&m)
		if err != nil {
			return fds, os.NewSyscallError("recvmsg", err)
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// Close closes this end. Safe twice: later calls return [os.ErrClosed].
func (c *Conn) Close() error { return c.file.Close() }
