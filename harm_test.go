//go:build linux

package handover_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/supervisor"
)

// repairLimit is the time in which a harmed socket has to be mended.
const repairLimit = time.Second

// holder gives a copy of a service's socket, as a program has it: what is done to it is done for everybody.
func (s *scene) holder(service, socket string) int {
	s.t.Helper()
	fd, ok := s.descriptors()[s.socket(service, socket).Inode]
	if !ok {
		s.t.Fatalf("handoverd does not hold socket %s of %s", socket, service)
	}
	copied := s.take(fd)
	if copied < 0 {
		s.t.Fatalf("socket %s of %s is gone", socket, service)
	}
	return copied
}

// harm does something to a socket under load. It returns when the event tells that it was mended, which has to be within
// repairLimit, and ends the window in which the load may fail when new clients are served again.
func (s *scene) harm(tr *traffic, what string, do func() error, says string) supervisor.Event {
	s.t.Helper()
	w := tr.Mark(what)
	began := time.Now()
	if err := do(); err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
	e := s.WaitEvent(s.events, what+": "+says, func(e supervisor.Event) bool {
		return e.Kind == "note" && strings.Contains(e.Text, says)
	})
	took := e.Time.Sub(began)
	s.t.Logf("%-40s mended after %v: %s", what, took.Round(10*time.Microsecond), e.Text)
	if took > repairLimit {
		s.t.Errorf("%s: mended after %v, want at most %v", what, took, repairLimit)
	}
	tr.more(20)
	w.End()
	tr.more(50)
	return e
}

// onlyInside ends a load and checks that nothing failed but in the windows of harm, and how.
func (tr *traffic) onlyInside(kinds ...drill.Kind) {
	t := tr.s.t
	t.Helper()
	r := tr.Run.Stop()
	t.Logf("%-11s %6d requests  %3d failures %v, in the windows %v", tr.name, r.Sent, r.Failed(), r.Failures, r.InsideFailures)
	allowed := map[drill.Kind]bool{}
	for _, k := range kinds {
		allowed[k] = true
	}
	for kind, n := range r.Failures {
		if n != r.InsideFailures[kind] || !allowed[kind] {
			t.Errorf("%d failures of kind %s, %d of them in the windows of harm, allowed are %v:\n%s", n, kind, r.InsideFailures[kind], kinds, &r)
		}
	}
}

// disconnect is connect(2) with AF_UNSPEC, of which package unix has no address.
func disconnect(fd int) error {
	sa := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa))
	if errno != 0 {
		return os.NewSyscallError("connect", errno)
	}
	return nil
}

// A program shuts a TCP listener down, or disconnects it: it listens again at once, on the same port, and whoever comes
// is served.
func TestScenarioHarmTCP(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{restart: "backoff_min = \"1ms\"\nbackoff_max = \"1ms\""}, childService{name: "other"})
	address := s.address("web", "http")
	fresh, other := s.fresh(address), s.fresh(s.address("other", "http"))
	fd := s.holder("web", "http")
	defer func() { _ = unix.Close(fd) }()
	for range 3 {
		e := s.harm(fresh, "shutdown(2)", func() error { return unix.Shutdown(fd, unix.SHUT_RDWR) }, "it listens again")
		if e.Service != "web" || !strings.Contains(e.Text, "by web generation ") {
			t.Errorf("the event does not say who it was: %+v", e)
		}
		s.harm(fresh, "connect(2) with AF_UNSPEC", func() error { return disconnect(fd) }, "it listens again")
	}
	if got := s.address("web", "http"); got != address {
		t.Errorf("the address was %s and is %s", address, got)
	}
	s.WaitLog("it listens again, who was in its queue is lost")
	other.end()
	// Who waited in the queue is reset, on a busy machine before it has seen that it is connected; who came meanwhile is refused; and a program that takes EINVAL of accept(2) for the
	// end of its socket ends, with what it had accepted.
	fresh.onlyInside(drill.KindReset, drill.KindResetConnect, drill.KindRefused, drill.KindEOF, drill.KindTruncated)
	s.Stop()
}

// unixScene is a service on a UNIX path with a load.
func unixScene(t *testing.T, p childService) (s *scene, tr *traffic, path string) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	dir, err := os.MkdirTemp("/dev/shm", "hds")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path = filepath.Join(dir, "web.sock")
	p.socket, p.env = fmt.Sprintf("http = %q", "unix://"+path), `TESTCHILD_NETWORK = "unix"`
	s = newScene(t, p)
	tr = s.load("unix", drill.Load{
		Network: "unix", Address: path, Mode: drill.ModeFresh, Clients: 8, Delay: 2 * time.Millisecond, Spread: 20 * time.Millisecond, Pause: 5 * time.Millisecond,
	})
	return s, tr, path
}

