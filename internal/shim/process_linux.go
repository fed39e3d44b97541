package shim

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Packets from the parent to the child: one byte says which.
const (
	packetFiles = 'f' // with descriptors; the first of the first is the memfd
	packetGo    = 'g'
)

// maxReport bounds the one packet the child sends.
const maxReport = 16 << 10

// Process is a started shim, and later the program it became. It owns our end
// of the control socket and the pidfd; Close releases both. Its methods may be
// called from any goroutine.
type Process struct {
	// PID is the pid, session and process group of shim and program. The
	// caller reaps it.
	PID int
	// StartTime is field 22 of /proc/PID/stat: clock ticks since boot.
	StartTime uint64

	pidfd   int
	control control

	told   sync.Mutex // held while the shim is told to go
	gone   bool       // it was; guarded by told
	once   sync.Once
	result error
}

// Go tells the shim to execute the program. It does not wait for that: Result
// does. When the shim has already reported a failure, that *[ExecError] is
// returned; when it is gone without one, [ErrDied]. After Abort or Close it is
// [ErrAborted].
func (p *Process) Go() error {
	fd, ok := p.control.acquire()
	if !ok {
		return ErrAborted
	}
	p.told.Lock()
	err := sendGo(fd)
	p.gone = err == nil
	p.told.Unlock()
	p.control.release()
	if err == nil {
		return nil
	}
	if err == unix.EPIPE || err == unix.ECONNRESET {
		if failed := p.Result(); failed != nil {
			return failed
		}
	}
	return &StartError{Op: "sendmsg", Detail: "go", Err: err}
}

func sendGo(fd int) error {
	for {
		err := unix.Sendmsg(fd, []byte{packetGo}, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return err
		}
	}
}

// Abort closes our end: a shim that was not told to go exits with
// [ExitAborted] and never runs the program. After Go it may come too late. It
// wakes a waiting Result. Later calls do nothing.
func (p *Process) Abort() error {
	if err := p.control.close(); err != nil {
		return &StartError{Op: "close", Detail: "control", Err: err}
	}
	return nil
}

// Result blocks until the shim has become the program (nil) or has reported
// why not (*[ExecError]; the shim then exits with [ExitFailed]). Our end of the
// control socket is closed then. Nil says "told to go, no message and EOF": exec
// happened, or the shim was killed between the two. The exit of the pid tells these
// apart; a caller that sees the pid exit need not wait for anything else. [ErrDied]
// says that exec has not happened and never will. After Abort or Close without a known
// outcome it is [ErrAborted]. Later calls return the first result.
func (p *Process) Result() error {
	p.once.Do(p.wait)
	if p.result != nil {
		return p.result
	}
	p.told.Lock()
	defer p.told.Unlock()
	if !p.gone {
		return ErrDied
	}
	return nil
}

func (p *Process) wait() {
	fd, ok := p.control.acquire()
	if !ok {
		p.result = ErrAborted
		return
	}
	b, unread, err := readReport(fd)
	p.control.release()
	aborted := p.control.closed()
	if cerr := p.control.close(); err == nil && cerr != nil {
		err = cerr
	}
	switch {
	case err != nil:
		p.result = &StartError{Op: "recvmsg", Detail: "report", Err: err}
	case len(b) == 0 && aborted:
		p.result = ErrAborted
	case len(b) > 0:
		report, ok := decodeReport(b)
		if !ok {
			p.result = &StartError{Op: "recvmsg", Detail: "damaged report", Err: unix.EBADMSG}
			return
		}
		p.result = report
	case unread:
		p.result = ErrDied // "go" is the last that it reads
	}
}

// readReport returns the one packet, or nothing at EOF, and whether the shim ended
// before it had read all we sent. That leaves ECONNRESET on our end, *in front of*
// the report it sent: the first read takes the error, the next one the packet
// (measured; net/core/datagram.c looks at sk_err before the queue).
func readReport(fd int) (b []byte, unread bool, err error) {
	b = make([]byte, maxReport)
	for {
		n, err := unix.Read(fd, b)
		switch {
		case err == unix.EINTR:
		case err == unix.ECONNRESET && !unread:
			unread = true
		case err == unix.ECONNRESET:
			return nil, true, nil
		case err != nil:
			return nil, unread, err
		default:
			return b[:n], unread, nil
		}
	}
}

// Pidfd borrows out the pidfd, close-on-exec; -1 before Linux 5.2. It is valid
// until Close.
func (p *Process) Pidfd() int { return p.pidfd }

// Close releases the control socket, which aborts a shim that was not told to
// go, and the pidfd. It must not run while the pidfd is in use elsewhere.
func (p *Process) Close() error {
	err := p.Abort()
	fd := p.pidfd
	p.pidfd = -1
	if cerr := closeIf(fd); err == nil && cerr != nil {
		err = &StartError{Op: "close", Detail: "pidfd", Err: cerr}
	}
	return err
}

// control is our end of the socketpair. A descriptor must not be closed while
// another thread is about to read from its number, so the last user closes it.
type control struct {
	mu      sync.Mutex
	fd      int
	users   int
	closing bool
}

func (c *control) acquire() (fd int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return -1, false
	}
	c.users++
	return c.fd, true
}

func (c *control) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users--
	if c.closing && c.users == 0 {
		_ = unix.Close(c.fd)
	}
}

func (c *control) closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closing
}

// close wakes readers by shutdown(2), which the child sees as EOF as well.
func (c *control) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return nil
	}
	c.closing = true
	if c.users > 0 {
		return unix.Shutdown(c.fd, unix.SHUT_RDWR)
	}
	return unix.Close(c.fd)
}
