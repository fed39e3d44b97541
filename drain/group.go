package drain

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Group is work in flight: connections, requests, jobs. It covers what
// http.Server does not: raw TCP, hijacked connections, workers.
//
// The zero value is ready. A Group must not be copied after first use. All
// methods may be called from several goroutines at once. Once Shutdown or Close
// has been called a Group admits nothing more, for good.
type Group struct {
	shut     atomic.Bool // nothing more is accepted: CloseListeners was called
	draining atomic.Bool // the same as begun being closed, cheap to read per request

	mu        sync.Mutex
	begun     chan struct{} // closed when the drain begins
	empty     chan struct{} // closed when the drain has begun and nothing is left
	emptied   bool
	members   map[*member]struct{}
	listeners map[*listener]struct{}
	lerr      error // of closing them
	accepting int   // Accept calls under way; each may still bring a connection
	observer  *observer
	came      arrivals
	probed    bool // connections may be probes: who knows better counts them
}

// arrivals counts the connections since it was reset.
type arrivals struct {
	n    int
	last time.Time
}

// A member is one piece of work in a Group.
type member struct {
	group *Group
	kind  Kind
	since time.Time
	label string       // fixed by StartNamed
	conn  net.Conn     // what Close closes; nil for work admitted by Start
	state atomic.Int32 // http.ConnState, kept for Server; StateNew is 0
	http  httpMember   // used by Server alone

	observer *observer // who was told of its begin
}

// Start admits one piece of work, a job. The caller must call done when it has
// ended; calling done again does nothing. While draining the error is
// ErrDraining and done is nil.
func (g *Group) Start() (done func(), err error) { return g.StartNamed("") }

// StartNamed is Start for work with a name, which a straggler is called by.
func (g *Group) StartNamed(name string) (done func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.draining.Load() {
		return nil, ErrDraining
	}
	m := g.joinLocked(Job, nil)
	m.label = name
	return m.leave, nil
}

// Draining returns a channel that is closed when Shutdown or Close begins and the
// group's listeners have been closed. Use it to tell clients to go away: WebSocket close 1001 or 1012, a last event, an
// end of the protocol's own kind.
func (g *Group) Draining() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.initLocked()
	return g.begun
}

// Len returns how much work is in flight.
func (g *Group) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.members)
}

// Shutdown closes the group's listeners, admits nothing more and waits until no
// work is left. It returns nil then.
//
// When ctx ends first it returns an *IncompleteError and leaves the work
// running: Close cuts connections. Shutdown waits for an event and never polls.
// It may be called several times, also after Close. An error of closing a
// listener is returned only when no work was left.
func (g *Group) Shutdown(ctx context.Context) error {
	lerr := g.begin()
	g.mu.Lock()
	empty := g.empty
	g.mu.Unlock()
	select {
	case <-empty:
		return lerr
	default: // a context that has ended does not win over a drain that has
	}
	select {
	case <-empty:
		return lerr
	case <-ctx.Done():
		left := g.stragglers()
		return &IncompleteError{Active: len(left), Stragglers: left, Err: context.Cause(ctx)}
	}
}

// stragglers lists the work in flight, the oldest first.
func (g *Group) stragglers() []Straggler {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	list := make([]Straggler, 0, len(g.members))
	for m := range g.members {
		list = append(list, Straggler{m.kind, m.name(), now.Sub(m.since)})
	}
	slices.SortFunc(list, byAge)
	return list
}

// byAge orders stragglers, the oldest first.
func byAge(a, b Straggler) int { return cmp.Compare(b.Age, a.Age) }

// name is what a straggler is called by.
func (m *member) name() string {
	if m.label == "" && m.conn != nil {
		return m.conn.RemoteAddr().String()
	}
	return m.label
}

// observe sets where the group reports to. Work that is in flight already is
// reported as begun, so that its end does not count below zero.
func (g *Group) observe(o *observer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.observer = o
	for m := range g.members {
		m.observer = o
		o.begin(m.kind)
	}
}

