package handover

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// gate is what listeners wait behind: closed at first, then open or failed,
// for good. The zero value is closed.
type gate struct {
	mu      sync.Mutex
	settled bool
	err     error
	waiting []interface{ settle(error) }
}

// add puts l behind the gate, or settles it at once if the gate has moved.
func (g *gate) add(l interface{ settle(error) }) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.settled {
		l.settle(g.err)
		return
	}
	g.waiting = append(g.waiting, l)
}

// settle opens the gate, or with an error fails it. The first call counts.
// Everything behind it is opened here and not at the first Accept: that the
// sockets are polled is what the supervisor looks for before it acknowledges,
// and a program may well call Ready before it serves.
func (g *gate) settle(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.settled {
		return
	}
	g.settled, g.err = true, err
	for _, l := range g.waiting {
		l.settle(err)
	}
	g.waiting = nil
}

// late is a socket that package net, and so the poller, does not know before
// settle. Until then it is a bare descriptor.
type late[T io.Closer] struct {
	name, network string
	addr          net.Addr
	open          func(*os.File) (T, error)

	done chan struct{} // closed when conn or err is set

	mu   sync.Mutex // guards the change from fd to conn or err
	fd   int        // owned until done is closed
	conn T
	err  error
}

// newLate takes fd.
func newLate[T io.Closer](name, network string, fd int, addr net.Addr, open func(*os.File) (T, error)) *late[T] {
	return &late[T]{name: name, network: network, fd: fd, addr: addr, open: open, done: make(chan struct{})}
}

func (l *late[T]) settle(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if closed(l.done) {
		return
	}
	if err == nil {
		// open works on a duplicate; this one, which os.NewFile has put into
		// the epoll set as well, leaves it again.
		f := os.NewFile(uintptr(l.fd), l.name)
		l.conn, l.err = l.open(f)
		_ = f.Close()
	} else {
		l.err = err
		closeFD(l.fd)
	}
	l.fd = -1
	close(l.done)
}

// get waits until the socket is open.
func (l *late[T]) get(op string) (T, error) {
	<-l.done
	if l.err != nil {
		return l.conn, l.fail(op, l.err)
	}
	return l.conn, nil
}

func (l *late[T]) fail(op string, err error) error {
	return &SocketError{Op: op, Name: l.name, Network: l.network, Err: err}
}

// Addr is the address of the inherited socket.
func (l *late[T]) Addr() net.Addr { return l.addr }

// Close closes this process's descriptor and unblocks whoever waits. A second
// call is an error like that of package net.
func (l *late[T]) Close() error {
	l.mu.Lock()
	if !closed(l.done) {
		defer l.mu.Unlock()
		closeFD(l.fd)
		l.fd, l.err = -1, net.ErrClosed
		close(l.done)
		return nil
	}
	l.mu.Unlock()
	conn, err := l.get("close")
	if err != nil {
		return err
	}
	return conn.Close()
}

// SyscallConn is an error before the socket accepts: whoever has the
// descriptor could poll it.
func (l *late[T]) SyscallConn() (syscall.RawConn, error) {
	if !closed(l.done) {
		return nil, l.fail("raw", errNotYet)
	}
	conn, err := l.get("raw")
	if err != nil {
		return nil, err
	}
	sc, ok := any(conn).(syscall.Conn)
	if !ok {
		return nil, l.fail("raw", errors.ErrUnsupported)
	}
	return sc.SyscallConn()
}

func openListener(f *os.File) (net.Listener, error) {
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	if u, ok := ln.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // the path is the supervisor's
	}
	return ln, nil
}

// listener is what a supervised Listen gives.
type listener struct{ *late[net.Listener] }

// A socket that another holder has shut down or disconnected does not listen, which accept(2) calls EINVAL. The supervisor
// has it listen again within milliseconds, or hands a new one to another generation. A server that took that for the end
// would end what it has in hand, so it is not told at once.
const (
	mendedAfter  = time.Millisecond // looked at first after that, then in doubled steps
	mendedLatest = 100 * time.Millisecond
	mendWithin   = 10 * time.Second
)

// Accept waits for the next connection.
func (l *listener) Accept() (net.Conn, error) {
	ln, err := l.get("accept")
	if err != nil {
		return nil, err
	}
	var end time.Time
	for pause := mendedAfter; ; pause = min(2*pause, mendedLatest) {
		conn, err := ln.Accept()
		if !errors.Is(err, syscall.EINVAL) {
			return conn, err
		}
		if end.IsZero() {
			end = time.Now().Add(mendWithin)
		}
		if time.Now().After(end) {
			return nil, err
		}
		time.Sleep(pause)
	}
}

// packetConn is what a supervised ListenPacket gives.
type packetConn struct {
	*late[net.PacketConn]

	dmu         sync.Mutex
	read, write time.Time     // the deadlines, also before the socket is open
	changed     chan struct{} // closed when one is set; nil while nobody waits
}

func (p *packetConn) LocalAddr() net.Addr { return p.addr }

func (p *packetConn) ReadFrom(b []byte) (int, net.Addr, error) {
	pc, err := p.wait("read", &p.read)
	if err != nil {
		return 0, nil, err
	}
	return pc.ReadFrom(b)
}

func (p *packetConn) WriteTo(b []byte, to net.Addr) (int, error) {
	pc, err := p.wait("write", &p.write)
	if err != nil {
		return 0, err
	}
	return pc.WriteTo(b, to)
}

// wait is get with the deadline at limit, which may be moved meanwhile.
func (p *packetConn) wait(op string, limit *time.Time) (net.PacketConn, error) {
	for !closed(p.done) {
		p.dmu.Lock()
		if p.changed == nil {
			p.changed = make(chan struct{})
		}
		changed, at := p.changed, *limit
		p.dmu.Unlock()
		var expired <-chan time.Time
		if !at.IsZero() {
			expired = time.After(time.Until(at))
		}
		select {
		case <-p.done:
		case <-changed:
		case <-expired:
			return nil, p.fail(op, os.ErrDeadlineExceeded)
		}
	}
	return p.get(op)
}

func (p *packetConn) SetDeadline(t time.Time) error      { return p.setDeadline(t, true, true) }
func (p *packetConn) SetReadDeadline(t time.Time) error  { return p.setDeadline(t, true, false) }
func (p *packetConn) SetWriteDeadline(t time.Time) error { return p.setDeadline(t, false, true) }

func (p *packetConn) setDeadline(t time.Time, read, write bool) error {
	p.dmu.Lock()
	defer p.dmu.Unlock()
	if read {
		p.read = t
	}
	if write {
		p.write = t
	}
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
	if !closed(p.done) {
		return nil
	}
	pc, err := p.get("set deadline")
	if err != nil {
		return err
	}
	return errors.Join(pc.SetReadDeadline(p.read), pc.SetWriteDeadline(p.write))
}

// settle hands the deadlines over that were set before there was a socket.
func (p *packetConn) settle(err error) {
	p.dmu.Lock()
	defer p.dmu.Unlock()
	first := !closed(p.done)
	p.late.settle(err)
	if !first || p.late.err != nil {
		return
	}
	// Cannot fail on a socket that the poller has just taken.
	_ = p.conn.SetReadDeadline(p.read)
	_ = p.conn.SetWriteDeadline(p.write)
}
