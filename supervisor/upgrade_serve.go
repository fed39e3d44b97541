package supervisor

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"
)

// answerLimit is how long an upgrade waits for the answers to requests under way.
const answerLimit = time.Second

// fileListener is a listener of package net that has a descriptor.
type fileListener interface {
	net.Listener
	syscall.Conn
	SetDeadline(t time.Time) error
}

// served is an HTTP server whose listener outlives an upgrade: while it is paused
// who connects waits in the listener's queue, and is answered by the next image.
type served struct {
	fileListener
	name string // in what is handed over
	srv  *http.Server

	mu      sync.Mutex
	paused  chan struct{} // closed at the end of the pause; nil: there is none
	parked  chan struct{} // closed once Accept waits for that
	closed  chan struct{}
	conns   map[net.Conn]bool // which have a request under way; true: one that lasts
	changed chan struct{}     // closed at each change of conns
}

func newServed(name string, srv *http.Server, l fileListener) *served {
	v := &served{
		fileListener: l, name: name, srv: srv,
		closed: make(chan struct{}), conns: map[net.Conn]bool{}, changed: make(chan struct{}),
	}
	srv.ConnState = v.note
	inner := srv.ConnContext
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if inner != nil {
			ctx = inner(ctx, c)
		}
		return context.WithValue(ctx, lastsKey{}, func() { v.lasts(c) })
	}
	return v
}

type lastsKey struct{}

// lasts marks the request as one that an upgrade does not wait for: its answer may have
// no end, and who asked knows enough to ask the next image.
func lasts(r *http.Request) {
	if mark, ok := r.Context().Value(lastsKey{}).(func()); ok {
		mark()
	}
}

func (v *served) lasts(c net.Conn) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.conns[c]; ok {
		v.conns[c] = true
		v.wake()
	}
}

// note follows the connections, by http.Server.ConnState: a new one is noted before
// Accept is called again.
func (v *served) note(c net.Conn, state http.ConnState) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch state {
	case http.StateNew, http.StateActive:
		v.conns[c] = false
	default:
		delete(v.conns, c)
	}
	v.wake()
}

// wake tells whoever waits for the connections. The caller holds mu.
func (v *served) wake() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// Accept waits for the next connection, and during a pause for its end.
func (v *served) Accept() (net.Conn, error) {
	for {
		v.mu.Lock()
		paused, parked := v.paused, v.parked
		v.parked = nil
		v.mu.Unlock()
		if paused != nil {
			if parked != nil {
				close(parked)
			}
			select {
			case <-paused:
			case <-v.closed:
				return nil, net.ErrClosed
			}
			continue
		}
		c, err := v.fileListener.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return c, err
		}
	}
}

// Close closes the listener, once.
func (v *served) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	select {
	case <-v.closed:
		return nil
	default:
	}
	close(v.closed)
	return v.fileListener.Close()
}

// pause returns a channel that is closed once nothing is accepted any more.
func (v *served) pause() <-chan struct{} {
	v.mu.Lock()
	parked := make(chan struct{})
	v.paused, v.parked = make(chan struct{}), parked
	v.mu.Unlock()
	_ = v.SetDeadline(time.Unix(1, 0)) // wakes Accept; it fails only once closed
	return parked
}

// settle waits until nobody waits for an answer, or ctx ends. Connections without a
// request are closed.
func (v *served) settle(ctx context.Context) {
	v.srv.SetKeepAlivesEnabled(false)
	for {
		v.mu.Lock()
		waits, changed := false, v.changed
		for _, lasts := range v.conns {
			waits = waits || !lasts
		}
		v.mu.Unlock()
		if !waits {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (v *served) goOn() {
	_ = v.SetDeadline(time.Time{})
	v.srv.SetKeepAlivesEnabled(true)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.paused != nil {
		close(v.paused)
		v.paused = nil
	}
}

// pauseServers returns when no server accepts, and all that was asked has been
// answered, but for what has no end; or after answerLimit.
func (s *Supervisor) pauseServers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	for _, v := range s.served {
		select {
		case <-v.pause():
		case <-v.closed:
		case <-ctx.Done():
		}
	}
	for _, v := range s.served {
		v.settle(ctx)
	}
}

func (s *Supervisor) resumeServers() {
	for _, v := range s.served {
		v.goOn()
	}
}

// listener is the one that an image before this one has handed over, or a new one.
func (s *Supervisor) listener(name string, bind func() (net.Listener, error)) (fileListener, error) {
	var l net.Listener
	var err error
	if h := s.opts.Self.Handed; h != nil {
		l, err = h.listener(name)
	} else {
		l, err = bind()
	}
	if err != nil {
		return nil, err
	}
	f, ok := l.(fileListener)
	if !ok {
		return nil, errors.Join(errors.ErrUnsupported, l.Close())
	}
	return f, nil
}
