package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/fdleak"
	"github.com/handoverd/handover/internal/sdnotify"
	"github.com/handoverd/handover/internal/until"
	"github.com/handoverd/handover/internal/wire"
)

// supervise makes a supervised Child in this process, with sockets of the
// given names: a name that begins with "u" is UDP, any other TCP.
func supervise(t *testing.T, names ...string) (*Child, *wire.Conn) {
	t.Helper()
	fdleak.Snapshot(t)
	sup, fd, err := wire.Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sup.Close() })
	env := environ{supervised: true, control: fd, generation: 3}
	for _, name := range names {
		kind := unix.SOCK_STREAM
		if strings.HasPrefix(name, "u") {
			kind = unix.SOCK_DGRAM
		}
		s, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Bind(s, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			t.Fatal(err)
		}
		if kind == unix.SOCK_STREAM {
			if err := unix.Listen(s, 16); err != nil {
				t.Fatal(err)
			}
		}
		env.fds = append(env.fds, passed{name, s})
	}
	c, err := newChild(env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if m := recv(t, sup); m.Verb != wire.Hello || m.PID != os.Getpid() || m.Generation != 3 {
		t.Errorf("hello %+v", m)
	}
	return c, sup
}

func recv(t *testing.T, sup *wire.Conn) wire.Message {
	t.Helper()
	m, _, err := sup.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func send(t *testing.T, sup *wire.Conn, m wire.Message) {
	t.Helper()
	if err := sup.Send(m); err != nil {
		t.Fatal(err)
	}
}

func listen(t *testing.T, c *Child, name string) net.Listener {
	t.Helper()
	ln, err := c.Listen(name, "tcp", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

// acceptInto reports what Accept returns; the test waits for it.
func acceptInto(ln net.Listener, errs chan<- error) {
	c, err := ln.Accept()
	if err == nil {
		_ = c.Close()
	}
	errs <- err
}

func readyInto(c *Child, errs chan<- error) { errs <- c.Ready() }

func TestTake(t *testing.T) {
	c, _ := supervise(t, "http", "udp")
	if _, err := c.Listen("udp", "tcp", ""); err == nil || !strings.Contains(err.Error(), "the inherited socket is udp, udp4") {
		t.Errorf("a datagram socket as a listener: %v", err)
	}
	if _, err := c.Listen("http", "tcp6", ""); err == nil {
		t.Error("an IPv4 socket as tcp6")
	}
	if _, err := c.Listen("http", "udp", ""); !errors.As(err, new(net.UnknownNetworkError)) {
		t.Errorf("Listen of udp: %v", err)
	}
	listen(t, c, "http")
	_, err := c.Listen("http", "tcp", "")
	if !errors.Is(err, ErrNoSocket) || !strings.Contains(err.Error(), "taken before") {
		t.Errorf("taken twice: %v", err)
	}
	_, err = c.ListenPacket("dns", "udp", "")
	var se *SocketError
	if !errors.As(err, &se) || se.Name != "dns" || !errors.Is(err, ErrNoSocket) ||
		!strings.Contains(err.Error(), `["http" "udp"]`) {
		t.Errorf("unknown name: %v", err)
	}
	f, err := c.File("udp")
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	_ = c.Close()
	if _, err := c.File("http"); !errors.Is(err, errLate) {
		t.Errorf("after Close: %v", err)
	}
}

func TestCloseBeforeAccept(t *testing.T) {
	c, _ := supervise(t, "http")
	ln := listen(t, c, "http")
	if _, err := ln.(*listener).SyscallConn(); !errors.Is(err, errNotYet) {
		t.Errorf("SyscallConn: %v", err)
	}
	errs := make(chan error)
	go acceptInto(ln, errs)
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	if err := <-errs; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	if err := ln.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
}

func TestChildCloseFailsAccept(t *testing.T) {
	c, sup := supervise(t, "http", "spare")
	ln := listen(t, c, "http")
	errs := make(chan error)
	go acceptInto(ln, errs)
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-errs; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	if m := recv(t, sup); m.Verb != wire.Bye {
		t.Errorf("%+v, want bye", m)
	}
	if err := c.Ready(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Ready: %v", err)
	}
}

func TestReadyTwice(t *testing.T) {
	c, sup := supervise(t, "http")
	ln := listen(t, c, "http")
	errs := make(chan error)
	go readyInto(c, errs)
	if m := recv(t, sup); m.Verb != wire.Ready || !slices.Equal(m.Names, []string{"http"}) {
		t.Errorf("ready %+v", m)
	}
	send(t, sup, wire.Message{Verb: wire.Accept})
	send(t, sup, wire.Message{Verb: wire.Ack})
	if err := <-errs; err != nil {
		t.Error(err)
	}
	if _, err := ln.(*listener).SyscallConn(); err != nil {
		t.Errorf("SyscallConn while accepting: %v", err)
	}
	_ = sup.Close()
	<-c.lost
	if err := c.Ready(); err != nil {
		t.Errorf("a later call: %v", err)
	}
	if _, err := c.Listen("http", "tcp", ""); !errors.Is(err, errLate) {
		t.Errorf("Listen after Ready: %v", err)
	}
	// The supervisor is gone; what accepts goes on.
	go acceptInto(ln, errs)
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if err := <-errs; err != nil {
		t.Error(err)
	}
	if closed(c.Draining()) {
		t.Error("a lost supervisor is no request to drain")
	}
	ctx, cancel := c.DrainContext(context.Background())
	defer cancel()
	if _, ok := ctx.Deadline(); ok {
		t.Error("a deadline from a supervisor that is gone")
	}
}

func TestRefused(t *testing.T) {
	c, sup := supervise(t, "http")
	ln := listen(t, c, "http")
	errs := make(chan error)
	go readyInto(c, errs)
	recv(t, sup)
	send(t, sup, wire.Message{Verb: wire.Error, Reply: wire.Extend, Error: "not that one"})
	send(t, sup, wire.Message{Verb: wire.Error, Reply: wire.Ready, Error: "init grace of 30s is over"})
	if err := <-errs; err == nil || !strings.Contains(err.Error(), "generation 3: init grace of 30s is over") {
		t.Errorf("Ready: %v", err)
	}
	if _, err := ln.Accept(); err == nil || !strings.Contains(err.Error(), "init grace") {
		t.Errorf("Accept: %v", err)
	}
	send(t, sup, wire.Message{Verb: wire.Error, Error: "again"})
	send(t, sup, wire.Message{Verb: wire.Accept}) // too late
	send(t, sup, wire.Message{Verb: wire.LameDuck})
	<-c.LameDuck()
	if _, err := ln.Accept(); err == nil {
		t.Error("accepts after it was refused")
	}
}

func TestDrainBeforeAck(t *testing.T) {
	c, sup := supervise(t)
	errs := make(chan error)
	go readyInto(c, errs)
	recv(t, sup)
	send(t, sup, wire.Message{Verb: wire.Accept})
	for range 2 { // a new supervisor asks again
		send(t, sup, wire.Message{Verb: wire.Drain})
		if m := recv(t, sup); m.Verb != wire.Draining {
			t.Errorf("%+v, want draining", m)
		}
	}
	<-c.Draining()
	if err := <-errs; err != nil {
		t.Errorf("Ready: %v", err)
	}
}

// A stop and a hand-over are told apart by the reason, also when one follows the
// other.
func TestDrainReason(t *testing.T) {
	for _, reason := range []string{"", "reload", "exclusive", "rolled back", "of a newer supervisor", wire.ReasonStop, wire.ReasonRemoved} {
		c, sup := supervise(t)
		if c.DrainReason() != "" {
			t.Errorf("%q: reason %q before it was asked", reason, c.DrainReason())
		}
		send(t, sup, wire.Message{Verb: wire.Drain, Reason: reason})
		<-c.Draining()
		if got := c.DrainReason(); got != reason {
			t.Errorf("%q: reason %q", reason, got)
		}
		recv(t, sup)
		send(t, sup, wire.Message{Verb: wire.Drain, Reason: wire.ReasonStop})
		recv(t, sup) // the answer follows what it answers
		if got := c.DrainReason(); got != wire.ReasonStop {
			t.Errorf("%q, then a stop: reason %q", reason, got)
		}
	}
}

func TestDrainContext(t *testing.T) {
	c, sup := supervise(t)
	early, cancelEarly := c.DrainContext(context.Background())
	defer cancelEarly()
	send(t, sup, wire.Message{Verb: wire.Drain, DeadlineNS: int64(bootNow() + time.Hour)})
	recv(t, sup)
	<-c.Draining()
	ctx, cancel := c.DrainContext(context.Background())
	defer cancel()
	at, ok := ctx.Deadline()
	if left := time.Until(at); !ok || left > time.Hour-time.Second || left < time.Hour-time.Minute {
		t.Errorf("%v left, %v", left, ok)
	}
	cancelled, cancelIt := c.DrainContext(context.Background())
	cancelIt()
	if !errors.Is(context.Cause(cancelled), context.Canceled) {
		t.Errorf("cause %v", context.Cause(cancelled))
	}
	// A later deadline changes nothing, an earlier one all that are in use, and
	// tells who has planned by it.
	send(t, sup, wire.Message{Verb: wire.Drain, DeadlineNS: int64(bootNow() + 2*time.Hour)})
	recv(t, sup)
	derived, cancelDerived := context.WithCancel(ctx)
	defer cancelDerived()
	told := make(chan time.Duration, 1)
	stop := until.OnNearer(derived, func() {
		end, _ := until.Of(derived)
		told <- time.Until(end)
	})
	send(t, sup, wire.Message{Verb: wire.Drain, DeadlineNS: int64(bootNow() + time.Minute)})
	recv(t, sup)
	if left := <-told; left > time.Minute-time.Second || left < 30*time.Second {
		t.Errorf("told that %v are left, of a minute", left)
	}
	stop()
	for _, ctx := range []context.Context{early, ctx} {
		if end, ok := ctx.Deadline(); !ok || time.Until(end) > time.Minute {
			t.Errorf("after it was shortened: %v left, %v", time.Until(end), ok)
		}
	}
	send(t, sup, wire.Message{Verb: wire.Drain, DeadlineNS: int64(bootNow() + 20*time.Millisecond)})
	recv(t, sup)
	for _, ctx := range []context.Context{early, ctx} {
		<-ctx.Done()
		if cause := context.Cause(ctx); !errors.Is(cause, ErrDrainDeadline) || !errors.Is(cause, context.DeadlineExceeded) {
			t.Errorf("cause %v", cause)
		}
	}
	late, cancelLate := c.DrainContext(context.Background())
	defer cancelLate()
	<-late.Done()
	parent, cancelParent := context.WithCancelCause(context.Background())
	cancelParent(os.ErrProcessDone)
	child, cancelChild := c.DrainContext(parent)
	defer cancelChild()
	if !errors.Is(context.Cause(child), os.ErrProcessDone) {
		t.Errorf("cause %v, want the parent's", context.Cause(child))
	}
}

func TestMargin(t *testing.T) {
	for _, c := range []struct{ total, margin time.Duration }{
		{time.Hour, time.Second}, {20 * time.Second, time.Second}, {10 * time.Second, 500 * time.Millisecond},
	} {
		var d deadline
		at := bootNow() + c.total
		d.set(int64(at))
		if got := at - d.end; got > c.margin || got < c.margin-100*time.Millisecond {
			t.Errorf("%v: ends %v before, want %v", c.total, got, c.margin)
		}
	}
}

func TestExtend(t *testing.T) {
	c, sup := supervise(t)
	if err := c.Extend(5 * time.Second); err != nil {
		t.Error(err)
	}
	if m := recv(t, sup); m.Verb != wire.Extend || m.ExtendNS != 5e9 {
		t.Errorf("%+v", m)
	}
	if err := c.Extend(0); err == nil {
		t.Error("0 accepted")
	}
	_ = sup.Close()
	<-c.lost
	if err := c.Extend(time.Second); !errors.Is(err, ErrSupervisorGone) {
		t.Errorf("without a supervisor: %v", err)
	}

	notify, err := sdnotify.Listen(filepath.Join(t.TempDir(), "n"), 0o600, -1, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = notify.Close() }()
	activated := &Child{env: environ{activated: true, notify: notify.Path()}}
	if err := activated.Extend(time.Millisecond + 1); err != nil {
		t.Error(err)
	}
	if m, _, err := notify.Recv(); err != nil || m.ExtendUsec != 1001 {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestStrangeMessages(t *testing.T) {
	c, sup := supervise(t)
	for _, m := range []wire.Message{{Verb: wire.Hello}, {Verb: wire.Bound}} {
		if err := sup.Send(m, os.Stderr); err != nil { // the descriptor is closed: fdleak
			t.Fatal(err)
		}
		if got := recv(t, sup); got.Verb != wire.Error || got.Reply != m.Verb {
			t.Errorf("to %s: %+v", m.Verb, got)
		}
	}
	raw, err := sup.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, packet := range []string{"", `{"v":1,"verb":"dance"}`, "{", strings.Repeat(" ", wire.MaxPacket+1)} {
		err = raw.Write(func(fd uintptr) bool {
			err := unix.Sendmsg(int(fd), []byte(packet), nil, nil, unix.MSG_DONTWAIT)
			if err != nil {
				t.Errorf("%.10q: %v", packet, err)
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := recv(t, sup); got.Verb != wire.Error || got.Error == "" {
			t.Errorf("to %.10q: %+v", packet, got)
		}
	}
	send(t, sup, wire.Message{Verb: wire.LameDuck})
	<-c.LameDuck()
}

func TestPacketDeadlineBeforeAccept(t *testing.T) {
	c, sup := supervise(t, "udp")
	pc, err := c.ListenPacket("udp", "udp4", "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pc.Close() }()
	errs := make(chan error)
	go readInto(pc, errs)
	// A program unblocks its reader so: with a deadline in the past.
	if err := pc.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Error(err)
	}
	err = <-errs
	var ne net.Error
	if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("read: %v", err)
	}
	send(t, sup, wire.Message{Verb: wire.Accept})
	<-pc.(*packetConn).done
	// It holds on the real socket, too, until it is moved.
	go readInto(pc, errs)
	if err := <-errs; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after accept: %v", err)
	}
	if err := pc.SetDeadline(time.Time{}); err != nil {
		t.Error(err)
	}
	if _, err := pc.WriteTo([]byte("x"), pc.LocalAddr()); err != nil {
		t.Error(err)
	}
	go readInto(pc, errs)
	if err := <-errs; err != nil {
		t.Error(err)
	}
}

func readInto(pc net.PacketConn, errs chan<- error) {
	_, _, err := pc.ReadFrom(make([]byte, 1))
	errs <- err
}

func TestUnsupervisedTakesOnce(t *testing.T) {
	c, err := newChild(environ{control: -1})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := c.Listen("http", "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	if _, ok := ln.(*net.TCPListener); !ok {
		t.Errorf("%T, want package net's own", ln)
	}
	if _, err := c.Listen("http", "tcp", "127.0.0.1:0"); !errors.Is(err, ErrNoSocket) {
		t.Errorf("taken twice: %v", err)
	}
	_, err = c.Listen("again", "tcp", ln.Addr().String())
	if !errors.Is(err, unix.EADDRINUSE) || !strings.HasPrefix(err.Error(), `handover: listen "again" tcp `+ln.Addr().String()) {
		t.Errorf("address in use: %v", err)
	}
	if err := errors.Join(c.Extend(time.Second), c.Ready(), c.Close()); err != nil {
		t.Error(err)
	}
	if c.Generation() != 0 || closed(c.Draining()) || closed(c.LameDuck()) {
		t.Error("unsupervised, but it has a generation or drains")
	}
}

// TestPIDFDID: the number may have been another process's; the pidfd's inode is
// this one's alone (from Linux 6.9 on).
func TestPIDFDID(t *testing.T) {
	id, known := pidfdID(os.Getpid())
	if !known {
		t.Log("pidfds have no inodes of their own here: the variable must be ignored")
	}
	for _, c := range []struct {
		id   uint64
		mine bool
	}{{id, true}, {id + 1, !known}} {
		env, err := parseEnviron([]string{
			fmt.Sprintf("LISTEN_PID=%d", os.Getpid()), "LISTEN_FDS=1", fmt.Sprintf("LISTEN_PIDFDID=%d", c.id),
		}, os.Getpid())
		if err != nil || env.activated != c.mine {
			t.Errorf("%d: %+v, %v; want it to be taken: %v", c.id, env, err, c.mine)
		}
	}
}