// arrivals returns how many connections came since the last reset, and when the
// last of them did.
func (g *Group) arrivals(reset bool) (n int, last time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if reset {
		g.came = arrivals{}
	}
	return g.came.n, g.came.last
}

// Close closes the group's listeners and tracked connections at once. Work
// admitted by Start cannot be cut from here; it is told by Draining. Safe to
// call twice.
func (g *Group) Close() error {
	errs := []error{g.begin()}
	g.mu.Lock()
	var cut []*member
	for m := range g.members {
		if m.conn != nil {
			cut = append(cut, m)
		}
	}
	g.mu.Unlock()
	for _, m := range cut {
		// One that its own goroutine closed meanwhile is not a failure.
		if err := m.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
		m.leave() // its owner may never look at it again
	}
	return errors.Join(errs...)
}

// CloseListeners closes the group's listeners and does nothing else: what they have
// accepted goes on, Start admits, and nobody is told. Shutdown and Close do it first
// by themselves. Later calls return the same result.
//
// They are closed outside the lock: closing one waits for nothing of ours, but a
// foreign listener's Close may.
func (g *Group) CloseListeners() error {
	g.mu.Lock()
	g.initLocked()
	g.shut.Store(true)
	var ls []*listener
	for l := range g.listeners {
		ls = append(ls, l)
	}
	g.mu.Unlock()
	var errs []error
	for _, l := range ls {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(errs) > 0 {
		g.lerr = errors.Join(append(errs, g.lerr)...)
	}
	return g.lerr
}

// begin starts the drain, once. The listeners are closed before: whoever is told to
// leave comes back at once, and shall not be accepted here again.
func (g *Group) begin() error {
	err := g.CloseListeners()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.draining.Swap(true) {
		close(g.begun)
	}
	g.signalLocked()
	return err
}

func (g *Group) initLocked() {
	if g.begun == nil {
		g.begun = make(chan struct{})
		g.empty = make(chan struct{})
		g.members = make(map[*member]struct{})
		g.listeners = make(map[*listener]struct{})
	}
}

// joinLocked adds a member; c may be nil.
func (g *Group) joinLocked(k Kind, c net.Conn) *member {
	g.initLocked()
	m := &member{group: g, kind: k, since: time.Now(), conn: c, observer: g.observer}
	m.observer.begin(m.kind)
	g.members[m] = struct{}{}
	return m
}

// leave ends a member. A second call finds it gone and does nothing.
func (m *member) leave() {
	g := m.group
	g.mu.Lock()
	_, in := g.members[m]
	delete(g.members, m)
	o := m.observer
	timer := m.http.timer
	g.signalLocked()
	g.mu.Unlock()
	if !in {
		return
	}
	if timer != nil {
		timer.Stop()
	}
	o.end(m.kind, time.Since(m.since), m.name)
}

// signalLocked closes empty when the drain has nothing to wait for. It happens
// once: after the drain has begun only an Accept that was under way can add a
// member, and those are counted as well.
func (g *Group) signalLocked() {
	if g.draining.Load() && !g.emptied && len(g.members) == 0 && g.accepting == 0 {
		g.emptied = true
		close(g.empty)
	}
}

// accept takes one connection from inner and makes it a member.
//
// A connection that the kernel hands out just as the listener is being closed
// is ours and nobody else's: it joins although the drain has begun, and the
// count of Accepts under way keeps the drain from ending before it has.
func (g *Group) accept(inner net.Listener) (net.Conn, *member, error) {
	g.mu.Lock()
	if g.shut.Load() {
		g.mu.Unlock()
		a := inner.Addr()
		return nil, nil, &net.OpError{Op: "accept", Net: a.Network(), Addr: a, Err: net.ErrClosed}
	}
	g.accepting++
	g.mu.Unlock()

	c, err := inner.Accept()

	g.mu.Lock()
	defer g.mu.Unlock()
	g.accepting--
	if err != nil {
		g.signalLocked()
		return nil, nil, err
	}
	m := g.joinLocked(Connection, c)
	if !g.probed {
		g.came.n, g.came.last = g.came.n+1, m.since
	}
	return c, m, nil
}
