package drain

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/handoverd/handover/internal/until"
)

// A Reason says why a stream is asked to leave.
type Reason int

// The reasons.
const (
	// Leaving is that the program is draining.
	Leaving Reason = iota

	// Aged is that the stream has reached its age.
	Aged
)

// Streams are long-lived connections: WebSockets, event streams, raw TCP. Each
// is told in its own protocol when it is time to go, and its client connects
// anew. The zero value is ready; set the fields before use. It is a Target.
//
// How to say goodbye: a WebSocket sends close 1012, service restart (the
// registry of RFC 6455 section 11.7); an event stream sends "retry: MS" and a
// last event, and its handler returns; raw TCP says whatever its protocol has,
// or shuts down its writing side.
type Streams struct {
	// Window spreads the goodbyes of a drain evenly, with jitter, so that the
	// clients do not all connect anew at once; at most half of the time that
	// the context gives. When a supervisor shortens that, those that are left
	// are said within half of what is left. 0: all at the begin.
	Window time.Duration

	// Age bounds the life of a stream in normal times, with a goodbye. The zero
	// value sets no bound.
	Age Age

	group Group

	mu      sync.Mutex
	list    map[*stream]struct{}
	until   time.Time // the end of a drain's window
	closed  bool
	leaving bool
}

// A stream is one long-lived connection.
type stream struct {
	owner   *Streams
	goodbye func(Reason)
	cut     func() error
	done    func()

	// Guarded by owner.mu.
	timer *time.Timer
	at    time.Time // of the goodbye of a drain
	told  bool      // the goodbye has been said
}

// Add registers a stream. label names it should it be cut. goodbye is called
// once, in a goroutine of its own, when the stream is to leave; it should tell
// the client and may wait for it; nil: the client is not told. cut closes the connection at once; it is
// called when the stream has not ended in time, and may be nil. The caller calls
// done when the stream has ended; calling it again does nothing.
//
// A stream that comes while draining is admitted, for its connection is here,
// and gets its goodbye within what is left of the window. After Close the error
// is ErrDraining.
func (s *Streams) Add(label string, goodbye func(Reason), cut func() error) (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrDraining
	}
	st := &stream{owner: s, goodbye: goodbye, cut: cut}
	leave := s.group.admit(Stream, label)
	st.done = sync.OnceFunc(func() {
		s.mu.Lock()
		delete(s.list, st)
		if st.timer != nil {
			st.timer.Stop()
		}
		s.mu.Unlock()
		leave()
	})
	if s.list == nil {
		s.list = make(map[*stream]struct{})
	}
	s.list[st] = struct{}{}
	switch {
	case s.leaving:
		left := max(time.Until(s.until), 0)
		st.replace(time.Duration(rand.Float64() * float64(left)))
	case s.Age.Max > 0:
		st.timer = time.AfterFunc(s.Age.draw(), st.expire)
	}
	return st.done, nil
}

// leave says goodbye because of a drain.
func (st *stream) leave() { st.tell(Leaving) }

// expire says goodbye because of age, and cuts after the grace.
func (st *stream) expire() { st.tell(Aged) }

// tell says goodbye, once, in the goroutine of its timer.
func (st *stream) tell(why Reason) {
	s := st.owner
	s.mu.Lock()
	_, in := s.list[st]
	say := in && !st.told
	st.told = true
	if say && why == Aged && s.Age.Grace > 0 {
		st.timer = time.AfterFunc(s.Age.Grace, st.end)
	}
	s.mu.Unlock()
	if say && st.goodbye != nil {
		st.goodbye(why)
	}
}

// end cuts one stream. It stays in the account until its owner calls done.
func (st *stream) end() {
	if st.cut != nil {
		// It is closed for being late; how that ends is no news.
		_ = st.cut()
	}
}

// Len returns how many streams there are.
func (s *Streams) Len() int { return s.group.Len() }

// Draining returns a channel that is closed when Shutdown or Close begins.
func (s *Streams) Draining() <-chan struct{} { return s.group.Draining() }

// Shutdown says goodbye to every stream, spread over the window, and waits until
// all have ended. When ctx ends first it returns an *IncompleteError and leaves
// the others to Close.
func (s *Streams) Shutdown(ctx context.Context) error {
	defer until.OnNearer(ctx, func() { s.plan(ctx) })()
	s.plan(ctx)
	return s.group.Shutdown(ctx)
}

// plan sets the moments of the goodbyes that are left to say, by the deadline that
// ctx has now.
func (s *Streams) plan(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	window := portion(ctx, s.Window)
	switch left := time.Until(s.until); {
	case !s.leaving:
		s.leaving = true
		s.until = time.Now().Add(window)
		list := make([]*stream, 0, len(s.list))
		for st := range s.list {
			list = append(list, st)
		}
		// One place each, and a random moment in it: even, and not in step with
		// anything.
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		for i, st := range list {
			at := (float64(i) + rand.Float64()) / float64(len(list)) * float64(window)
			st.replace(time.Duration(at))
		}
	case window < left: // those that are left keep their order
		s.until = time.Now().Add(window)
		for st := range s.list {
			st.replace(time.Duration(float64(time.Until(st.at)) / float64(left) * float64(window)))
		}
	}
}

// replace sets the goodbye in the place of an age. One that was told already
// keeps its grace. owner.mu is held.
func (st *stream) replace(at time.Duration) {
	if st.told {
		return
	}
	if st.timer != nil {
		st.timer.Stop()
	}
	st.at = time.Now().Add(at)
	st.timer = time.AfterFunc(at, st.leave)
}

// Close cuts every stream at once. Safe to call twice.
func (s *Streams) Close() error {
	s.mu.Lock()
	s.closed, s.leaving = true, true
	list := make([]*stream, 0, len(s.list))
	for st := range s.list {
		list = append(list, st)
	}
	s.mu.Unlock()
	var errs []error
	for _, st := range list {
		if st.cut != nil {
			errs = append(errs, st.cut())
		}
	}
	return errors.Join(append(errs, s.group.Close())...)
}

func (s *Streams) observe(o *observer) { s.group.observe(o) }

func (s *Streams) arrivals(bool) (n int, last time.Time) { return 0, time.Time{} }

// admit is StartNamed of another kind, and also while draining: what has come
// already is here and nowhere else. The drain does not end before it has, unless
// it was over.
func (g *Group) admit(k Kind, label string) (leave func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.joinLocked(k, nil)
	m.label = label
	return m.leave
}
