//go:build linux

package handover_test

import (
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
