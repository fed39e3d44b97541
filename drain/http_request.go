package drain

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A request is one whose handler has not returned.
type request struct {
	r                  *http.Request
	label              string // by Server.Label
	method, host, path string
	since              time.Time
	first              bool        // of its connection
	hijacked           atomic.Bool // it lives on as a connection
	observer           *observer
}

// requests are those in flight in one Server.
type requests struct {
	mux      *http.ServeMux // nil with any other handler
	labelled func(*http.Request) string
	observer atomic.Pointer[observer]
	ended    atomic.Bool // end was called

	mu     sync.Mutex
	flying map[*request]struct{}
	cancel []context.CancelCauseFunc
}

func (q *requests) init(next http.Handler, label func(*http.Request) string) {
	q.mux, _ = next.(*http.ServeMux)
	q.labelled = label
	q.flying = make(map[*request]struct{})
}

// context is the base of the contexts of one listener's requests.
func (q *requests) context(base context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(base)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cancel = append(q.cancel, cancel)
	return ctx
}

// end ends the contexts of all requests.
func (q *requests) end() {
	q.ended.Store(true)
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, cancel := range q.cancel {
		cancel(ErrEnding)
	}
}

// enter begins the account of a request.
func (q *requests) enter(r *http.Request, m *member) *request {
	f := &request{r: r, method: r.Method, host: r.Host, path: r.URL.Path, since: time.Now(), observer: q.observer.Load()}
	if q.labelled != nil {
		f.label = q.labelled(r)
	}
	if m != nil {
		m.http.current.Store(f)
		f.first = m.http.first.CompareAndSwap(false, true)
	}
	q.mu.Lock()
	q.flying[f] = struct{}{}
	q.mu.Unlock()
	f.observer.begin(Request)
	return f
}

// leave ends the account of a request, in the goroutine of its handler.
func (q *requests) leave(f *request, m *member, h http.Header) {
	q.mu.Lock()
	delete(q.flying, f)
	q.mu.Unlock()
	if m != nil && f.first && !m.http.probe.Load() {
		m.group.mu.Lock()
		m.group.came.n++
		if m.since.After(m.group.came.last) {
			m.group.came.last = m.since
		}
		m.group.mu.Unlock()
	}
	took := time.Since(f.since)
	if f.hijacked.Load() || strings.HasPrefix(h.Get("Content-Type"), "text/event-stream") {
		took = 0 // it lives for as long as its client likes: no measure of a request
	}
	f.observer.end(Request, took, f.ownName)
}

// ownName is the label as the handler's goroutine may read it.
func (f *request) ownName() string {
	switch {
	case f.label != "":
		return f.label
	case f.r.Pattern == "":
		return f.method + " " + f.path
	case strings.Contains(f.r.Pattern, " "):
		return f.r.Pattern // has a method
	}
	return f.method + " " + f.r.Pattern
}

// name is the label as any goroutine may read it: Request.Pattern belongs to
// the handler's, so the mux is asked again.
func (q *requests) name(f *request) string {
	if f.label != "" || q.mux == nil {
		copied := request{r: new(http.Request), label: f.label, method: f.method, path: f.path}
		return copied.ownName()
	}
	again := &http.Request{Method: f.method, Host: f.host, URL: &url.URL{Path: f.path}}
	_, again.Pattern = q.mux.Handler(again)
	copied := request{r: again, method: f.method, path: f.path}
	return copied.ownName()
}

// handle tells the client to go away if its connection is to leave.
func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	m, _ := r.Context().Value(memberKey{}).(*member)
	if s.live.ended.Load() {
		// What was under way has been told to end. A request that comes as late
		// as this is not hopeless: most take milliseconds.
		r = r.WithContext(context.WithoutCancel(r.Context()))
	}
	f := s.live.enter(r, m)
	defer func() { s.live.leave(f, m, w.Header()) }()
	if s.mustLeave(m) {
		s.ask(w, r, m)
	}
	s.next.ServeHTTP(w, r)
}

// ask tells one client to go away.
func (s *Server) ask(w http.ResponseWriter, r *http.Request, m *member) {
	if m != nil {
		if h := m.http.h2.Load(); h != nil {
			// In a goroutine of the timer's: a client that does not read would
			// hold up its own handler.
			time.AfterFunc(0, h.goAway)
			return
		}
	}
	if !upgrades(r) {
		w.Header().Set("Connection", "close")
	}
}

// hijacked names the member after the request that it was, for it outlives it.
// Called in the goroutine of the handler that hijacks.
func (m *member) hijacked() {
	f := m.http.current.Load()
	if f == nil {
		return
	}
	f.hijacked.Store(true)
	m.group.mu.Lock()
	defer m.group.mu.Unlock()
	m.label = f.ownName()
}

// stragglers lists requests and hijacked connections, the oldest first.
func (s *Server) stragglers() []Straggler {
	now := time.Now()
	var list []Straggler
	s.live.mu.Lock()
	for f := range s.live.flying {
		if !f.hijacked.Load() {
			list = append(list, Straggler{Request, s.live.name(f), now.Sub(f.since)})
		}
	}
	s.live.mu.Unlock()
	s.group.mu.Lock()
	for m := range s.group.members {
		if m.isHijacked() {
			list = append(list, Straggler{Connection, m.name(), now.Sub(m.since)})
		}
	}
	s.group.mu.Unlock()
	slices.SortFunc(list, byAge)
	return list
}

func (s *Server) observe(o *observer) {
	s.live.observer.Store(o)
	s.group.observe(o)
}

// arrivals counts connections that have brought a request other than a probe's.
func (s *Server) arrivals(reset bool) (n int, last time.Time) { return s.group.arrivals(reset) }
