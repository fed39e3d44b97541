package handover

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/handoverd/handover/internal/sdnotify"
	"github.com/handoverd/handover/internal/wire"
)

// Child is this process as one generation of a service. Inherit makes it.
// Safe for concurrent use.
type Child struct {
	env  environ
	conn *wire.Conn // nil unless supervised
	self *self      // of Standalone without a supervisor, else nil

	accept   gate
	deadline deadline

	draining  chan struct{}
	lameDuck  chan struct{}
	acked     chan struct{} // closed by ack
	refused   chan struct{} // closed by error; refusal is set before
	refusal   error
	lost      chan struct{} // closed when read has returned; lostCause is set before
	lostCause error

	ready     sync.Once
	readyErr  error
	closeOnce sync.Once
	closeErr  error

	mu    sync.Mutex // guards what follows
	socks []inherited
	late  bool // Ready or Close was called: nothing can be taken any more
	why   string
}

// inherited is one socket of the environment. The Child owns fd until it is
// taken. It stays a bare number: os.NewFile would put it into the epoll set.
type inherited struct {
	name  string
	fd    int
	taken bool
}

var inheritedBefore atomic.Bool

// Inherit takes what the supervisor passed: the sockets, by name, and the
// control connection. It removes LISTEN_* and HANDOVER_FD* from the
// environment, so that programs which this one starts do not see them. Call it
// once, early; a second call returns [ErrInherited].
//
// Under plain systemd socket activation the sockets are those of
// LISTEN_FDNAMES. Without either it succeeds, and Listen binds for itself. A
// damaged environment is an error.
func Inherit() (*Child, error) {
	if !inheritedBefore.CompareAndSwap(false, true) {
		return nil, ErrInherited
	}
	env, err := consumeEnviron()
	if err != nil {
		return nil, err
	}
	return newChild(env)
}

