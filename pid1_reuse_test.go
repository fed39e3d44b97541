//go:build linux

package handover_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// TestNumberUsedAgain: while no handoverd runs a stranger is given the number of a generation that has died (by
// ns_last_pid, in a pid namespace of the test's own), as its own session and process group. The next handoverd
// starts the program anew, and the stranger, whom it never signals, outlives its stop.
func TestNumberUsedAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	t.Parallel()
	d := NewDaemon(t)
	d.Configure(plain("", sleeper, "1000"))
	// The namespace's first process is one that reaps and does nothing else.
	first1 := exec.Command(ownPIDs[0], append(ownPIDs[1:], "sh", "-c", "while :; do sleep 1000 & wait; done")...)
	first1.Env = append(os.Environ(), markEnv+"="+d.Dir)
	if err := first1.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = first1.Process.Kill(), first1.Wait() }()
	init := 0
	eventually(t, "the namespace is there", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", first1.Process.Pid, first1.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		init, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", init))
		return init != 0 && string(comm) == "sh\n"
	})
	enter := []string{"nsenter", "--target", strconv.Itoa(init), "--pid", "--mount"}
	start := func() *first {
		d.startUnder(t, nil, enter...)
		f := &first{Daemon: d, t: t}
		f.find()
		f.WaitReady()
		return f
	}
	f := start()
	_, pid := f.Serving("web")
	program := f.outside(pid)
	f.signal(unix.SIGKILL)
	f.WaitExit()
	if err := unix.Kill(program, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the program's number is free", func() bool { return errors.Is(unix.Kill(program, 0), unix.ESRCH) })
	stranger := givenNumber(t, d, enter, pid)

	f = start()
	if generation, now := f.Serving("web"); generation != 2 || now == pid {
		t.Errorf("generation %d, process %d, serves, want 2, and not the process %d", generation, now, pid)
	}
	f.WaitStatus("generation 2 alone", func(s *supervisor.Status) bool { return len(s.Services[0].Generations) == 1 })
	f.signal(unix.SIGTERM)
	if code := f.WaitExit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", stranger))
	if err != nil || strings.Contains(string(state), ") Z ") {
		t.Errorf("the stranger is gone: %q, %v", state, err)
	}
}

// givenNumber starts a process that gets this number in the namespace, and returns the one that it has outside.
func givenNumber(t *testing.T, d *Daemon, enter []string, number int) (outside int) {
	t.Helper()
	for range 100 {
		// Somebody else may be given it in between: then it is tried again.
		script := fmt.Sprintf(`echo %d >/proc/sys/kernel/ns_last_pid; setsid sleep 1000 >/dev/null 2>&1 & echo $!`, number-1)
		out, err := exec.Command(enter[0], append(enter[1:], "env", markEnv+"="+d.Dir, "sh", "-c", script)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		got, err := strconv.Atoi(strings.TrimSpace(string(out)))
		if err != nil {
			t.Fatal(err)
		}
		all, err := filepath.Glob("/proc/[0-9]*/status")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range all {
			text, _ := os.ReadFile(path)
			environ, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "environ"))
			var inner int
			for line := range strings.Lines(string(text)) {
				if _, err := fmt.Sscanf(line, "NSpid:\t%d\t%d", &outside, &inner); err == nil && inner == got && strings.Contains(string(environ), markEnv+"="+d.Dir) {
					if got == number {
						return outside
					}
					_ = unix.Kill(outside, unix.SIGKILL)
				}
			}
		}
	}
	t.Fatalf("no process was given the number %d", number)
	return 0
}
