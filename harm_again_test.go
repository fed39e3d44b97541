//go:build linux

package handover_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/supervisor"
)

// Harm that cannot be mended at once, or comes again and again. Nobody asks for the status meanwhile, which would look as well.

// note waits for a note that says this.
func (s *scene) note(says string) supervisor.Event {
	s.t.Helper()
	return s.WaitEvent(s.events, says, func(e supervisor.Event) bool { return e.Kind == "note" && strings.Contains(e.Text, says) })
}

// The directory of a path is renamed, and removed: the path is there again when the directory is, with the same socket or a
// new one, and what becomes of it then is noticed too.
func TestScenarioHarmDirectory(t *testing.T) {
	t.Parallel()
	s, tr, path := unixScene(t, childService{})
	dir := filepath.Dir(path)
	defer func() { _ = os.RemoveAll(dir + ".away") }()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	w := tr.Mark("the directory")
	must(os.Rename(dir, dir+".away"))
	s.note("could not be brought back")
	must(os.Mkdir(dir, 0o755)) // where the link does not lie
	s.note("a new one was bound")
	s.reaches("web", 2, supervisor.PhaseServing)
	tr.sees(2)

	must(os.Rename(dir, dir+".gone")) // at once: else what is removed is brought back before the directory is empty
	must(os.RemoveAll(dir + ".gone"))
	s.note("could not be brought back")
	must(os.Mkdir(dir, 0o755))
	s.note("a new one was bound")
	s.reaches("web", 3, supervisor.PhaseServing)
	tr.sees(3)

	must(os.Rename(dir, dir+".back"))
	s.note("could not be brought back")
	must(os.Rename(dir+".back", dir))
	tr.more(20)
	w.End()
	s.harm(tr, "the path is deleted", func() error { return os.Remove(path) }, "brought back")
	tr.onlyInside(drill.KindRefused, drill.KindReset, drill.KindEOF)
	s.Stop()
}

// A new socket cannot be bound, for want of descriptors: it is when there are some. And the first reload that hands it out
// fails: another one follows, by itself.
func TestScenarioHarmAgain(t *testing.T) {
	t.Parallel()
	s, tr, path := unixScene(t, childService{})
	w := tr.Mark("harm")
	fd := s.holder("web", "http")
	defer func() { _ = unix.Close(fd) }()
	lift := limitFiles(t, s.PID, 3)
	if err := unix.Shutdown(fd, unix.SHUT_RD); err != nil {
		t.Fatal(err)
	}
	s.note("a new one could not be bound")
	s.setMode("web", "crash-init")
	lift()
	s.note("a new one was bound")
	s.reaches("web", 2, supervisor.PhaseGone)
	waits, err := net.Dial("unix", path) // in the queue of the new socket
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = waits.Close() }()
	s.setMode("web", "")
	e := s.WaitEvent(s.events, "a repair serves", func(e supervisor.Event) bool {
		return e.Kind == "transition" && e.Generation > 2 && e.To == supervisor.PhaseServing
	})
	if _, err := fmt.Fprintf(waits, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	var b [12]byte
	if _, err := waits.Read(b[:]); err != nil || string(b[:8]) != "HTTP/1.1" {
		t.Errorf("who waited was answered %q, %v", b, err)
	}
	tr.sees(e.Generation)
	w.End()
	tr.onlyInside(drill.KindRefused, drill.KindReset, drill.KindEOF)
	s.only("web", e.Generation)
	s.Stop()
}

// A UNIX listener is shut down while no handoverd runs that could see it: the next one binds a new one, and hands it out.
func TestScenarioHarmBetween(t *testing.T) {
	t.Parallel()
	s, tr, path := unixScene(t, childService{})
	w := tr.Mark("harm")
	for generation := 2; generation <= 3; generation++ {
		fd := s.holder("web", "http")
		s.Signal(unix.SIGSTOP)
		if err := unix.Shutdown(fd, unix.SHUT_RD); err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fd)
		again(s.Daemon)
		s.WaitReady()
		s.only("web", generation)
		tr.sees(generation)
	}
	// It was bound, and handoverd is killed before what serves has it.
	s.events = s.Follow()
	fd := s.holder("web", "http")
	if err := unix.Shutdown(fd, unix.SHUT_RD); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	s.note("a new one was bound")
	again(s.Daemon)
	last := 0
	s.WaitStatus("a repair serves alone", func(st *supervisor.Status) bool {
		if !settledStatus(st) {
			return false
		}
		last = st.Services[0].Generations[0].Generation
		return last > 3
	})
	tr.sees(last)
	tr.more(20)
	w.End()
	tr.more(20)
	if so := s.socket("web", "http"); !so.Listening || so.Address != "unix://"+path {
		t.Errorf("the socket is %+v", so)
	}
	tr.onlyInside(drill.KindRefused, drill.KindReset, drill.KindEOF)
	s.Stop()
}

