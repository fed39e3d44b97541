package keeper

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
)

// keepWait is how long Keep and Drop wait for room, in milliseconds: the caller is
// handoverd's loop. The queue holds some 270 packets.
const keepWait = 200

// shortPacket has room for all that a keeper says but for what TakeAll asks for.
const shortPacket = 4 << 10

// Item is a descriptor by the name that the keeper holds it under.
type Item struct {
	Name string
	FD   int
}

// Client is handoverd's end. It owns its connection. Keep and Drop are for one
// goroutine at a time, and so are TakeAll and Wait; Close ends a Wait.
type Client struct {
	file *os.File
	raw  syscall.RawConn
	buf  []byte
	pid  int // of the keeper, from its hello
	v    int // the version that it speaks
}

// Claim makes the lock file of dir anew and locks it, in place of one that a client
// before may have left locked. The caller holds the lock of the directory, owns the
// file, and hands it to Dial for as long as it lives.
func Claim(dir string) (*os.File, error) {
	path := filepath.Join(dir, LockName)
	f, err := os.OpenFile(path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	raw, err := f.SyscallConn()
	if err == nil {
		var lockErr error
		err = raw.Control(func(fd uintptr) { lockErr = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB) })
		err = errors.Join(err, os.NewSyscallError("flock", lockErr))
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("keeper: %s: %w", path, err), f.Close())
	}
	return f, nil
}

// Dial connects to the keeper whose socket is in dir, and proves with lock, a file
// of Claim that it borrows, that dir is the caller's. It waits for nothing: also a
// keeper that was just started finds what was sent meanwhile. ENOENT and
// ECONNREFUSED say that there is none.
func Dial(dir string, lock int) (*Client, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", os.NewSyscallError("socket", err))
	}
	err = atPath(dir, func(path string) error {
		return os.NewSyscallError("connect", unix.Connect(fd, &unix.SockaddrUnix{Name: path}))
	})
	if err == nil {
		err = sendPacket(fd, message{Verb: verbHello}, []int{lock}, keepWait)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("keeper: %w", err)
	}
	file := os.NewFile(uintptr(fd), socketName)
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("keeper: %w", err)
	}
	return &Client{file: file, raw: raw, buf: make([]byte, shortPacket)}, nil
}

// Keep has the keeper hold copies of the descriptors, which it borrows, in place of
// what it holds under the same names.
func (c *Client) Keep(items []Item) error {
	names := make([]string, len(items))
	for i, it := range items {
		names[i] = it.Name
	}
	for len(items) > 0 {
		n := batch(names, maxFiles)
		fds := make([]int, n)
		for i := range fds {
			fds[i] = items[i].FD
		}
		if err := c.send(message{Verb: verbKeep, Names: names[:n]}, fds); err != nil {
			return err
		}
		names, items = names[n:], items[n:]
	}
	return nil
}

// Drop has the keeper close what it holds under the names.
func (c *Client) Drop(names []string) error {
	for len(names) > 0 {
		n := batch(names, len(names))
		if err := c.send(message{Verb: verbDrop, Names: names[:n]}, nil); err != nil {
			return err
		}
		names = names[n:]
	}
	return nil
}

func (c *Client) send(m message, fds []int) error {
	var err error
	if cerr := c.raw.Control(func(fd uintptr) { err = sendPacket(int(fd), m, fds, keepWait) }); cerr != nil {
		return os.ErrClosed
	}
	return err
}

// TakeAll asks for copies of all that the keeper holds; the caller owns them. It
// waits for timeout at most. Nothing is returned with an error, and nothing left
// open.
func (c *Client) TakeAll(timeout time.Duration) (held map[string]int, err error) {
	held = map[string]int{}
	c.buf = make([]byte, MaxPacket+1)
	defer func() {
		c.buf = make([]byte, shortPacket)
		if err != nil {
			for _, fd := range held {
				_ = unix.Close(fd)
			}
			held = nil
		}
	}()
	if err := c.file.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return held, fmt.Errorf("keeper: %w", err)
	}
	defer func() { err = errors.Join(err, c.file.SetReadDeadline(time.Time{})) }()
	if err := c.send(message{Verb: verbTake}, nil); err != nil {
		return held, err
	}
	for {
		m, fds, err := c.recv()
		if err != nil {
			return held, err
		}
		if m.Verb != verbKept {
			continue
		}
		for i, name := range m.Names {
			if old, twice := held[name]; twice {
				_ = unix.Close(old)
			}
			held[name] = fds[i]
		}
		if m.Last {
			return held, nil
		}
	}
}

// PID is the keeper's process, 0 until TakeAll or Wait has heard of it.
func (c *Client) PID() int { return c.pid }

// Version is the version that the keeper speaks, 0 until it is known.
func (c *Client) Version() int { return c.v }

// Wait returns when the keeper says that it could not hold something (nil) or is
// gone (the error says why; io.EOF: it has ended).
func (c *Client) Wait() (complaint string, err error) {
	for {
		m, fds, err := c.recv()
		closeAll(fds)
		if err != nil {
			return "", err
		}
		if m.Verb == verbError {
			return m.Error, nil
		}
	}
}

// recv reads one packet. An error of the keeper before hello ends the connection.
func (c *Client) recv() (m message, fds []int, err error) {
	var n int
	cerr := c.raw.Read(func(fd uintptr) bool {
		n, fds, err = fdpass.RecvFDs(int(fd), c.buf, maxFiles)
		if errors.Is(err, unix.ECONNRESET) { // comes before what the keeper said last
			n, fds, err = fdpass.RecvFDs(int(fd), c.buf, maxFiles)
		}
		return !errors.Is(err, unix.EAGAIN)
	})
	switch {
	case errors.Is(cerr, os.ErrDeadlineExceeded):
		return message{}, nil, fmt.Errorf("keeper: no answer: %w", cerr)
	case cerr != nil:
		return message{}, nil, os.ErrClosed
	case errors.Is(err, unix.ECONNRESET), err == nil && n == 0:
		closeAll(fds)
		return message{}, nil, io.EOF
	case err != nil:
		return message{}, nil, err
	}
	m, err = decode(c.buf[:n], len(fds))
	if err != nil {
		closeAll(fds)
		return message{}, nil, err
	}
	switch {
	case m.Verb == verbHello:
		c.pid, c.v = m.PID, m.V
	case m.Verb == verbError && c.pid == 0:
		return message{}, nil, fmt.Errorf("keeper: refused: %s", m.Error)
	}
	return m, fds, nil
}

// Close ends the connection. The keeper holds what it was given.
func (c *Client) Close() error { return c.file.Close() }
