//go:build linux

package handover_test

import (
	"testing"

	"github.com/handoverd/handover/supervisor"
)

// TestTakenOver: a handoverd that is started after another was killed goes on with its generations, and reloads.
func TestTakenOver(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	d := StartDaemon(t, goserver(t, FreePort(t)))
	d.MustReload()
	generation, pid := d.Serving("web")
	keeper := keeperOf(d, 0)
	d.Kill()
	d.Start()
	st := d.WaitStatus("ready", func(s *supervisor.Status) bool { return s.Ready })
	if g, p := d.Serving("web"); g != generation || p != pid {
		t.Errorf("generation %d (pid %d) serves, want %d (pid %d)", g, p, generation, pid)
	}
	if st.Keeper.PID != keeper {
		t.Errorf("keeper %d, want the one that there was, %d", st.Keeper.PID, keeper)
	}
	if r := d.MustReload(); r.Results[0].Generation != generation+1 || r.Results[0].Old != generation {
		t.Errorf("the reload after it: %+v", r)
	}
	d.WaitStatus("only the newest lives", func(s *supervisor.Status) bool { return len(s.Services[0].Generations) == 1 })
	d.Stop()
}
