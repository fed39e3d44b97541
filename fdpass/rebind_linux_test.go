package fdpass_test

import (
	"errors"
	"net"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
)

// A UNIX listener that was shut down, whoever still holds it, makes room for a new one at its path, with its options. In
// the abstract namespace it does not.
func TestRebind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	bind := func(address string) *fdpass.Socket {
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
		if err := unix.Shutdown(s.FD(), unix.SHUT_RD); err != nil {
			t.Fatal(err)
		}
		if _, err := net.Dial("unix", a.Path); !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatalf("dial after shutdown: %v", err)
		}
		return s
	}
	dead := bind("unix://" + path + "?mode=0620")
	fresh, err := dead.Rebind()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = fresh.Unlink(), fresh.Close() }()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if dead.FD() < 0 || fresh.Inode() == dead.Inode() || fresh.Options().Mode == nil || *fresh.Options().Mode != 0o620 {
		t.Errorf("the new one is %+v, the old one %+v", fresh, dead)
	}
	if _, linked := fresh.HardLink(); !linked {
		t.Error("the new one has no hard link")
	}
	if err := dead.Unlink(); err != nil { // not its path any more
		t.Fatal(err)
	}
	if ok, err := fresh.Listening(); !ok || err != nil {
		t.Errorf("listening: %v, %v", ok, err)
	}
	if err := fresh.Restore(); err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Errorf("dial after the old one was unlinked: %v", err)
	} else {
		_ = c.Close()
	}
	if s, err := bind("unix:@handover-rebind-test").Rebind(); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("abstract: %v, %v", s, err)
	}
}

// The same for a descriptor that was never adopted. One without a path is left alone.
func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	a, o, err := fdpass.ParseAddr("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := fdpass.Bind(a, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := unix.Shutdown(s.FD(), unix.SHUT_RD); err != nil {
		t.Fatal(err)
	}
	if _, err := fdpass.Adopt(s.FD(), a, o); !errors.Is(err, fdpass.ErrShutDown) {
		t.Errorf("adopted: %v", err)
	}
	held, err := unix.FcntlInt(uintptr(s.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := fdpass.AdoptDead(held, a, o)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := dead.Listening(); ok || err != nil || dead.Inode() != s.Inode() {
		t.Errorf("as it is: listening %v, %v", ok, err)
	}
	_ = dead.Close()
	fresh, err := fdpass.Replace(s.FD(), a, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = fresh.Unlink(), fresh.Close() }()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if got := fdpass.BoundTo(path); !slices.Contains(got, s.Inode()) || !slices.Contains(got, fresh.Inode()) {
		t.Errorf("bound to the path: %v, want %d and %d", got, s.Inode(), fresh.Inode())
	}
	tcp, o, err := fdpass.ParseAddr("tcp4://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	other, err := fdpass.Bind(tcp, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if _, err := fdpass.Replace(other.FD(), other.Addr(), o); err == nil {
		t.Error("a TCP socket is replaced")
	}
	if ok, err := other.Listening(); !ok || err != nil {
		t.Errorf("it listens: %v, %v", ok, err)
	}
}
