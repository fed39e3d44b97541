//go:build linux

package handover_test

import (
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

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/supervisor"
)

// TestTakenOverInAHold: handoverd is killed in a stop when it has closed its sockets, and the program, whose clients are not
// silent, was not told yet. The next one has the socket back, without the filter that held new connections off.
func TestTakenOverInAHold(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{
		socket: fmt.Sprintf(`http = "tcp4://127.0.0.1:%d"`, FreePort(t)),
		stop:   "deadline = \"12s\"\nhold = \"quiet:3s\"", retire: "kill_grace = \"1s\"",
	})
	address, inode := s.address("web", "http"), s.socket("web", "http").Inode
	posts := s.posts(address)
	s.Signal(unix.SIGTERM)
	s.WaitLog("socket closed")
	s.Kill()
	s.Start()
	s.WaitReady()
	if generation, _ := s.Serving("web"); generation != 1 {
		t.Fatalf("generation %d serves: it was told to drain before the kill", generation)
	}
	if got := s.socket("web", "http"); got.Inode != inode {
		t.Errorf("socket %d, want the one that there was, %d", got.Inode, inode)
	}
	fresh := s.fresh(address)
	fresh.more(50)
	s.MustReload()
	fresh.sees(2)
	posts.sees(2)
	posts.end()
	fresh.end()
	s.Stop()
}

// TestTakenOverWithoutPath: the path of a UNIX socket is gone when handoverd is started again, by a stop that was under way or
// by somebody who has removed it and the hard link beside it. A new socket is bound there, and the program is given it.
func TestTakenOverWithoutPath(t *testing.T) {
	for _, how := range []string{"by a stop", "by somebody"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "s")
			s := newScene(t, childService{socket: fmt.Sprintf("http = %q", "unix://"+path), env: `TESTCHILD_NETWORK = "unix"`})
			if how == "by a stop" {
				s.Signal(unix.SIGTERM)
				eventually(t, "the path is gone", func() bool { _, err := os.Lstat(path); return err != nil })
			}
			s.Kill()
			if how == "by somebody" {
				files, err := os.ReadDir(dir)
				if err != nil || len(files) != 2 {
					t.Fatalf("%v, %v, want the path and the hard link", files, err)
				}
				for _, f := range files {
					if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
						t.Fatal(err)
					}
				}
			}
			s.Start()
			s.WaitReady()
			eventually(t, "somebody listens at the path", func() bool {
				c, err := net.Dial("unix", path)
				if err == nil {
					_ = c.Close()
				}
				return err == nil
			})
			fresh := s.load("unix", drill.Load{Network: "unix", Address: path, Mode: drill.ModeFresh, Clients: 4, Delay: 2 * time.Millisecond})
			fresh.more(20)
			s.WaitStatus("one generation is left", func(st *supervisor.Status) bool {
				return len(st.Reloads) == 0 && len(st.Services[0].Generations) == 1
			})
			fresh.more(20)
			fresh.end()
			s.Stop()
		})
	}
}

// TestConfigUnusable: a file that cannot be used, as a reload would say that refuses it, is no reason not to take over what
// runs. It goes on as it was started until the file is mended. Where nothing runs such a file is an error.
func TestConfigUnusable(t *testing.T) {
	t.Parallel()
	p := childService{restart: "backoff_min = \"20ms\"\nbackoff_max = \"20ms\""}
	s := newScene(t, p)
	fresh := s.fresh(s.address("web", "http"))
	_, pid := s.Serving("web")
	s.Kill()
	s.Configure("[service.web]\ncommand = [\n")
	s.Start()
	s.WaitReady()
	if _, now := s.Serving("web"); now != pid {
		t.Errorf("process %d serves, want %d", now, pid)
	}
	s.WaitLog("the configuration cannot be used")
	if note := s.Status().ConfigNote; !strings.HasPrefix(note, "it cannot be used") || !strings.Contains(note, "expected") {
		t.Errorf("of the file: %q", note)
	}
	s.refused("expected") // what the parser says
	if note := s.Status().ConfigNote; !strings.HasPrefix(note, "the last reload was refused: ") {
		t.Errorf("of the file: %q", note)
	}
	s.kill("web")
	s.WaitStatus("generation 2 serves", func(st *supervisor.Status) bool {
		g := st.Services[0].Generations
		return st.Ready && len(g) == 1 && g[0].Generation == 2
	})
	s.configure(p)
	s.MustReload()
	fresh.sees(3)
	fresh.end(dead{"web", 1})
	s.Stop()
	s.Configure("[service.web]\ncommand = [\n")
	s.Start()
	if code := s.WaitExit(); code == 0 {
		t.Error("it has started without anything to take over")
	}
}

