//go:build linux

package handover_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// keeperOf waits until a keeper holds something and returns its process.
func keeperOf(d *Daemon, not int) int {
	d.t.Helper()
	st := d.WaitStatus("a keeper holds what there is", func(s *supervisor.Status) bool {
		return s.Keeper.PID != 0 && s.Keeper.PID != not && s.Keeper.Held >= 3 && s.Keeper.Fault == ""
	})
	return st.Keeper.PID
}

// TestKeeperIsReplaced: a keeper that is killed is replaced, again and again, and it ends with handoverd.
func TestKeeperIsReplaced(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	d := StartDaemon(t, goserver(t, FreePort(t)))
	pid := keeperOf(d, 0)
	for range 3 {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		pid = keeperOf(d, pid)
	}
	if generation, _ := d.Serving("web"); generation != 1 {
		t.Errorf("generation %d serves, want 1", generation)
	}
	d.MustReload()
	d.Stop()
}

// TestKeeperHoldsNothingElse: what handoverd was started with is not held on by the keeper, which may outlive it.
func TestKeeperHoldsNothingElse(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	d := NewDaemon(t)
	d.Configure(goserver(t, FreePort(t)))
	d.startUnder(t, nil, "/bin/sh", "-c", `exec "$@" 4<"$0" 9<"$0"`, d.ConfigFile())
	d.WaitReady()
	held := func(pid int) int {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil || len(links) == 0 {
			t.Fatalf("descriptors of %d: %v, %v", pid, links, err)
		}
		n := 0
		for _, l := range links {
			if to, _ := os.Readlink(l); to == d.ConfigFile() {
				n++
			}
		}
		return n
	}
	if n := held(d.PID); n != 2 {
		t.Fatalf("the test does not count: handoverd has %d descriptors of the file", n)
	}
	pid := keeperOf(d, 0)
	eventually(t, "the keeper has none of it", func() bool { return held(pid) == 0 })
	d.Stop()
}

// TestKeeperNone: without a keeper none is started, and the status says why.
func TestKeeperNone(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	d := StartDaemon(t, "keeper = \"none\"\n"+goserver(t, FreePort(t)))
	if k := d.Status().Keeper; k.PID != 0 || k.Off != `keeper = "none"` {
		t.Errorf("keeper: %+v", k)
	}
	d.Stop()
}