// The path of a UNIX socket is deleted, or replaced by a file or by another socket: the same socket is put back, and
// what serves notices nothing.
func TestScenarioHarmPath(t *testing.T) {
	t.Parallel()
	s, tr, path := unixScene(t, childService{})
	inode := s.socket("web", "http").Inode
	const back = "brought back"
	s.harm(tr, "the path is deleted", func() error { return os.Remove(path) }, back)
	s.harm(tr, "the path is renamed away", func() error { return os.Rename(path, path+".away") }, back)
	s.harm(tr, "the path is replaced by a file", func() error {
		return errors.Join(os.WriteFile(path+".new", nil, 0o600), os.Rename(path+".new", path))
	}, back)
	s.harm(tr, "the path is replaced by another socket", func() error {
		if err := os.Remove(path); err != nil {
			return err
		}
		ln, err := net.Listen("unix", path)
		if errors.Is(err, unix.EADDRINUSE) { // it was brought back before
			return nil
		}
		if err == nil {
			ln.(*net.UnixListener).SetUnlinkOnClose(false)
			err = ln.Close()
		}
		return err
	}, back)
	if got := s.socket("web", "http").Inode; got != inode {
		t.Errorf("it was socket %d and is %d", inode, got)
	}
	// Without the hard link there is nothing to put back: a new one is bound, and handed out.
	s.harm(tr, "the path and its link are deleted", func() error {
		return errors.Join(os.Remove(filepath.Join(filepath.Dir(path), ".web.sock.handoverd")), os.Remove(path))
	}, "a new one was bound")
	s.reachesServing("web", 2)
	tr.sees(2)
	s.only("web", 2)
	tr.more(50)
	tr.onlyInside(drill.KindRefused, drill.KindReset, drill.KindEOF)
	s.Stop()
	_ = os.Remove(path + ".away")
}

// A UNIX listener that was shut down is dead for good: a new one is at the path within the limit, and a new generation
// has it, of the spec that served.
func TestScenarioHarmUNIXShutdown(t *testing.T) {
	t.Parallel()
	s, tr, path := unixScene(t, childService{})
	inode := s.socket("web", "http").Inode
	// The file says something else meanwhile, which a repair does not look at.
	s.configure(childService{mode: "crash-init", socket: fmt.Sprintf("http = %q", "unix://"+path)})
	for generation := 2; generation <= 3; generation++ {
		fd := s.holder("web", "http")
		s.harm(tr, "shutdown(2) of a UNIX listener", func() error { return unix.Shutdown(fd, unix.SHUT_RD) }, "a new one was bound")
		_ = unix.Close(fd)
		e := s.reaches("web", generation, supervisor.PhaseStarting)
		if e.Why != string(supervisor.WhyRepair) {
			t.Errorf("generation %d is started for %q", generation, e.Why)
		}
		s.reachesServing("web", generation)
		tr.sees(generation)
		s.only("web", generation)
	}
	so := s.socket("web", "http")
	if so.Inode == inode || !so.Listening {
		t.Errorf("the socket is %+v, and was %d", so, inode)
	}
	tr.more(50)
	tr.onlyInside(drill.KindRefused, drill.KindReset, drill.KindEOF)
	s.Stop()
}

// O_NONBLOCK is of the open file description, which all holders share: cleared by one, it is set again when a generation
// changes its phase, and when somebody asks for the status.
func TestScenarioHarmNonblock(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{})
	fd := s.holder("web", "http")
	defer func() { _ = unix.Close(fd) }()
	nonblocking := func() bool {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil {
			t.Fatal(err)
		}
		return flags&unix.O_NONBLOCK != 0
	}
	cleared := func(generation int, do func()) {
		t.Helper()
		if err := unix.SetNonblock(fd, false); err != nil {
			t.Fatal(err)
		}
		do()
		s.WaitEvent(s.events, "O_NONBLOCK is set again", func(e supervisor.Event) bool {
			return strings.Contains(e.Text, "O_NONBLOCK was cleared") && strings.Contains(e.Text, fmt.Sprintf("web generation %d", generation))
		})
		if !nonblocking() {
			t.Error("O_NONBLOCK is not set")
		}
	}
	cleared(1, s.HUP)
	s.reaches("web", 1, supervisor.PhaseGone)
	cleared(2, func() { s.Status() })
	s.only("web", 2)
	s.Stop()
}