// TestLockRemoved: the file "lock" of a living handoverd is removed. Another one, and a sweep, still leave everything alone.
func TestLockRemoved(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{})
	fresh := s.fresh(s.address("web", "http"))
	keeper := keeperOf(s.Daemon, 0)
	for _, command := range []string{"run", "sweep"} {
		if err := os.Remove(filepath.Join(s.Dir, "lock")); err != nil {
			t.Fatal(err)
		}
		if code, _, text := s.command(command); code != 1 || !strings.Contains(text, fmt.Sprintf("another handoverd holds the lock (pid %d)", s.PID)) {
			t.Errorf("%s: exit code %d, %s", command, code, text)
		}
	}
	if now := s.Status().Keeper.PID; now != keeper {
		t.Errorf("keeper %d, want the one that there was, %d", now, keeper)
	}
	s.MustReload()
	fresh.sees(2)
	fresh.end()
	s.Stop()
}

// TestKilledInPreflight: handoverd is killed while a new binary hangs in its pre-flight, with a copy of the lock. It does not
// keep the next one from starting.
func TestKilledInPreflight(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{})
	_, pid := s.Serving("web")
	upgrade := s.commanding("upgrade", "--binary", wrong(t, "hangs"))
	s.WaitLog("pre-flight")
	eventually(t, "the new binary runs", func() bool { return s.isRun("/hangs") })
	s.Kill()
	s.Start()
	s.WaitReady()
	if _, now := s.Serving("web"); now != pid {
		t.Errorf("process %d serves, want %d", now, pid)
	}
	<-upgrade.done
	if s.isRun("/hangs") {
		t.Error("the pre-flight still runs")
	}
	s.Stop()
}

// isRun reports whether a process of the daemon is called by a path that ends so.
func (s *scene) isRun(name string) bool {
	return slices.ContainsFunc(s.Left(), func(pid int) bool {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		path, _, _ := strings.Cut(string(args), "\x00")
		return strings.HasSuffix(path, name)
	})
}

// TestKilledInCheck: handoverd is killed while a check runs. No state knows that program, and the next handoverd ends it.
func TestKilledInCheck(t *testing.T) {
	t.Parallel()
	p := childService{}
	s := newScene(t, p)
	s.Configure(strings.Replace(p.toml(t, s.Daemon), "env = {", "check = [\"/bin/sh\", \"-c\", \"sleep 1000; :\"]\nenv = {", 1))
	s.HUP()
	left := func() int { return len(s.programs()) - 1 }
	eventually(t, "the check runs, in two processes", func() bool { return left() == 2 })
	s.Kill()
	s.Start()
	s.WaitReady()
	eventually(t, "the check has been ended", func() bool { return left() == 0 })
	s.configure(p)
	s.MustReload()
	s.Stop()
}

// TestRefusedStartLeavesKeeper: a start without a usable state that is refused leaves the keeper of before, as long as programs
// run that have its sockets: the next start takes them, and does not find the address in use.
func TestRefusedStartLeavesKeeper(t *testing.T) {
	t.Parallel()
	p := childService{socket: fmt.Sprintf(`http = "tcp4://127.0.0.1:%d"`, FreePort(t))}
	s := newScene(t, p)
	fresh := s.fresh(s.address("web", "http"))
	inode := s.socket("web", "http").Inode
	keeper := keeperOf(s.Daemon, 0)
	_, pid := s.Serving("web")
	s.Kill()
	if err := os.WriteFile(filepath.Join(s.Dir, "state.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Configure(strings.Replace(p.toml(t, s.Daemon), "env = {", "check = [\"/bin/false\"]\nenv = {", 1))
	for range 2 {
		s.Start()
		if code := s.WaitExit(); code != 1 {
			t.Fatalf("exit code %d, want 1: the check fails", code)
		}
	}
	s.configure(p)
	s.Start()
	s.WaitReady()
	if got := s.socket("web", "http").Inode; got != inode {
		t.Errorf("socket %d, want the one that there was, %d", got, inode)
	}
	if now := s.Status().Keeper.PID; now != keeper {
		t.Errorf("keeper %d, want the one that there was, %d", now, keeper)
	}
	fresh.more(50)
	fresh.end()
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the program that no state knows has ended", func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) })
	s.Stop()
}
