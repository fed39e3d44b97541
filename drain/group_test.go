package drain_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/handoverd/handover/drain"
)

// A pipeListener hands out ends of net.Pipe, which synctest can see through.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{make(chan net.Conn), make(chan struct{})}
}

func (l *pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- server
	return client
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { close(l.closed); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func TestGroupWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g drain.Group
		first, err := g.Start()
		if err != nil {
			t.Fatal(err)
		}
		second, err := g.Start()
		if err != nil {
			t.Fatal(err)
		}
		first()
		first() // twice is once
		if n := g.Len(); n != 1 {
			t.Fatalf("Len = %d, want 1", n)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Second, errors.New("deadline of the test"))
		defer cancel()
		begin := time.Now()
		err = g.Shutdown(ctx)
		inc, ok := errors.AsType[*drain.IncompleteError](err)
		if !ok || inc.Active != 1 || !strings.Contains(err.Error(), "1 active: deadline of the test") {
			t.Fatalf("Shutdown = %v", err)
		}
		if took := time.Since(begin); took != 30*time.Second {
			t.Errorf("gave up after %v", took)
		}
		if _, err := g.Start(); !errors.Is(err, drain.ErrDraining) {
			t.Errorf("Start while draining = %v", err)
		}
		<-g.Draining()
		again := make(chan error)
		go func() { again <- g.Shutdown(t.Context()) }()
		time.Sleep(time.Minute)
		second()
		if err := <-again; err != nil {
			t.Errorf("second Shutdown = %v", err)
		}
		if err := g.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown of an empty group with an ended context = %v", err)
		}
	})
}

func TestGroupListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g drain.Group
		pl := newPipeListener()
		l := g.Listener(pl)
		if _, ok := l.(syscall.Conn); ok {
			t.Error("a listener without a descriptor claims syscall.Conn")
		}
		type accepted struct {
			conn net.Conn
			err  error
		}
		got := make(chan accepted)
		accept := func() { c, err := l.Accept(); got <- accepted{c, err} }
		go accept()
		client := pl.dial()
		first := <-got
		go accept()
		synctest.Wait()
		done := make(chan error)
		go func() { done <- g.Shutdown(t.Context()) }()
		if second := <-got; !errors.Is(second.err, net.ErrClosed) {
			t.Errorf("Accept while draining = %v", second.err)
		}
		synctest.Wait()
		if n := g.Len(); n != 1 {
			t.Errorf("Len = %d, want the open connection", n)
		}
		first.conn.Close()
		first.conn.Close()
		if err := <-done; err != nil {
			t.Errorf("Shutdown = %v", err)
		}
		late := newPipeListener()
		if _, err := g.Listener(late).Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept of a listener that came late = %v", err)
		}
		<-late.closed
		client.Close()
	})
}

// lastMoment is a listener whose Accept returns a connection only once it is
// being closed: the kernel had handed one out just then.
type lastMoment struct{ *pipeListener }

func (l lastMoment) Accept() (net.Conn, error) {
	<-l.closed
	return <-l.conns, nil
}

func TestConnectionAcceptedInTheLastMomentIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g drain.Group
		pl := newPipeListener()
		l := g.Listener(lastMoment{pl})
		got := make(chan net.Conn)
		go func() { c, _ := l.Accept(); got <- c }()
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- g.Shutdown(t.Context()) }()
		<-pl.closed
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("Shutdown returned %v with an Accept under way", err)
		default:
		}
		client := pl.dial()
		server := <-got
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("Shutdown returned %v with a connection open", err)
		default:
		}
		server.Close()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		client.Close()
	})
}

func TestGroupCloseCutsConnections(t *testing.T) {
	var g drain.Group
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := g.Listener(inner)
	if _, ok := l.(syscall.Conn); !ok {
		t.Error("a TCP listener lost syscall.Conn")
	}
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := server.(syscall.Conn); !ok {
		t.Error("a TCP connection lost syscall.Conn")
	}
	for range 2 {
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the connection was not closed: %v", err)
	}
	if err := g.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown after Close = %v", err)
	}
}

// A stubborn target ignores its context and Close.
type stubborn struct{ free chan struct{} }

func (s stubborn) Shutdown(context.Context) error { <-s.free; return nil }
func (s stubborn) Close() error                   { return nil }

func TestAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g drain.Group
		done, _ := g.Start()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		time.AfterFunc(10*time.Second, done)
		begin := time.Now()
		if err := drain.All(ctx, &g, &http.Server{}); err != nil || time.Since(begin) != 10*time.Second {
			t.Fatalf("All = %v after %v", err, time.Since(begin))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var busy, free drain.Group
		if _, err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		s := stubborn{make(chan struct{})}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		begin := time.Now()
		err := drain.All(ctx, &busy, &free, s)
		if took := time.Since(begin); took > 31*time.Second {
			t.Errorf("All took %v", took)
		}
		if !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "*drain.Group: drain: incomplete, 1 active") ||
			!strings.Contains(err.Error(), "stubborn: Shutdown did not return") {
			t.Errorf("All = %v", err)
		}
		close(s.free)
	})
}
