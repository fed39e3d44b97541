package drain_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/handoverd/handover/drain"
)

// A rig is a drain.Server on a loopback port.
type rig struct {
	t      *testing.T
	server *drain.Server
	addr   string
	served chan error
}

func newRig(t *testing.T, srv *http.Server) *rig {
	t.Helper()
	return newRigOf(t, srv, func(*drain.Server) {})
}

func newRigOf(t *testing.T, srv *http.Server, set func(*drain.Server)) *rig {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t, drain.HTTP(srv), l.Addr().String(), make(chan error, 1)}
	set(r.server)
	go func() { r.served <- r.server.Serve(l) }()
	t.Cleanup(func() {
		r.server.Close()
		if err := <-r.served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve = %v", err)
		}
	})
	return r
}

// shutdown begins the drain and returns once it has begun.
func (r *rig) shutdown(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() { done <- r.server.Shutdown(ctx) }()
	<-r.server.Draining()
	return done
}

// A client is one raw connection. It never repeats anything.
type client struct {
	t    *testing.T
	conn net.Conn
	br   *bufio.Reader
}

func (r *rig) dial() *client {
	r.t.Helper()
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return &client{r.t, c, bufio.NewReader(c)}
}

func (c *client) send(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c.conn, s); err != nil {
		c.t.Fatal(err)
	}
}

// answer reads one response and returns its body and whether it closes.
func (c *client) answer() (body string, closes bool) {
	c.t.Helper()
	resp, err := http.ReadResponse(c.br, nil)
	if err != nil {
		c.t.Fatalf("no response: %v", err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatalf("body cut off after %q: %v", b, err)
	}
	return string(b), resp.Close
}

const get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

func hello(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }

func TestIdleConnectionIsServedAfterTheDrainBegan(t *testing.T) {
	r := newRig(t, &http.Server{Handler: http.HandlerFunc(hello)})
	idle, fresh := r.dial(), r.dial()
	idle.send(get)
	if body, closes := idle.answer(); body != "hello" || closes {
		t.Fatalf("before the drain: %q, closes %v", body, closes)
	}
	// fresh has not sent a byte; the exchange of a later connection proves
	// that it was accepted.
	last := r.dial()
	last.send(get)
	last.answer()
	done := r.shutdown(t.Context())
	for _, c := range []*client{idle, fresh, last} {
		select {
		case err := <-done:
			t.Fatalf("Shutdown returned %v with connections open", err)
		case err := <-r.served:
			t.Fatalf("Serve returned %v before the drain was over", err)
		default:
		}
		c.send(get)
		if body, closes := c.answer(); body != "hello" || !closes {
			t.Errorf("while draining: %q, closes %v", body, closes)
		}
	}
	if err := <-done; err != nil {
		t.Errorf("Shutdown = %v", err)
	}
}

// The race of golang/go#75591, held still: ConnState reports StateActive when a
// request has been read and before net/http looks whether it is shutting down.
func TestRequestReadAsTheDrainBegins(t *testing.T) {
	t.Run("drain.Server answers", func(t *testing.T) {
		var r *rig
		ready, done := make(chan struct{}), make(chan error, 1)
		srv := &http.Server{Handler: http.HandlerFunc(hello), ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateActive {
				<-ready
				go func() { done <- r.server.Shutdown(t.Context()) }()
				<-r.server.Draining()
			}
		}}
		r = newRig(t, srv)
		close(ready)
		c := r.dial()
		c.send(get)
		if body, closes := c.answer(); body != "hello" || !closes {
			t.Errorf("got %q, closes %v", body, closes)
		}
		if err := <-done; err != nil {
			t.Errorf("Shutdown = %v", err)
		}
	})
	t.Run("http.Server.Shutdown loses it", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		begun, done := make(chan struct{}), make(chan error, 1)
		srv := &http.Server{Handler: http.HandlerFunc(hello)}
		srv.RegisterOnShutdown(func() { close(begun) })
		srv.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateActive {
				go func() { done <- srv.Shutdown(t.Context()) }()
				<-begun
			}
		}
		go srv.Serve(l)
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, get)
		if b, _ := io.ReadAll(c); len(b) != 0 {
			t.Errorf("net/http answered %q: the loss this package exists for is gone", b)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestStreamUnderWayEndsWhole(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	r := newRig(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		io.WriteString(w, "first ")
		http.NewResponseController(w).Flush()
		if q.URL.Path == "/stream" {
			close(started)
			<-release
		}
		io.WriteString(w, "last")
	})})
	c := r.dial()
	c.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
	<-started
	done := r.shutdown(t.Context())
	close(release)
	if body, closes := c.answer(); body != "first last" || closes {
		t.Errorf("got %q, closes %v; want the stream whole and one more round", body, closes)
	}
	c.send(get)
	if body, closes := c.answer(); body != "first last" || !closes {
		t.Errorf("got %q, closes %v", body, closes)
	}
	if err := <-done; err != nil {
		t.Errorf("Shutdown = %v", err)
	}
}

// Each of these leaves bytes unread, which a plain close would turn into a reset
// that can overtake the response.
func TestResponseSurvivesUnreadInput(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	tests := []struct{ name, request, want string }{
		{"a body nobody reads", "POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12345", "refused"},
		{"a big body nobody reads", fmt.Sprintf("POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(big), big), "refused"},
		{"expect, refused", "POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n", "refused"},
		{"pipelined", get + get, "hello"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				if q.URL.Path == "/refuse" {
					w.WriteHeader(http.StatusForbidden)
					io.WriteString(w, "refused")
					return
				}
				hello(w, q)
			})})
			c := r.dial()
			c.send(get)
			c.answer()
			done := r.shutdown(t.Context())
			go io.WriteString(c.conn, tt.request) // may fail when the server has heard enough
			if body, closes := c.answer(); body != tt.want || !closes {
				t.Errorf("got %q, closes %v", body, closes)
			}
			c.conn.Close()
			if err := <-done; err != nil {
				t.Errorf("Shutdown = %v", err)
			}
		})
	}
}

