package drain

import (
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/handoverd/handover/internal/until"
)

// answerTime is the default of Server.Answer and Workers.Return.
const answerTime = time.Second

// An httpMember is what a Server knows of one connection.
type httpMember struct {
	timer   *time.Timer // for its age, then for its grace; guarded by group.mu
	slot    float64     // where in the window it is asked to leave, 0 to 1
	asked   atomic.Bool // to leave, because of its age
	first   atomic.Bool // it has brought a request
	probe   atomic.Bool // by which a prober asked: see Sequence.ReadyHandler
	h2      atomic.Pointer[h2conn]
	current atomic.Pointer[request] // the latest one; the only one on HTTP/1
}

// A leaving is when a Server's connections are asked to leave: each at its slot,
// those up to slot at once, and the others spread over window from begin on.
type leaving struct {
	begin  time.Time
	slot   float64
	window time.Duration
}

// at is when the connection of a slot is asked.
func (l *leaving) at(slot float64) time.Time {
	if slot <= l.slot || l.window == 0 {
		return l.begin
	}
	return l.begin.Add(time.Duration((slot - l.slot) / (1 - l.slot) * float64(l.window)))
}

// hurry is the plan for those who have not been asked yet, within a shorter window;
// nil if l is as short.
func (l *leaving) hurry(now time.Time, window time.Duration) *leaving {
	gone := now.Sub(l.begin)
	if left := l.window - gone; left <= 0 || window >= left {
		return nil
	}
	return &leaving{now, l.slot + (1-l.slot)*float64(gone)/float64(l.window), window}
}

// memberKey finds a connection's member in the context of its requests.
type memberKey struct{}

// install puts the wrappers into the borrowed server.
func (s *Server) install() {
	s.next = s.srv.Handler
	if s.next == nil {
		s.next = http.DefaultServeMux
	}
	s.live.init(s.next, s.Label)
	s.previous = s.srv.ConnState
	s.srv.Handler = http.HandlerFunc(s.handle)
	s.srv.ConnState = s.connState
	base, conn := s.srv.BaseContext, s.srv.ConnContext
	s.srv.BaseContext = func(l net.Listener) context.Context {
		ctx := context.Background()
		if base != nil {
			ctx = base(l)
		}
		return s.live.context(ctx)
	}
	s.srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if conn != nil {
			ctx = conn(ctx, c)
		}
		if m := s.memberOf(c); m != nil {
			ctx = context.WithValue(ctx, memberKey{}, m)
		}
		return ctx
	}
}

// adopt begins the life of a connection.
func (s *Server) adopt(m *member) {
	m.http.slot = rand.Float64()
	if s.Age.Max > 0 {
		m.arm(s.Age.draw(), func() { s.expire(m) })
	}
}

// arm sets the one timer of a member, unless that has left.
func (m *member) arm(d time.Duration, f func()) {
	m.group.mu.Lock()
	defer m.group.mu.Unlock()
	if _, in := m.group.members[m]; in {
		m.http.timer = time.AfterFunc(d, f)
	}
}

// expire asks a connection to leave that has reached its age, and gives it its
// grace.
func (s *Server) expire(m *member) {
	if m.isHijacked() {
		return
	}
	m.http.asked.Store(true)
	if h := m.http.h2.Load(); h != nil {
		h.goAway()
	}
	if s.Age.Grace > 0 {
		m.arm(s.Age.Grace, m.cut)
	}
}

// cut closes a connection under its owner's hands.
func (m *member) cut() {
	if m.isHijacked() {
		return // it was never asked
	}
	// It is closed for being open too long; how that ends is no news.
	_ = m.conn.Close()
	m.leave()
}

// isHijacked tells whether a connection belongs to a handler, which alone can say
// goodbye on it.
func (m *member) isHijacked() bool { return http.ConnState(m.state.Load()) == http.StateHijacked }

// begin closes the listeners, then starts the clocks of a leave, and returns what
// stops them.
func (s *Server) begin(ctx context.Context) (stop func()) {
	_ = s.group.begin() // the error is group.Shutdown's to return
	unwatch := until.OnNearer(ctx, func() { s.plan(ctx) })
	s.plan(ctx)
	if s.Answer < 0 {
		return unwatch
	}
	answer := s.Answer
	if answer == 0 {
		answer = answerTime
	}
	a := before(ctx, answer, s.live.end)
	return func() { unwatch(); a.cancel() }
}

// plan sets when connections are asked to leave, by the deadline that ctx has now.
func (s *Server) plan(ctx context.Context) {
	s.planning.Lock()
	defer s.planning.Unlock()
	now := time.Now()
	l := &leaving{begin: now, window: portion(ctx, s.Window)}
	if old := s.leave.Load(); old != nil {
		if l = old.hurry(now, l.window); l == nil {
			return
		}
	}
	s.leave.Store(l)
	s.askHTTP2()
}

// mustLeave tells whether a connection is asked to leave by its next response.
// A drain that begins after the look leaves it open for one more request, which
// is the safe side. m is nil for a connection that nobody tracks.
func (s *Server) mustLeave(m *member) bool {
	if m != nil && m.http.asked.Load() {
		return true
	}
	if s.leave.Load() == nil {
		return false
	}
	return m == nil || s.wait(m) <= 0
}

// wait is how long it is until a connection is asked to leave by a drain that
// has begun.
func (s *Server) wait(m *member) time.Duration {
	return time.Until(s.leave.Load().at(m.http.slot))
}
