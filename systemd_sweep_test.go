//go:build linux

package handover_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// sweep runs handoverd sweep, with a systemctl that answers as given, and returns its exit code and what it printed.
func sweep(t *testing.T, d *Daemon, jobs, show, result string, args ...string) (int, string) {
	t.Helper()
	bin := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\ncase $1 in\nlist-jobs) printf '%s' ;;\nshow) printf '%s' ;;\nesac\n", jobs, show)
	if jobs == "fails" {
		script = "#!/bin/sh\nexit 1\n"
	}
	if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(limited(t), Program(t, handoverdProgram), append([]string{"sweep", "--runtime-dir", d.Dir}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "SERVICE_RESULT="+result)
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// TestSweep: what a killed handoverd has left is ended where its unit really stops, and left alone where it is started
// again or lives.
func TestSweep(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := NewDaemon(t)
	d.Configure(goserver(t, FreePort(t)))
	d.Start()
	d.WaitReady()
	if code, text := sweep(t, d, "", "", ""); code != 1 || !strings.Contains(text, "another handoverd holds the lock") {
		t.Errorf("while handoverd lives: exit %d, %s", code, text)
	}
	_, pid := d.Serving("web")
	d.Kill()
	left := d.Left()
	if !slices.Contains(left, pid) || len(left) != 2 {
		t.Fatalf("left by the killed handoverd: %v, want generation 1, %d, and the keeper", left, pid)
	}
	unit := []string{"--unit", "handoverd.service"}
	for _, row := range []struct{ name, jobs, show, result string }{
		{"Restart= follows a kill", "", "Restart=on-failure\\n", "signal"},
		{"systemctl restart", "  7 handoverd.service restart running\\n", "Restart=no\\n", "timeout"},
		{"the job of another unit", "  7 other.service stop running\\n", "Restart=always\\n", "success"},
		{"a start that failed and is begun again", "  7 handoverd.service start running\\n", "Restart=on-failure\\n", "timeout"},
		{"nobody to ask", "fails", "", "oom-kill"},
	} {
		if code, text := sweep(t, d, row.jobs, row.show, row.result, unit...); code != 0 || !strings.HasPrefix(text, "nothing is ended: ") {
			t.Errorf("%s: exit %d, %s", row.name, code, text)
		}
		if now := d.Left(); !slices.Equal(now, left) {
			t.Fatalf("%s: %v lives, and before %v", row.name, now, left)
		}
	}
	code, text := sweep(t, d, "  7 handoverd.service stop running\\n", "Restart=on-failure\\n", "timeout", unit...)
	if code != 0 || !strings.Contains(text, fmt.Sprintf("process %d (service web, generation 1)", pid)) {
		t.Errorf("systemctl stop: exit %d, %s", code, text)
	}
	if now := d.Left(); len(now) > 0 {
		t.Errorf("after the sweep %v lives", now)
	}
	if _, err := os.Stat(filepath.Join(d.Dir, "state.json")); !errors.Is(err, unix.ENOENT) {
		t.Errorf("the state of what has ended: %v", err)
	}
	if code, text := sweep(t, d, "", "", ""); code != 0 || text != "nothing was left running\n" {
		t.Errorf("again: exit %d, %s", code, text)
	}
}

// TestSweepElsewhere: in a directory in which no handoverd was, nothing is made and nothing is removed.
func TestSweepElsewhere(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := NewDaemon(t)
	d.Dir = t.TempDir()
	file := filepath.Join(d.Dir, "terminations.json")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, text := sweep(t, d, "", "", ""); code != 0 || text != "nothing was left running\n" {
		t.Errorf("exit %d, %s", code, text)
	}
	if entries, err := os.ReadDir(d.Dir); err != nil || len(entries) != 1 {
		t.Errorf("in the directory are %v now (%v)", entries, err)
	}
}

// TestSweepHard: without a state it finds programs by their environment, and the keeper by its socket, also one that ignores SIGTERM and one that has
// left its session; a program that is not handoverd's lives on.
func TestSweepHard(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := NewDaemon(t)
	d.Configure(`
[service.web]
command = ["/bin/sh", "-c", "trap '' TERM; setsid sleep 1000 & while :; do sleep 1000; done"]
[service.web.ready]
when = "alive"
alive_for = "1ms"
`)
	d.Start()
	d.WaitReady()
	d.Kill()
	eventually(t, "the program has started what it starts", func() bool { return len(d.Left()) == 4 })
	if err := os.WriteFile(filepath.Join(d.Dir, "state.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	stranger := exec.Command("sleep", "1000")
	stranger.Env = []string{"NOTIFY_SOCKET=" + d.Dir + "x/notify/web.1"}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = stranger.Process.Kill(), stranger.Wait() }()
	code, text := sweep(t, d, "", "", "", "--grace", "100ms")
	if code != 1 || strings.Count(text, "ended: process") != 4 || !strings.Contains(text, "set aside") {
		t.Errorf("exit %d, %s", code, text)
	}
	if now := d.Left(); len(now) > 0 {
		t.Errorf("after the sweep %v lives", now)
	}
	if err := stranger.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("a program of somebody else: %v", err)
	}
}
