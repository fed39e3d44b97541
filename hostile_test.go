//go:build linux

package handover_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// TestStopDuringCheck: a stop does not wait for a check that is under way, neither at the first start nor at a reload.
func TestStopDuringCheck(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	t.Parallel()
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprintf("first %v", first), func(t *testing.T) {
			t.Parallel()
			d := NewDaemon(t)
			if !first {
				d.Configure(plain("", sleeper, "1000"))
				d.Start()
				d.WaitReady()
			}
			begun := filepath.Join(d.Dir, "begun")
			d.Configure(plain("check = "+quoted("/bin/sh", "-c", "echo >"+begun+"; sleep 1000 & sleep 1000")+"\n", sleeper, "1000"))
			if first {
				d.Start()
			} else {
				d.HUP()
			}
			eventually(t, "the check runs", func() bool {
				_, err := os.Stat(begun)
				return err == nil
			})
			begin := time.Now()
			d.Signal(unix.SIGTERM)
			d.WaitExit()
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("the stop took %v", took)
			}
			if left := d.Left(); len(left) > 0 {
				t.Errorf("processes are left: %v", left)
			}
		})
	}
}

// TestOutputFlood: a program that writes faster than anybody reads holds up no reload and no stop.
func TestOutputFlood(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	d := StartDaemon(t, plain("", "/bin/sh", "-c", "timeout 30 yes & exec "+sleeper+" 1000"))
	old, _ := d.Serving("web")
	begin := time.Now()
	if r := d.MustReload().Results[0]; r.Outcome != supervisor.OutcomeServing || r.Generation <= old {
		t.Errorf("reload: %+v", r)
	}
	d.Stop()
	if took := time.Since(begin); took > 25*time.Second {
		t.Errorf("a reload and a stop took %v", took)
	}
}

// TestSocketComesBackDuringCheck: a removed socket that is on its way out when a reload wants it back, and closed before
// the check of that reload has ended, is bound anew.
func TestSocketComesBackDuringCheck(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	d := NewDaemon(t)
	gate := filepath.Join(d.Dir, "gate")
	path := filepath.Join(d.Dir, "back.sock")
	// The old generation is never seen to let go, so that the socket leaves slowly.
	config := func(socket string) string {
		p := childService{mode: "raw-ignore-drain", when: "accepting"}
		p.socket = "http = \"unix://" + filepath.Join(d.Dir, "a.sock") + "\"\n" + socket
		check := "check = " + quoted("/bin/sh", "-c", "until [ -e "+gate+" ]; do sleep 0.05; done") + "\n"
		return strings.Replace(p.toml(t, d), "command = ", check+"command = ", 1)
	}
	back := "back = \"unix://" + path + "\"\n"
	serves := func(n int) {
		d.WaitStatus(fmt.Sprintf("generation %d serves", n), func(s *supervisor.Status) bool {
			return len(s.Services) > 0 && slices.ContainsFunc(s.Services[0].Generations, func(g supervisor.GenerationStatus) bool {
				return g.Generation == n && g.Phase == supervisor.PhaseServing
			})
		})
	}
	writeFile(t, d, "gate", "")
	d.Configure(config(back))
	d.Start()
	serves(1)
	d.Configure(config(""))
	d.HUP()
	serves(2)
	if err := os.Remove(gate); err != nil {
		t.Fatal(err)
	}
	d.Configure(config(back))
	d.HUP()
	// Not the path: where the close came first, the reload has bound it anew before its check.
	d.WaitLog("msg=\"socket closed\" socket=unix://" + path)
	writeFile(t, d, "gate", "")
	serves(3)
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
	d.Signal(unix.SIGQUIT)
	d.WaitExit()
}

// TestSpawnFailsInLog: why a generation could not be spawned is in the log, also where nobody waits for the answer.
func TestSpawnFailsInLog(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	d := StartDaemon(t, plain("", sleeper, "1000"))
	notify := filepath.Join(d.Dir, "notify")
	if err := os.Rename(notify, notify+".away"); err != nil {
		t.Fatal(err)
	}
	d.HUP()
	d.WaitLog("service=web gen=2 from=starting to=gone why=\"sdnotify: listen " + notify + "/web.2: bind: no such file or directory\"")
	if err := os.Rename(notify+".away", notify); err != nil {
		t.Fatal(err)
	}
	d.MustReload()
	d.Stop()
}

// TestPathComesBack: a path that a program removes, or puts a socket of its own at, leads to the same socket again, and
// who waits in its queue notices nothing. A path of a stopped handoverd is gone.
func TestPathComesBack(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	d := NewDaemon(t)
	path := filepath.Join(d.Dir, "web.sock")
	d.Configure(childService{mode: "accept-raw", when: "accepting", socket: fmt.Sprintf("http = %q", "unix://"+path)}.toml(t, d))
	d.Start()
	d.WaitReady()
	inode := func() uint64 {
		var st unix.Stat_t
		_ = unix.Lstat(path, &st) // none: not there
		return st.Ino
	}
	want := inode()
	if want == 0 {
		t.Fatalf("%s is not there", path)
	}
	back := func() {
		t.Helper()
		eventually(t, "the path leads to the same socket", func() bool { return inode() == want })
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	back()
	d.WaitLog("a program has removed or replaced the path: brought back")
	other := filepath.Join(d.Dir, "other.sock")
	l, err := net.Listen("unix", other)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := os.Rename(other, path); err != nil {
		t.Fatal(err)
	}
	back()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	d.MustReload()
	d.Stop()
	if inode() != 0 {
		t.Errorf("%s is left", path)
	}
}
