package drain

import (
	"context"
	"net"
	"sync"
	"time"
)

// A GracefulStopper stops politely or at once. *grpc.Server is one.
type GracefulStopper interface {
	// GracefulStop stops accepting, tells the clients, and returns when every
	// call and every connection has ended.
	GracefulStop()

	// Stop ends everything at once, and makes GracefulStop return.
	Stop()
}

// A Stopper is a Target made of a GracefulStopper. Make one with Graceful.
//
// Serve on what Listener returns: grpc-go closes a connection that it has
// accepted if GracefulStop began before it had looked at it (server.go,
// handleRawConn), and a client that had just connected loses its call. So the
// listener is closed first, GracefulStop is called when each connection has
// been taken up, and Serve of the server returns when the drain is over.
//
// grpc-go ends a connection with two GOAWAYs and a PING between them, so no call
// crosses the last one. For a bound on the age of connections it has
// keepalive.ServerParameters.
type Stopper struct {
	server GracefulStopper
	group  Group

	mu        sync.Mutex
	accepting int                     // Accept calls under way
	untaken   map[*takenConn]struct{} // accepted, not read from yet
	taken     chan struct{}           // closed when draining and both are none
	once      sync.Once
	finished  chan struct{}
}

// Graceful makes a Target of a server such as *grpc.Server. It borrows it.
func Graceful(server GracefulStopper) *Stopper {
	return &Stopper{server: server, untaken: make(map[*takenConn]struct{}), finished: make(chan struct{})}
}

// Listener returns the listener to serve on. It takes l. While draining Accept
// fails only once the server closes the listener, so that its Serve ends when it
// has been stopped and not before.
func (s *Stopper) Listener(l net.Listener) net.Listener {
	return &stopperListener{Listener: s.group.Listener(l), stopper: s, closed: make(chan struct{})}
}

// CloseListeners closes the listeners and does nothing else: the server goes on with
// what it has accepted, and tells nobody. Shutdown and Close do it first.
func (s *Stopper) CloseListeners() error { return s.group.CloseListeners() }

// Shutdown closes the listeners, lets the server take up what it has accepted,
// and stops it gracefully. When ctx ends first it returns an *IncompleteError.
func (s *Stopper) Shutdown(ctx context.Context) error {
	_ = s.group.begin() // that a listener could not be closed is no failure of the drain
	select {
	case <-s.takenUp():
	case <-ctx.Done():
	}
	stopped := make(chan struct{})
	// Ends at the latest when Close calls Stop; waited for until ctx ends.
	go s.stop(stopped)
	select {
	case <-stopped:
		s.once.Do(s.finish)
		return nil
	case <-ctx.Done():
		left := s.group.stragglers()
		return &IncompleteError{Active: len(left), Stragglers: left, Err: context.Cause(ctx)}
	}
}

func (s *Stopper) stop(stopped chan<- struct{}) {
	s.server.GracefulStop()
	close(stopped)
}

// Close stops the server at once.
func (s *Stopper) Close() error {
	err := s.group.begin()
	s.server.Stop()
	s.once.Do(s.finish)
	return err
}

func (s *Stopper) finish() { close(s.finished) }

// Len returns how many connections there are.
func (s *Stopper) Len() int { return s.group.Len() }

// Draining returns a channel that is closed when Shutdown or Close begins.
func (s *Stopper) Draining() <-chan struct{} { return s.group.Draining() }

// takenUp returns a channel that is closed when every accepted connection has
// been read from, or closed. Called once the listeners are closed.
func (s *Stopper) takenUp() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken == nil {
		s.taken = make(chan struct{})
		s.signalLocked()
	}
	return s.taken
}

func (s *Stopper) signalLocked() {
	if s.taken != nil && len(s.untaken) == 0 && s.accepting == 0 {
		select {
		case <-s.taken:
		default:
			close(s.taken)
		}
	}
}

func (s *Stopper) observe(o *observer) { s.group.observe(o) }

func (s *Stopper) arrivals(reset bool) (n int, last time.Time) { return s.group.arrivals(reset) }

// A stopperListener hands its connections to a server that closes them unseen.
type stopperListener struct {
	net.Listener
	stopper *Stopper
	once    sync.Once
	closed  chan struct{} // by the server, not by the drain
}

// Accept returns the next connection.
func (l *stopperListener) Accept() (net.Conn, error) {
	s := l.stopper
	s.mu.Lock()
	s.accepting++
	s.mu.Unlock()
	c, err := l.Listener.Accept()
	t := &takenConn{Conn: c, stopper: s}
	s.mu.Lock()
	s.accepting--
	if err == nil {
		s.untaken[t] = struct{}{}
	}
	s.signalLocked()
	s.mu.Unlock()
	if err == nil {
		return t, nil
	}
	if s.group.shut.Load() {
		select {
		case <-l.closed:
		case <-s.finished:
		}
	}
	return nil, err
}

// Close closes the listener.
func (l *stopperListener) Close() error {
	l.once.Do(l.shut)
	return l.Listener.Close()
}

func (l *stopperListener) shut() { close(l.closed) }

// A takenConn says when the server has taken it up.
type takenConn struct {
	net.Conn
	stopper *Stopper
	once    sync.Once
}

// Read reads, which the server does not before it has decided to serve.
func (c *takenConn) Read(p []byte) (int, error) {
	c.once.Do(c.take)
	return c.Conn.Read(p)
}

// Close closes the connection.
func (c *takenConn) Close() error {
	c.once.Do(c.take)
	return c.Conn.Close()
}

func (c *takenConn) take() {
	c.stopper.mu.Lock()
	defer c.stopper.mu.Unlock()
	delete(c.stopper.untaken, c)
	c.stopper.signalLocked()
}
