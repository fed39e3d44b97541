package main

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/supervisor"
)

// TestReachError wants path, errno and remedy, which differs.
func TestReachError(t *testing.T) {
	slow := (&reachError{"/run/x/control.sock", context.DeadlineExceeded}).Error()
	if want := "control socket /run/x/control.sock: context deadline exceeded: it does not answer, and its programs serve on"; !strings.HasPrefix(slow, want) {
		t.Errorf("%q, want %q", slow, want)
	}
	for _, c := range []struct {
		errno syscall.Errno
		is    error
		want  string
	}{
		{syscall.ENOENT, fs.ErrNotExist, "connect: no such file or directory: no handoverd has this runtime directory"},
		{syscall.ECONNREFUSED, syscall.ECONNREFUSED, "connect: connection refused: the handoverd that made it is gone"},
		{syscall.EACCES, fs.ErrPermission, "connect: permission denied: only root and the user that handoverd runs as may use it"},
	} {
		err := &reachError{"/run/x/control.sock", &net.OpError{
			Op: "dial", Net: "unix", Addr: &net.UnixAddr{Name: "/run/x/control.sock", Net: "unix"},
			Err: os.NewSyscallError("connect", c.errno),
		}}
		if want := "control socket /run/x/control.sock: " + c.want; !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v: %q, want %q", c.errno, err, want)
		}
		if !errors.Is(err, c.is) {
			t.Errorf("%v: not errors.Is %v", err, c.is)
		}
	}
}

func TestShortSeconds(t *testing.T) {
	got := map[float64]string{}
	want := map[float64]string{
		-1: "0s", 0: "0s", 0.04: "0s", 0.26: "300ms", 3.21: "3.2s", 12.4: "12s", 60: "1m", 61: "1m1s",
		3599.9: "1h0m", 3600: "1h00m", 7265: "2h01m", 180000: "2d02h",
	}
	for s := range want {
		got[s] = shortSeconds(s)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestResultText(t *testing.T) {
	type result = supervisor.Result
	for _, c := range []struct {
		r    supervisor.ServiceResult
		want string
	}{
		{supervisor.ServiceResult{Result: result{Service: "a", Outcome: "serving", Generation: 1}}, "a.1 serves"},
		{
			supervisor.ServiceResult{Result: result{Service: "a", Outcome: "serving", Generation: 3, Old: 2, Release: supervisor.ReleaseYes}},
			"a.3 serves, a.2 released",
		},
		{
			supervisor.ServiceResult{Result: result{Service: "a", Outcome: "serving", Generation: 3, Old: 2, Release: supervisor.ReleaseNo}},
			"a.3 serves, a.2 not released",
		},
		{
			supervisor.ServiceResult{Result: result{Service: "a", Outcome: "serving", Generation: 3, Old: 2, Release: supervisor.ReleaseUnknown}},
			"a.3 serves, a.2 cannot be looked at, so it is not known whether it has let go",
		},
		{
			supervisor.ServiceResult{Result: result{Service: "a", Outcome: "failed", Generation: 3, Phase: "starting", Reason: "not ready"}, How: "killed by SIGSEGV"},
			"a.3 failed while starting: not ready: killed by SIGSEGV",
		},
		{
			supervisor.ServiceResult{Result: result{Service: "a", Outcome: "skipped", Reason: "comes after b, which failed"}},
			"a skipped: comes after b, which failed",
		},
		{supervisor.ServiceResult{Result: result{Outcome: "refused", Reason: "x"}}, "reload refused: x"},
		{supervisor.ServiceResult{Result: result{Service: "a", Outcome: "removed"}}, "a removed"},
	} {
		if got := resultText(&c.r); got != c.want {
			t.Errorf("%+v: %q, want %q", c.r, got, c.want)
		}
	}
}

// TestProgressWaiting tells the things that a reload may be waiting for apart.
func TestProgressWaiting(t *testing.T) {
	of := func(g supervisor.GenerationStatus) supervisor.Status {
		return supervisor.Status{Services: []supervisor.ServiceStatus{{Name: "a", Generations: []supervisor.GenerationStatus{
			{Generation: 1, Phase: supervisor.PhaseServing}, g,
		}}}}
	}
	for _, c := range []struct {
		name string
		st   supervisor.Status
		want string
	}{
		{
			"a place",
			supervisor.Status{Services: []supervisor.ServiceStatus{{Name: "a", Waiting: "the new generation waits for a place", WaitingFor: 12}}},
			"a: waiting for 12s: the new generation waits for a place",
		},
		{"a release", supervisor.Status{Reloads: []supervisor.Job{{Stage: supervisor.JobRunning, Results: []supervisor.Result{
			{Service: "a", Generation: 2, Old: 1, Release: supervisor.ReleasePending},
		}}}}, "a.2: serving, waiting for a.1 to let go of the sockets"},
		{
			"its turn",
			supervisor.Status{Reloads: []supervisor.Job{{Stage: supervisor.JobRunning}, {Stage: supervisor.JobRemembered}}},
			"waiting for 3s: another reload is under way",
		},
		{
			"an upgrade",
			supervisor.Status{Reloads: []supervisor.Job{{Stage: supervisor.JobRemembered}}, Upgrade: &supervisor.UpgradeStatus{ID: 1, Stage: "pre-flight"}},
			"waiting for 3s: handoverd itself is being upgraded",
		},
		{
			"a gate", of(supervisor.GenerationStatus{Generation: 2, Phase: supervisor.PhaseStarting, Gate: "HTTP status 503"}),
			"a.2: waits for the gate: HTTP status 503",
		},
		{
			"an open gate", of(supervisor.GenerationStatus{Generation: 2, Phase: supervisor.PhaseStarting, Gate: "open"}),
			"under way for 3s",
		},
		{
			"a probe", of(supervisor.GenerationStatus{Generation: 2, Phase: supervisor.PhaseStarting, Probe: "no answer in time"}),
			"a.2: not ready, its probe: no answer in time",
		},
		{
			"a bake", of(supervisor.GenerationStatus{Generation: 2, Phase: supervisor.PhaseBaking, Ends: 31}),
			"a.2: bakes, commit in 31s",
		},
		{
			"a bake that goes wrong", of(supervisor.GenerationStatus{Generation: 2, Phase: supervisor.PhaseBaking, Ends: 31, Probe: "HTTP status 500"}),
			"a.2: bakes, commit in 31s; its probe: HTTP status 500",
		},
		{"nothing", supervisor.Status{}, "under way for 3s"},
	} {
		got := strings.Join((&progress{}).waiting(&c.st, 3*time.Second), "\n")
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestAlive keeps the directory in which somebody listens, so that a command finds the one handoverd there is.
func TestAlive(t *testing.T) {
	base, err := os.MkdirTemp("", "hd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	for _, name := range []string{"live", "stale", "empty"} {
		dir := filepath.Join(base, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if name == "empty" {
			continue
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: supervisor.ControlPath(dir), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		if name == "live" {
			t.Cleanup(func() { _ = l.Close() })
		} else if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	got := alive(append([]string{base}, subdirectories(base)...))
	if d := cmp.Diff([]string{filepath.Join(base, "live")}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
