//go:build linux

package handover_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// TestKilledAndStartedAgain: a handoverd that is started after another was killed refuses, names what the other left
// running, and touches nothing of it; once that has ended it starts.
func TestKilledAndStartedAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	d := StartDaemon(t, plain("", sleeper, "1000"))
	_, pid := d.Serving("web")
	state := filepath.Join(d.Dir, "state.json")
	d.Kill()
	before, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	d.Start()
	want := fmt.Sprintf("programs of an earlier handoverd still run: web generation 1 (pid %d)", pid)
	if code := d.WaitExit(); code != 1 || !strings.Contains(d.Log(), want) {
		t.Errorf("it exits with %d, want 1 and %q; log: %s", code, want, d.Log())
	}
	if after, err := os.ReadFile(state); err != nil || !bytes.Equal(before, after) {
		t.Errorf("state: %q, %v, want %q", after, err, before)
	}
	for _, f := range []string{"notify/web.1", "log/web.1"} {
		if _, err := os.Stat(filepath.Join(d.Dir, f)); err != nil {
			t.Error(err)
		}
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has ended", func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) })
	d.Start()
	d.WaitReady()
	d.Stop()
}
