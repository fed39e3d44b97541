package drill_test

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

const delay = 5 * time.Millisecond

func newRelay(t *testing.T, server string) *drill.Relay {
	t.Helper()
	r, err := drill.NewRelay(server, delay)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func dialRelay(t *testing.T, server string) (*net.TCPConn, *drill.Relay) {
	t.Helper()
	r := newRelay(t, server)
	c, err := net.Dial("tcp", r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn), r
}

// TestRelayLosesNothing runs loads through the relay: the round trip is there, and no request is lost.
func TestRelayLosesNothing(t *testing.T) {
	ln := listen(t, "tcp", "127.0.0.1:0")
	serveSite(t, ln, 1)
	r := newRelay(t, ln.Addr().String())
	for _, l := range []drill.Load{
		{Mode: drill.ModePost, Clients: 64, Requests: 1000, Payload: 20 << 10},
		{Mode: drill.ModeFresh, Clients: 16, Requests: 300},
		{Mode: drill.ModeStream, Clients: 16, Requests: 32, Delay: 100 * time.Millisecond},
	} {
		l.Address = r.Addr()
		rep := run(t, l)
		if rep.OK != l.Requests || rep.Failed()+rep.Faults()+rep.LateResets != 0 {
			t.Errorf("%s", rep.String())
		}
		if got := time.Duration(rep.All.Min()) * time.Microsecond; got < 2*delay-10*time.Microsecond {
			t.Errorf("%s: shortest round trip %v, want at least %v", l.Mode, got, 2*delay)
		}
	}
	if s := r.Stats(); s.DialFailures != 0 || s.Resets != 0 || s.Accepted < 364 {
		t.Errorf("relay: %+v", s)
	}
}

// TestRelayHalfClose: the server sees the client's FIN, answers after it, and the client sees the server's.
func TestRelayHalfClose(t *testing.T) {
	addr := breakable(t, func(p *peer) {
		in, _ := io.ReadAll(p.c)
		p.write("got " + string(in))
	})
	c, _ := dialRelay(t, addr)
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "got hello" {
		t.Errorf("read %q, %v", got, err)
	}
}

// TestRelayServerResets: bytes before a reset arrive, then the reset, not an end.
func TestRelayServerResets(t *testing.T) {
	addr := breakable(t, func(p *peer) {
		buf := make([]byte, 5)
		if _, err := io.ReadFull(p.c, buf); err != nil {
			return
		}
		p.write("half")
		// The reset may overtake nothing: wait until the relay has read the four bytes.
		if _, err := io.ReadFull(p.c, buf); err != nil {
			return
		}
		p.reset()
	})
	c, r := dialRelay(t, addr)
	_, _ = io.WriteString(c, "hello")
	got := make([]byte, 4)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "half" {
		t.Errorf("read %q, %v", got, err)
	}
	_, _ = io.WriteString(c, "again")
	if n, err := c.Read(got); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read %d bytes, %v: want a reset", n, err)
	}
	if s := r.Stats(); s.Resets != 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestRelayClientResets: the server sees a client's reset as one, also after the server's own FIN.
func TestRelayClientResets(t *testing.T) {
	for _, halfClosed := range []bool{false, true} {
		seen := make(chan error, 1)
		addr := breakable(t, func(p *peer) {
			buf := make([]byte, 5)
			_, _ = io.ReadFull(p.c, buf)
			if halfClosed {
				_ = p.c.CloseWrite()
			}
			_, err := p.c.Read(buf)
			seen <- err
		})
		c, _ := dialRelay(t, addr)
		_, _ = io.WriteString(c, "hello")
		if halfClosed {
			if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("read %d, %v: want EOF", n, err)
			}
		}
		_ = c.SetLinger(0)
		_ = c.Close()
		if err := <-seen; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("half closed %v: server saw %v, want a reset", halfClosed, err)
		}
	}
}

// TestRelayResetAfterFIN: the client has said its last, and the reset that answers it still comes through.
func TestRelayResetAfterFIN(t *testing.T) {
	addr := breakable(t, func(p *peer) {
		_, _ = io.ReadAll(p.c)
		p.reset()
	})
	c, _ := dialRelay(t, addr)
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read %d bytes, %v: want a reset", n, err)
	}
}

// TestRelayRefused: what the server refuses reaches the client as a reset.
func TestRelayRefused(t *testing.T) {
	ln := listen(t, "tcp", "127.0.0.1:0")
	addr := ln.Addr().String()
	ln.Close()
	r := newRelay(t, addr)
	// The reset may come while the client is still in connect.
	rep := run(t, drill.Load{Address: r.Addr(), Mode: drill.ModeFresh, Clients: 1, Requests: 20})
	if n := rep.Failures[drill.KindReset] + rep.Failures[drill.KindResetConnect]; n != 20 || rep.Failed() != 20 {
		t.Errorf("want 20 resets: %s", rep.String())
	}
	if s := r.Stats(); s.DialFailures != 20 || s.Accepted != 20 {
		t.Errorf("stats %+v", s)
	}
}