func TestExpectContinueWhileDraining(t *testing.T) {
	r := newRig(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { io.Copy(w, q.Body) })})
	c := r.dial()
	c.send(get)
	c.answer()
	done := r.shutdown(t.Context())
	c.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
	resp, err := http.ReadResponse(c.br, nil)
	if err != nil || resp.StatusCode != http.StatusContinue {
		t.Fatalf("want 100, got %+v, %v", resp, err)
	}
	c.send("12345")
	if body, closes := c.answer(); body != "12345" || !closes {
		t.Errorf("got %q, closes %v", body, closes)
	}
	if err := <-done; err != nil {
		t.Errorf("Shutdown = %v", err)
	}
}

func hijack(w http.ResponseWriter, _ *http.Request) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	conn.(io.ReaderFrom).ReadFrom(strings.NewReader("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"))
	io.Copy(conn, rw)
}

const upgrade = "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"

func TestHijackedConnectionIsKeptToTheDeadline(t *testing.T) {
	r := newRig(t, &http.Server{Handler: http.HandlerFunc(hijack)})
	c := r.dial()
	c.send(upgrade)
	if resp, err := http.ReadResponse(c.br, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", resp, err)
	}
	echo := func() {
		t.Helper()
		c.send("ping")
		b := make([]byte, 4)
		if _, err := io.ReadFull(c.br, b); err != nil || string(b) != "ping" {
			t.Fatalf("echo %q, %v", b, err)
		}
	}
	echo()
	ctx, cancel := context.WithCancelCause(t.Context())
	done := r.shutdown(ctx)
	echo()
	cancel(errors.New("enough"))
	err := <-done
	if inc, ok := errors.AsType[*drain.IncompleteError](err); !ok || inc.Active != 1 || inc.Idle != 0 || inc.Err.Error() != "enough" {
		t.Fatalf("Shutdown = %v", err)
	}
	echo() // left running
	r.server.Close()
	if _, err := c.br.ReadByte(); err == nil {
		t.Error("Close left the connection open")
	}
}

func TestHijackedConnectionEndsTheDrainWhenItCloses(t *testing.T) {
	r := newRig(t, &http.Server{Handler: http.HandlerFunc(hijack)})
	c := r.dial()
	c.send(upgrade)
	http.ReadResponse(c.br, nil)
	done := r.shutdown(t.Context())
	c.conn.Close()
	if err := <-done; err != nil {
		t.Errorf("Shutdown = %v", err)
	}
}

func TestDeadlineClosesIdleAndLeavesActive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		l := newPipeListener()
		s := drain.HTTP(&http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path == "/slow" {
				<-release
			}
			hello(w, q)
		})})
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		idle := &client{t: t, conn: l.dial()}
		idle.br = bufio.NewReader(idle.conn)
		idle.send(get)
		idle.answer()
		busy := &client{t: t, conn: l.dial()}
		busy.br = bufio.NewReader(busy.conn)
		busy.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
		synctest.Wait()

		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
		defer cancel()
		begin := time.Now()
		err := s.Shutdown(ctx)
		inc, ok := errors.AsType[*drain.IncompleteError](err)
		if !ok || inc.Active != 1 || inc.Idle != 1 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown = %v", err)
		}
		if took := time.Since(begin); took != 15*time.Minute {
			t.Errorf("Shutdown took %v", took)
		}
		if _, err := idle.br.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("idle connection: %v, want EOF", err)
		}
		close(release)
		if body, closes := busy.answer(); body != "hello" || !closes {
			t.Errorf("the active request got %q, closes %v", body, closes)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve = %v", err)
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Errorf("second Shutdown = %v", err)
		}
	})
}

func TestTLS(t *testing.T) {
	t.Parallel() // waits for seconds that are net/http's and ours
	ts := httptest.NewTLSServer(nil)
	defer ts.Close()
	config := &tls.Config{Certificates: ts.TLS.Certificates}
	roots := ts.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	serve := map[string]func(*drain.Server, net.Listener) error{
		"ServeTLS":         func(s *drain.Server, l net.Listener) error { return s.ServeTLS(l, "", "") },
		"the caller's own": func(s *drain.Server, l net.Listener) error { return s.Serve(tls.NewListener(l, config)) },
		"the caller's group": func(s *drain.Server, l net.Listener) error {
			return s.Serve(tls.NewListener(new(drain.Group).Listener(l), config))
		},
	}
	for name, f := range serve {
		for _, h2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s h2=%v", name, h2), func(t *testing.T) {
				if h2 && name != "ServeTLS" {
					return // net/http offers h2 by itself only there
				}
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				s := drain.HTTP(&http.Server{Handler: http.HandlerFunc(hello), TLSConfig: config.Clone()})
				go f(s, l)
				c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "example.com"}, ForceAttemptHTTP2: h2}}
				ask := func() {
					t.Helper()
					resp, err := c.Get("https://" + l.Addr().String())
					if err != nil {
						t.Fatal(err)
					}
					defer resp.Body.Close()
					if b, err := io.ReadAll(resp.Body); string(b) != "hello" || err != nil || (resp.ProtoMajor == 2) != h2 {
						t.Fatalf("%q, %v, %s", b, err, resp.Proto)
					}
				}
				ask()
				done := make(chan error, 1)
				go func() { done <- s.Shutdown(t.Context()) }()
				<-s.Draining()
				if !h2 {
					ask() // on the same connection: the listener is closed
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		}
	}
}
