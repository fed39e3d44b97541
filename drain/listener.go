package drain

import (
	"net"
	"sync/atomic"
	"syscall"
)

// Listener returns a listener whose accepted connections are work of the group
// from Accept until they are closed. It takes l: closing the result closes it,
// and Shutdown does so first. The connections that wait in the kernel's queue
// are not lost by that while the socket is open in another process.
//
// The concrete type of l and of its connections is hidden. Both implement
// syscall.Conn when the original does; a connection also has CloseWrite,
// ReadFrom (sendfile and splice into it go on working) and NetConn, which
// returns the original. A connection closed by way of NetConn stays counted.
//
// On a group whose listeners are closed l is closed and Accept fails with net.ErrClosed.
func (g *Group) Listener(l net.Listener) net.Listener {
	t := g.track(l)
	if sc, ok := l.(syscall.Conn); ok {
		return rawListener{t, sc}
	}
	return t
}

// track registers l with the group, or closes it when the others are.
func (g *Group) track(l net.Listener) *listener {
	t := &listener{Listener: l, group: g, closed: make(chan struct{})}
	g.mu.Lock()
	g.initLocked()
	late := g.shut.Load()
	if !late {
		g.listeners[t] = struct{}{}
	}
	g.mu.Unlock()
	if late {
		// Kept in t.err, where the caller's own Close finds it.
		_ = t.Close()
	}
	return t
}

// A listener is a tracked net.Listener.
type listener struct {
	net.Listener
	group *Group

	closing atomic.Bool
	closed  chan struct{} // closed when it is, by whoever was first; err stands then
	err     error
}

// Accept returns the next connection, which counts until it is closed.
func (l *listener) Accept() (net.Conn, error) {
	c, m, err := l.group.accept(l.Listener)
	if err != nil {
		return nil, err
	}
	return wrap(c, m), nil
}

// Close closes the listener once; later calls wait for that and return the same result.
func (l *listener) Close() error {
	if l.closing.CompareAndSwap(false, true) {
		l.shut()
	}
	<-l.closed
	return l.err
}

func (l *listener) shut() {
	defer close(l.closed)
	l.err = l.Listener.Close()
	l.group.mu.Lock()
	defer l.group.mu.Unlock()
	delete(l.group.listeners, l)
}

// A rawListener is a listener over one with a descriptor.
type rawListener struct {
	*listener
	sc syscall.Conn
}

// SyscallConn gives access to the descriptor of the original listener.
func (l rawListener) SyscallConn() (syscall.RawConn, error) { return l.sc.SyscallConn() }
