package main

import (
	"flag"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHoldSignals: from the last look at what has come until the execve a signal either does nothing, or ends the process.
// What an image catches then is lost with it, and nobody sends SIGTERM twice.
func TestHoldSignals(t *testing.T) {
	if flag.Arg(0) != "held" { // in a process of its own: a test is to die by SIGQUIT
		if out, err := exec.Command(os.Args[0], "-test.run=^TestHoldSignals$", "held").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	taken, end := notify()
	go func() { // ends with the process
		for s := range taken {
			if m, ok := s.(mark); ok {
				m.passed <- struct{}{}
			}
		}
	}()
	all := []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2}
	const caught, ignored, deadly = "SigCgt", "SigIgn", ""
	wantSignals(t, "before", all, caught)
	release, quiet := holdSignals()
	if !quiet {
		t.Error("not quiet, and no signal was sent")
	}
	wantSignals(t, "held", []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGUSR1, unix.SIGUSR2}, ignored)
	wantSignals(t, "held", []unix.Signal{unix.SIGTERM, unix.SIGQUIT}, deadly)
	release()
	wantSignals(t, "released", all, caught)
	end()
}

// wantSignals checks what the kernel does with signals for this process (proc_pid_status(5)).
func wantSignals(t *testing.T, when string, sigs []unix.Signal, want string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, sig := range sigs {
		is := ""
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			if name != "SigCgt" && name != "SigIgn" {
				continue
			}
			if set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64); err != nil {
				t.Fatal(err)
			} else if set&(1<<(sig-1)) != 0 {
				is = name
			}
		}
		if is != want {
			t.Errorf("%s: %s is in %q, want %q", when, unix.SignalName(sig), is, want)
		}
	}
}
