package proc

import (
	"os/exec"
	"testing"
	"time"
)

func TestParseSchedstat(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"363625703 1326523307 2057\n": 1690149010,
		"0 0 0\n":                     0, // not counted
		"":                            0,
		"1":                           0,
		"x 1 1":                       0,
		"1 x 1":                       0,
	} {
		if got, ok := parseSchedstat(text); got != want && ok || ok != (want != 0) {
			t.Errorf("%q: %v, %v, want %v", text, got, ok, want)
		}
	}
}

// A process that never waits is runnable all its life, however little of a processor it gets; one that waits is not.
func TestRunnable(t *testing.T) {
	begin := func(name string, args ...string) (pid int, began time.Time) {
		cmd := exec.Command(name, args...)
		began = time.Now()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return cmd.Process.Pid, began
	}
	idle, _ := begin("/bin/sleep", "1000")
	busy, began := begin("/bin/sh", "-c", "while :; do :; done")
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		d, err := Runnable(busy)
		if err != nil {
			t.Fatal(err)
		}
		if d > time.Since(began) {
			t.Errorf("runnable for %v, lived %v", d, time.Since(began))
		}
		if d > 200*time.Millisecond {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("runnable for %v after 30 s", d)
		}
	}
	if d, err := Runnable(idle); err != nil || d > 100*time.Millisecond {
		t.Errorf("sleep was runnable for %v, %v", d, err)
	}
	if _, err := Runnable(1 << 30); err == nil {
		t.Error("no error for a process that is not there")
	}
}
