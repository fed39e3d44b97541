package drain

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A Server is an http.Server that leaves without losing a request. Make one
// with HTTP. It is a Target.
//
// Why not http.Server.Shutdown: it drops a request that it has already read
// from an accepted connection if Shutdown began meanwhile (net/http server.go,
// the check after readRequest; golang/go#75591), it closes idle connections
// under a request that is on its way, and it forgets hijacked connections.
//
// What Shutdown does here instead, and what becomes of whom:
//
//   - The listeners are closed, nothing else. What waits in the kernel's queue
//     is left to the other holders of the socket. A connection that Accept
//     returned in the same moment is served like any other.
//   - Every request whose handler starts from now on is answered with
//     "Connection: close", so the client knows before it sends another one.
//   - HTTP/2 connections get a GOAWAY that names no last stream, and the real
//     one only when the client has answered a PING behind the first: see h2.go.
//     Nothing that the client sends meanwhile is refused.
//   - A request that was read before, or whose handler runs or streams, ends as
//     usual; its connection stays open for one more request.
//   - Idle connections, and new ones that have not sent a byte, stay open until
//     their next response or until the context ends. No fixed wait is long
//     enough for a client that pauses longer.
//   - A request that asks for an upgrade is not told to close, and a hijacked
//     connection counts until it is closed.
//   - The contexts of requests end shortly before the context's deadline, with
//     the cause ErrEnding, so that a handler can still answer.
//   - Only when no connection is left, or the context has ended, is
//     http.Server.Shutdown called. In the latter case a request that arrives on
//     an idle connection in just that moment is lost: see IncompleteError.
//
// Limits. Requests pipelined behind one that was answered with "Connection:
// close" are not answered (RFC 9112 section 9.6); the response before them is
// whole. "OPTIONS *" is answered by net/http itself, without the header.
// HTTP/2 by golang.org/x/net/http2/h2c is a hijacked connection to net/http and
// to this package; http.Server.Protocols does it better.
// Functions given to http.Server.RegisterOnShutdown run last; use Draining to
// tell long streams and WebSockets to end.
//
// The fields are set before Serve and not changed after it.
type Server struct {
	// Age bounds the life of a connection. One that is asked to leave gets
	// "Connection: close" with its next response, or GOAWAY at once on HTTP/2. A
	// hijacked one can be asked by its handler alone, and is left to that: see
	// Streams. The zero value sets no bound.
	Age Age

	// Window spreads the leave: each connection is asked at a random moment of
	// it, so that the clients do not all come back at once; at most half of the
	// time that the context gives. When a supervisor shortens that, those who
	// have not been asked are, within half of what is left. 0: all are asked at
	// the begin.
	Window time.Duration

	// Answer is how long before the deadline of Shutdown's context the contexts
	// of requests end. 0 is 1 s, and at most half of the time there is;
	// negative: they do not end.
	Answer time.Duration

	// Label names a request in the account of what was cut. It is called when
	// the handler starts, so r.Pattern is not known yet. nil is the method and
	// the pattern of the ServeMux, or the path with any other handler.
	Label func(r *http.Request) string

	srv   *http.Server
	group Group
	leave atomic.Pointer[leaving] // nil: nobody is asked to leave

	planning sync.Mutex // one plan at a time

	live requests

	once      sync.Once // installs the hooks
	next      http.Handler
	previous  func(net.Conn, http.ConnState)
	foreign   sync.Map  // *tls.Conn given by the caller's own TLS listener -> *member
	wrapHTTP2 sync.Once // once net/http has configured HTTP/2

	finish   sync.Once
	finished chan struct{} // closed when Shutdown returns or Close is called
}

// HTTP wraps srv. It borrows srv and must be called before any Serve. Set
// srv.Handler and srv.ConnState before the first Serve of the result, which
// wraps both, once; an existing ConnState hook goes on being called. Listeners
// served by srv itself are not drained by this package.
func HTTP(srv *http.Server) *Server {
	s := &Server{srv: srv, finished: make(chan struct{})}
	s.group.probed = true
	return s
}

// Serve accepts connections from l and answers them. It takes l. It may be
// called for several listeners.
//
// It always returns an error: http.ErrServerClosed once Shutdown has returned
// or Close was called, else why accepting failed. Unlike the method of
// http.Server it does not return while the drain is under way, so a main
// function that ends when Serve returns cuts nothing off.
//
// If l is a TLS listener, a hijacked connection of it counts only until it is
// hijacked; with ServeTLS it counts until it is closed.
func (s *Server) Serve(l net.Listener) error {
	s.once.Do(s.install)
	return s.outcome(s.srv.Serve(s.listener(l)))
}

// ServeTLS is Serve for HTTPS. The arguments are those of http.Server.ServeTLS.
func (s *Server) ServeTLS(l net.Listener, certFile, keyFile string) error {
	s.once.Do(s.install)
	return s.outcome(s.srv.ServeTLS(s.listener(l), certFile, keyFile))
}

// outcome holds back the end of a Serve loop until the drain is over.
func (s *Server) outcome(err error) error {
	if !s.group.shut.Load() {
		return err
	}
	<-s.finished
	return http.ErrServerClosed
}