// Nothing is left but a keeper with a listener that was shut down, which has the path for as long as it is held: a fresh
// start binds a new one all the same.
func TestScenarioHarmLeft(t *testing.T) {
	t.Parallel()
	s, tr, _ := unixScene(t, childService{})
	w := tr.Mark("harm")
	fd := s.holder("web", "http")
	s.Signal(unix.SIGSTOP)
	if err := unix.Shutdown(fd, unix.SHUT_RD); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	state := s.stateFile()
	if err := unix.Kill(state.Services["web"].Generations[0].PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if err := os.WriteFile(filepath.Join(s.Dir, "state.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Start()
	s.WaitReady()
	tr.more(20)
	w.End()
	tr.more(20)
	tr.onlyInside(drill.KindRefused, drill.KindReset, drill.KindEOF)
	s.Stop()
}

// A program harms its socket each time that it begins, and another one for as long as it runs: they are mended, and
// handoverd does not become such a loop itself.
func TestScenarioHarmStorm(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	d := NewDaemon(t)
	s := &scene{Daemon: d, t: t}
	path, other := filepath.Join(d.Dir, "web.sock"), filepath.Join(d.Dir, "other.sock")
	web := childService{socket: fmt.Sprintf("http = %q", "unix://"+path), env: `TESTCHILD_NETWORK = "unix"`}
	begins := fmt.Sprintf(`command = ["/bin/sh", "-c", "/bin/rm -f %s %s; exec %s"]`, filepath.Join(d.Dir, ".web.sock.handoverd"), path, Program(t, testchildProgram))
	d.Configure(rewrite(t, web.toml(t, d), fmt.Sprintf("command = [%q]", Program(t, testchildProgram)), begins) +
		childService{name: "other", socket: fmt.Sprintf("http = %q", "unix://"+other), env: web.env}.toml(t, d))
	s.Start()
	s.WaitReady()
	events := s.Follow()
	over := time.After(3 * time.Second) // how often in a time is what is tested
	generations, back := 0, 0
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for running := true; running; {
		select {
		case e := <-events:
			if e.Kind == "transition" && e.Service == "web" && e.To == supervisor.PhaseStarting {
				generations++
			}
			if strings.Contains(e.Text, other) && strings.Contains(e.Text, "brought back") {
				back++
			}
		case <-ticker.C:
			_ = os.Remove(other)
		case <-over:
			running = false
		}
	}
	s.WaitStatus("it is repaired", func(st *supervisor.Status) bool {
		g := st.Services[0].Generations
		return len(g) > 0 && g[0].Generation > 1
	})
	t.Logf("within 3 s: %d generations, a path brought back %d times", generations, back)
	// After 100, 200, 400, 800, 1600 ms; and once each 100 ms.
	if generations > 7 || back > 35 || back < 3 {
		t.Errorf("within 3 s: %d generations, a path brought back %d times", generations, back)
	}
	s.Stop()
}

// A program connects the datagram socket that all share, which then takes from one peer alone: undone at the next look.
func TestScenarioHarmConnect(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	s := &scene{Daemon: NewDaemon(t), t: t}
	s.Configure(childService{socket: `http = "tcp4://127.0.0.1:0"` + "\nudp = \"udp4://127.0.0.1:0\"", env: `TESTCHILD_SOCKETS = "http"`}.toml(t, s.Daemon))
	s.Start()
	s.WaitReady()
	s.events = s.Follow()
	fd := s.holder("web", "udp")
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: FreePort(t), Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if so := s.socket("web", "udp"); !so.Listening {
		t.Errorf("the socket is still connected: %+v", so)
	}
	s.note("has connected the socket")
	if _, err := unix.Getpeername(fd); err == nil {
		t.Error("the socket has a peer")
	}
	s.Stop()
}

// A datagram socket that was shut down is dead for good, and hinders nothing: handoverd is upgraded, killed and reloaded
// as ever, with the socket as it is.
func TestScenarioHarmForGood(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	s := &scene{Daemon: NewDaemon(t), t: t}
	s.Configure(childService{socket: `http = "tcp4://127.0.0.1:0"` + "\nudp = \"udp4://127.0.0.1:0\"", env: `TESTCHILD_SOCKETS = "http"`}.toml(t, s.Daemon))
	s.Start()
	s.WaitReady()
	s.events = s.Follow()
	fresh := s.lightLoad()
	fd := s.holder("web", "udp")
	err := unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		err = unix.Shutdown(fd, unix.SHUT_RDWR)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	s.note("which is for good: it stays so")
	inode := s.socket("web", "udp").Inode
	s.upgrades(Program(t, handoverdProgram))
	s.MustReload()
	again(s.Daemon)
	s.WaitReady()
	s.MustReload()
	s.settle()
	if so := s.socket("web", "udp"); so.Inode != inode || so.Listening {
		t.Errorf("the socket is %+v, and was %d, which is dead", so, inode)
	}
	fresh.more(20)
	fresh.end()
	s.Stop()
}