func newChild(env environ) (*Child, error) {
	c := &Child{
		env:      env,
		draining: make(chan struct{}),
		lameDuck: make(chan struct{}),
		acked:    make(chan struct{}),
		refused:  make(chan struct{}),
		lost:     make(chan struct{}),
	}
	// All are looked at before any is closed or written to.
	for _, p := range env.fds {
		if err := claim(p.fd); err != nil {
			return nil, fmt.Errorf("handover: socket %q: %w", p.name, err)
		}
		c.socks = append(c.socks, inherited{name: p.name, fd: p.fd})
	}
	if !env.supervised {
		if !env.upgradesItself() { // else with Ready
			c.accept.settle(nil)
		}
		return c, nil
	}
	if err := claim(env.control); err != nil {
		return nil, fmt.Errorf("handover: %s: %w", wire.EnvFD, err)
	}
	conn, err := wire.NewConn(env.control)
	if err != nil {
		return nil, fmt.Errorf("handover: %s: %w", wire.EnvFD, err)
	}
	c.conn = conn
	if err := c.send(wire.Message{Verb: wire.Hello, PID: os.Getpid(), Generation: env.generation}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	go c.read() // Close waits for it
	return c, nil
}

// Generation is the number of this generation: 1 for the first under this
// supervisor or since Standalone was first called, 0 otherwise.
func (c *Child) Generation() int { return c.env.generation }

// Ready says that this generation can serve, closes the sockets that nobody
// took, and waits for the acknowledgement. nil means that this generation is
// the serving one and the previous one is being drained; or, rarely, that the
// supervisor took the readiness back after this one had begun to accept:
// Draining is closed already then, and the way out is the same.
//
// Serve before calling it, in another goroutine: listeners begin to accept
// while Ready waits. It has no timeout of its own. If the supervisor gives up
// (after init_grace) or goes away, an error tells; after it this process is
// not wanted. Later calls return the first result.
//
// Without a supervisor it sends READY=1 to NOTIFY_SOCKET if that is set.
func (c *Child) Ready() error {
	c.ready.Do(func() { c.readyErr = c.sayReady() })
	return c.readyErr
}

func (c *Child) sayReady() error {
	names := c.release()
	if c.conn == nil {
		return c.sayReadyAlone()
	}
	if err := c.send(wire.Message{Verb: wire.Ready, Names: names}); err != nil {
		return err
	}
	select {
	case <-c.acked:
		return nil
	case <-c.draining:
		// Rolled back after it may have accepted: an error would make the
		// program exit under the connections it has.
		return nil
	case <-c.refused:
		return c.refusal
	case <-c.lost:
	}
	select {
	case <-c.acked: // was the last thing it said
		return nil
	case <-c.refused:
		return c.refusal
	default:
		return fmt.Errorf("handover: ready: %w", c.lostCause)
	}
}

// sayReadyAlone is Ready without a supervisor of ours.
func (c *Child) sayReadyAlone() error {
	state := "READY=1"
	if c.self != nil {
		if err := c.self.sayReady(); err != nil {
			return err
		}
		if c.env.upgradesItself() { // the process that systemd has started may be another
			state = fmt.Sprintf("READY=1\nMAINPID=%d", os.Getpid())
		}
	}
	if c.env.notify == "" {
		return nil
	}
	if err := sdnotify.Notify(c.env.notify, state); err != nil {
		return fmt.Errorf("handover: ready: %w", err)
	}
	return nil
}

// release ends the taking: it closes what is left and names what was taken.
func (c *Child) release() (taken []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late = true
	for i := range c.socks {
		s := &c.socks[i]
		if s.taken {
			taken = append(taken, s.name)
		} else if s.fd >= 0 {
			closeFD(s.fd)
			s.fd = -1
		}
	}
	return taken
}

// Extend asks for d more of init grace, counted from now, for a start that
// takes long. It may be repeated. The answer is not waited for. Without any
// supervisor it does nothing.
func (c *Child) Extend(d time.Duration) error {
	switch {
	case d <= 0:
		return fmt.Errorf("handover: extend by %v: not positive", d)
	case c.conn != nil:
		return c.send(wire.Message{Verb: wire.Extend, ExtendNS: int64(d)})
	case c.env.notify == "":
		return nil
	}
	// Rounded up: the unit is the microsecond, and 0 would mean nothing.
	usec := (d + time.Microsecond - 1) / time.Microsecond
	if err := sdnotify.Notify(c.env.notify, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", usec)); err != nil {
		return fmt.Errorf("handover: extend: %w", err)
	}
	return nil
}

// Draining is closed when the supervisor asks this generation to finish: stop
// accepting, complete what is in flight, exit. It is not closed if the
// supervisor dies (serve on), and never without a supervisor but by Standalone.
func (c *Child) Draining() <-chan struct{} { return c.draining }

// DrainReason is why this generation is to finish: "stop" and "removed" (the
// service ends, none takes over), "reload" and "exclusive" (another generation
// does), "rolled back" (the one before this serves on). It is "" before Draining is
// closed and where nobody said; of two the last one counts, as when a stop finds a
// generation still draining after a hand-over. Standalone says "reload" and "stop".
func (c *Child) DrainReason() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

// drain notes that this generation is to finish. Only one goroutine calls it: read
// or, without a supervisor, self.watch.
func (c *Child) drain(why string, deadlineNS int64) {
	c.mu.Lock()
	if why != "" {
		c.why = why
	}
	c.mu.Unlock()
	c.deadline.set(deadlineNS)
	closeOnce(c.draining)
}

// LameDuck is closed when the program should tell its clients to go elsewhere
// while it serves on as before; Draining follows. Never closed without a
// supervisor.
func (c *Child) LameDuck() <-chan struct{} { return c.lameDuck }

// Close ends the connection to the supervisor and closes the sockets that were
// not taken. A listener of Listen that does not accept yet never will; one that
// does is its owner's. Safe twice.
func (c *Child) Close() error {
	c.closeOnce.Do(func() { c.closeErr = c.close() })
	return c.closeErr
}

func (c *Child) close() error {
	c.release()
	if c.self != nil {
		c.self.close()
	}
	if c.conn == nil {
		return nil
	}
	// Only a courtesy: the supervisor also sees the end of the connection.
	_ = c.conn.Send(wire.Message{Verb: wire.Bye})
	err := c.conn.Close()
	<-c.lost
	if err != nil {
		return fmt.Errorf("handover: close: %w", err)
	}
	return nil
}

// send sends m, with the end of the peer under its own name.
func (c *Child) send(m wire.Message) error {
	err := c.conn.Send(m)
	switch {
	case err == nil:
		return nil
	case peerGone(err):
		return fmt.Errorf("handover: %s: %w (%w)", m.Verb, ErrSupervisorGone, err)
	case errors.Is(err, os.ErrClosed):
		return fmt.Errorf("handover: %s: the Child is closed: %w", m.Verb, net.ErrClosed)
	}
	return fmt.Errorf("handover: %s: %w", m.Verb, err)
}
