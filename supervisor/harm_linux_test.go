package supervisor

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
)

// wakeUps is how often the goroutine of a watcher was woken.
func (w *harmWatcher) wakeUps() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.woken
}

// watched are the sockets that a watcher has reported, as they come.
func watched(t *testing.T, w *harmWatcher) <-chan *fdpass.Socket {
	t.Helper()
	out, over := make(chan *fdpass.Socket, 16), make(chan struct{})
	go func() { // waited for by the cleanup
		defer close(over)
		for {
			harmed, err := w.wait()
			if err != nil {
				if !errors.Is(err, os.ErrClosed) {
					t.Error(err)
				}
				return
			}
			for _, s := range harmed {
				select {
				case out <- s:
				default: // more than any test expects
				}
			}
		}
	}()
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
		<-over
	})
	return out
}

func bindFor(t *testing.T, address string) *fdpass.Socket {
	t.Helper()
	a, o, err := fdpass.ParseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	s, err := fdpass.Bind(a, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = s.Unlink(), s.Close() })
	return s
}

// Connections, served or waiting in the queue, wake the watcher not once; shutdown(2) and connect(2) with AF_UNSPEC do,
// each time.
func TestHarmWatcher(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for _, address := range []string{"tcp4://127.0.0.1:0", "tcp6://[::1]:0", "unix://" + path} {
		t.Run(address, func(t *testing.T) {
			w, err := newHarmWatcher()
			if err != nil {
				t.Fatal(err)
			}
			s := bindFor(t, address)
			if err := w.add(s); err != nil {
				t.Fatal(err)
			}
			events := watched(t, w)
			visits(t, s, 1000)
			before := w.wakeUps()
			visits(t, s, 1000)
			if n := w.wakeUps() - before; n != 0 {
				t.Errorf("1000 connections have woken the watcher %d times", n)
			}
			expect := func(what string) {
				t.Helper()
				select {
				case got := <-events:
					if got != s {
						t.Errorf("%s: told of %v", what, got)
					}
				case <-time.After(30 * time.Second):
					t.Fatalf("%s is not noticed", what)
				}
			}
			if !isInet(s.Addr().Kind) {
				if err := unix.Shutdown(s.FD(), unix.SHUT_RD); err != nil {
					t.Fatal(err)
				}
				expect("shutdown")
				return
			}
			for range 3 {
				if err := unix.Shutdown(s.FD(), unix.SHUT_RDWR); err != nil {
					t.Fatal(err)
				}
				expect("shutdown")
				if err := s.Relisten(); err != nil {
					t.Fatal(err)
				}
			}
			visits(t, s, 10)
		})
	}
}

// visits connects n times, and accepts every second one.
func visits(t *testing.T, s *fdpass.Socket, n int) {
	t.Helper()
	network, address := "tcp", dialAddress(s.Addr())
	if !isInet(s.Addr().Kind) {
		network = "unix"
	}
	var waiting []net.Conn
	for i := range n {
		c, err := net.Dial(network, address)
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			fd, _, err := unix.Accept4(s.FD(), unix.SOCK_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = unix.Close(fd), c.Close()
			continue
		}
		waiting = append(waiting, c)
	}
	for _, c := range waiting {
		if fd, _, err := unix.Accept4(s.FD(), unix.SOCK_CLOEXEC); err == nil {
			_ = unix.Close(fd)
		}
		_ = c.Close()
	}
}

// A socket that was closed here, and lives on elsewhere, is not told of.
func TestHarmWatcherForgets(t *testing.T) {
	w, err := newHarmWatcher()
	if err != nil {
		t.Fatal(err)
	}
	s, other := bindFor(t, "tcp4://127.0.0.1:0"), bindFor(t, "tcp4://127.0.0.1:0")
	for _, s := range []*fdpass.Socket{s, other} {
		if err := w.add(s); err != nil {
			t.Fatal(err)
		}
	}
	events := watched(t, w)
	held, err := unix.FcntlInt(uintptr(s.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(held) }()
	w.remove(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, fd := range []int{held, other.FD()} {
		if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case got := <-events:
		if got != other {
			t.Errorf("told of %v", got)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("nothing is noticed")
	}
	// A shutdown may wake more than once: the other one may be told of again.
	for len(events) > 0 {
		if got := <-events; got != other {
			t.Errorf("told of %v", got)
		}
	}
	if len(w.sockets) != 1 {
		t.Errorf("%d sockets, want 1", len(w.sockets))
	}
}
