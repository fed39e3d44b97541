//go:build linux

package handover_test

import (
	"fmt"
	"os"
	"path/filepath"
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
