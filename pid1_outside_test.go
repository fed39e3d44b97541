//go:build linux

package handover_test

import (
	"os/exec"
	"testing"
)

// TestPID1StopFromOutside: handoverd is process 1 of its pid namespace, and the command that stops it and waits is outside,
// where process 1 is another one, which does not end.
func TestPID1StopFromOutside(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := NewDaemon(t)
	d.Configure(plain("", sleeper, "1000"))
	f := startFirst(t, d)
	f.WaitReady()
	if pid := f.Status().PID; pid != 1 {
		t.Fatalf("handoverd says that it is process %d, want 1", pid)
	}
	text, err := exec.CommandContext(limited(t), Program(t, handoverdProgram), "stop", "--wait", "--runtime-dir", d.Dir).CombinedOutput()
	if err != nil || string(text) != "handoverd 1: stopped\n" {
		t.Errorf("stop --wait: %q, %v", text, err)
	}
	if code := f.WaitExit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if left := f.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