// Draining returns a channel that is closed when Shutdown or Close begins.
func (s *Server) Draining() <-chan struct{} { return s.group.Draining() }

// Len returns how many connections are open, hijacked ones included.
func (s *Server) Len() int { return s.group.Len() }

// CloseListeners closes the listeners and does nothing else: connections are served
// as before and not asked to leave, and Serve goes on until they are over. Shutdown
// and Close do it first by themselves.
func (s *Server) CloseListeners() error { return s.group.CloseListeners() }

// Shutdown is the lossless leave described at Server. It returns nil when every
// connection has ended. When ctx ends first it closes idle connections, leaves
// requests being answered and hijacked connections to Close, and returns an
// *IncompleteError with both counts. It may be called several times.
func (s *Server) Shutdown(ctx context.Context) error {
	defer s.finish.Do(s.end)
	defer s.begin(ctx)()
	err := s.group.Shutdown(ctx)
	incomplete, late := errors.AsType[*IncompleteError](err)
	if !late {
		// Nobody is connected, so this only marks srv as closed and runs its
		// hooks. A context that ends just now is no failure any more.
		if herr := s.srv.Shutdown(ctx); herr != nil && ctx.Err() == nil {
			err = errors.Join(err, herr)
		}
		return err
	}
	incomplete.Active, incomplete.Idle = s.count()
	incomplete.Stragglers = s.stragglers()
	// With a context that has ended this closes what is idle and waits for
	// nothing; what it returns is the end of that context.
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if herr := s.srv.Shutdown(ended); herr != nil && !errors.Is(herr, context.Canceled) {
		return errors.Join(incomplete, herr)
	}
	if incomplete.Active+incomplete.Idle == 0 {
		return nil // the last one ended between the deadline and the count
	}
	return incomplete
}

// Close closes listeners and connections at once, hijacked ones included. Safe
// to call twice.
func (s *Server) Close() error {
	defer s.finish.Do(s.end)
	// The group first: from its begin on a Serve loop that ends is an expected
	// end, and hijacked connections are known to the group alone.
	gerr := s.group.Close()
	herr := s.srv.Close()
	if errors.Is(herr, net.ErrClosed) {
		herr = nil
	}
	return errors.Join(gerr, herr)
}

func (s *Server) end() { close(s.finished) }

// upgrades tells whether the response may have to say "Connection: Upgrade":
// a reverse proxy adds its header to ours, and the client would see both. The
// offer of h2c is made by plain clients, and net/http never takes it up.
func upgrades(r *http.Request) bool {
	u := r.Header.Get("Upgrade")
	return u != "" && !strings.EqualFold(u, "h2c")
}

// connState keeps the state for the account that Shutdown gives.
func (s *Server) connState(c net.Conn, state http.ConnState) {
	if h, ok := c.(interface{ original() net.Conn }); ok {
		c = h.original() // what the caller's hook has seen before HTTP/2 began
	}
	if m := s.memberOf(c); m != nil {
		m.state.Store(int32(state))
		if state == http.StateHijacked {
			m.hijacked()
		}
		if _, ok := s.foreign.Load(c); ok && (state == http.StateClosed || state == http.StateHijacked) {
			s.foreign.Delete(c)
			m.leave()
		}
	}
	if s.previous != nil {
		s.previous(c, state)
	}
}

// memberOf finds the member of this server behind a connection.
func (s *Server) memberOf(c net.Conn) *member {
	if m := memberOf(c); m != nil && m.group == &s.group {
		return m
	}
	// Either unknown, or tracked by a Group of the caller's, beneath its TLS
	// listener.
	if v, ok := s.foreign.Load(c); ok {
		m, _ := v.(*member)
		return m
	}
	return nil
}

// count splits what is left. A new connection that has not sent a whole request
// head waits for a request, and so does an idle one.
func (s *Server) count() (active, idle int) {
	s.group.mu.Lock()
	defer s.group.mu.Unlock()
	for m := range s.group.members {
		switch http.ConnState(m.state.Load()) {
		case http.StateNew, http.StateIdle:
			idle++
		default:
			active++
		}
	}
	return active, idle
}

// listener tracks l for net/http.
func (s *Server) listener(l net.Listener) net.Listener {
	return &httpListener{s.group.track(l), s}
}

// An httpListener differs from a Group's in that a *tls.Conn is handed on as it
// is: net/http finds TLS, and with it HTTP/2, by a type assertion.
type httpListener struct {
	*listener
	server *Server
}

// Accept returns the next connection, which counts until it is closed.
func (l *httpListener) Accept() (net.Conn, error) {
	// net/http has set up its protocols by now, and no connection exists yet.
	l.server.wrapHTTP2.Do(l.server.installHTTP2)
	c, m, err := l.group.accept(l.Listener)
	if err != nil {
		return nil, err
	}
	l.server.adopt(m)
	if t, ok := c.(*tls.Conn); ok {
		l.server.foreign.Store(net.Conn(t), m)
		return t, nil
	}
	return wrap(c, m), nil
}
