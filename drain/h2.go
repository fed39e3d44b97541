package drain

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// How an HTTP/2 connection leaves.
//
// net/http sends one GOAWAY, with the last stream that it has seen, and throws
// away what arrives on later streams (h2_bundle.go, goAway and processFrame;
// the same in golang.org/x/net/http2). A request that crosses it on the way is
// refused. Its client may repeat it, and knows so, but can only if it still has
// the body. RFC 9113 section 6.8 describes the way without refusal: a first
// GOAWAY with the highest stream number there is, which says no more than "use
// another connection"; then, after a round trip, the real one.
//
// The first one is written here, between two frames of net/http's, with a PING
// behind it. When the PING is answered the client has read the GOAWAY; but one
// of its goroutines may have chosen this connection before and be about to write
// its request behind the answer (net/http's own client lost 2 of 4,386 so). So
// another PING follows a second later. When that is answered net/http is told to
// do its part: it gets a GOAWAY as if the client had sent one, upon which it
// sends its own with the last stream, lets every stream end, and closes the
// connection 1 s after the last. Most clients close earlier, with their last
// stream.
//
// To get between the frames, the connection is wrapped where net/http hands it
// from HTTP/1 or TLS to HTTP/2: in http.Server.TLSNextProto. HTTP/2 without TLS
// has the entry unencryptedHTTP2 there, whose connection is inside a *tls.Conn;
// that is the one entry which takes a connection that is no *tls.Conn, so HTTP/2
// over TLS goes the same way. Where net/http (or x/net) has no such entry,
// nothing is wrapped, and "Connection: close" on a response makes net/http send
// its GOAWAY.
const unencryptedHTTP2 = "unencrypted_http2"

// nextProto is an entry of http.Server.TLSNextProto.
type nextProto = func(*http.Server, *tls.Conn, http.Handler)

// unencrypted is what net/http expects inside the *tls.Conn.
type unencrypted struct {
	net.Conn
}

// UnencryptedNetConn returns the connection.
func (u unencrypted) UnencryptedNetConn() net.Conn { return u.Conn }

// installHTTP2 wraps the entries.
func (s *Server) installHTTP2() {
	plain := s.srv.TLSNextProto[unencryptedHTTP2]
	if plain == nil {
		return
	}
	s.srv.TLSNextProto[unencryptedHTTP2] = s.plainHTTP2(plain)
	if s.srv.TLSNextProto["h2"] != nil {
		s.srv.TLSNextProto["h2"] = s.secureHTTP2(plain)
	}
}

// plainHTTP2 serves HTTP/2 without TLS. The preface has been read.
func (s *Server) plainHTTP2(next nextProto) nextProto {
	return func(srv *http.Server, c *tls.Conn, handler http.Handler) {
		if u, ok := c.NetConn().(interface{ UnencryptedNetConn() net.Conn }); ok {
			h := newH2conn(u.UnencryptedNetConn())
			if m := s.memberOf(h.Conn); m != nil {
				s.attach(m, h)
				c = tls.Client(unencrypted{h}, nil)
			}
		}
		next(srv, c, handler)
	}
}

// secureHTTP2 serves HTTP/2 over TLS, by the entry for HTTP/2 without it. That
// one takes the preface for read, so it is read here.
func (s *Server) secureHTTP2(next nextProto) nextProto {
	return func(srv *http.Server, c *tls.Conn, handler http.Handler) {
		h := newH2conn(c)
		h.preface = len(http2Preface)
		if m := s.memberOf(c); m != nil {
			s.attach(m, h)
		}
		next(srv, tls.Client(unencrypted{h2tlsConn{h, c}}, nil), handler)
	}
}

// An h2tlsConn tells net/http its TLS state, for Request.TLS and the checks of
// RFC 9113 section 9.2.
type h2tlsConn struct {
	*h2conn
	secure *tls.Conn
}

// ConnectionState returns the state of the TLS connection.
func (c h2tlsConn) ConnectionState() tls.ConnectionState { return c.secure.ConnectionState() }

// attach makes a connection known as HTTP/2.
func (s *Server) attach(m *member, h *h2conn) {
	m.http.h2.Store(h)
	if s.leave.Load() != nil {
		s.schedule(m, h)
	}
}

// askHTTP2 sends the GOAWAYs of a drain, each at its moment; again when that has
// become an earlier one. It is called when the plan is there, so that no connection
// is missed by it and attach both.
func (s *Server) askHTTP2() {
	s.group.mu.Lock()
	defer s.group.mu.Unlock()
	for m := range s.group.members {
		if h := m.http.h2.Load(); h != nil {
			s.schedule(m, h)
		}
	}
}

// schedule sends one GOAWAY at its moment. A connection that has not brought a
// request yet has a little longer, and is told with its first one: a client that
// is told to go before it could ask has connected for nothing.
func (s *Server) schedule(m *member, h *h2conn) {
	at := max(s.wait(m), 0)
	if !m.http.first.Load() {
		at = max(at, linger)
	}
	time.AfterFunc(at, h.goAway)
}
