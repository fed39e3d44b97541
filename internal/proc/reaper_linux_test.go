package proc

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/fdleak"
)

// running starts a Reaper for the length of the test, which must leave no child behind.
func running(t *testing.T) *Reaper {
	t.Helper()
	fdleak.Snapshot(t)
	r := NewReaper()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { r.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		done.Wait()
		if _, err := waitid(unix.P_ALL, 0, unix.WNOWAIT); !errors.Is(err, unix.ECHILD) {
			dead, deadErr := deadChildren()
			t.Errorf("children are left: %v, zombies %v (%v)", err, dead, deadErr)
		}
	})
	return r
}

func shell(script string) func() (int, error) {
	return func() (int, error) {
		return syscall.ForkExec("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
	}
}

func receive[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("not within 20 s: %s", what)
		panic("unreachable")
	}
}

func TestReaperFastHooks(t *testing.T) {
	r := running(t)
	const hooks, starters = 300, 3
	exits := make(chan Exit, hooks)
	want := make(map[int]int, hooks)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for s := range starters {
		wg.Go(func() {
			for i := s; i < hooks; i += starters {
				code := i % 200
				pid, err := r.Start(shell("exit "+strconv.Itoa(code)), func(e Exit) { exits <- e })
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				want[pid] = code
				mu.Unlock()
				if i%2 == 0 { // half of them before their end, the others after it
					if err := r.Release(pid); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	seen := make(map[int]bool)
	for range hooks {
		e := receive(t, exits, "the exit of a hook")
		if e.Err != nil || !e.Status.Exited() || e.Status.ExitStatus() != want[e.PID] || seen[e.PID] {
			t.Errorf("%+v, want status %d once", e, want[e.PID])
		}
		seen[e.PID] = true
		if err := r.Release(e.PID); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Error(err)
		}
	}
	if n := r.Reaped(); n != 0 {
		t.Errorf("%d hooks were taken for strangers", n)
	}
}

func TestReaperStatus(t *testing.T) {
	r := running(t)
	exits := make(chan Exit, 1)
	for script, check := range map[string]func(unix.WaitStatus) bool{
		"exit 7":        func(s unix.WaitStatus) bool { return s.Exited() && s.ExitStatus() == 7 },
		"kill -TERM $$": func(s unix.WaitStatus) bool { return s.Signaled() && s.Signal() == unix.SIGTERM },
		"exit 0":        func(s unix.WaitStatus) bool { return s == 0 },
	} {
		pid, err := r.Start(shell(script), func(e Exit) { exits <- e })
		if err != nil {
			t.Fatal(err)
		}
		if e := receive(t, exits, script); e.PID != pid || e.Err != nil || !check(e.Status) {
			t.Errorf("%s: %+v", script, e)
		}
		if err := r.Release(pid); err != nil {
			t.Error(err)
		}
	}
}

// A held zombie keeps its number, and strangers behind it are reaped all the same.
func TestReaperHoldsAndReapsOrphans(t *testing.T) {
	if err := SetSubreaper(); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	r := running(t)
	exits := make(chan Exit, 2)
	held, err := r.Start(shell("exit 3"), func(e Exit) { exits <- e })
	if err != nil {
		t.Fatal(err)
	}
	receive(t, exits, "the end of the child to be held")

	sigchld := make(chan os.Signal, 1)
	signal.Notify(sigchld, unix.SIGCHLD)
	defer signal.Stop(sigchld)
	const orphans = 100
	script := "i=0; while [ $i -lt " + strconv.Itoa(orphans) + " ]; do ( /bin/true & ) ; i=$((i+1)); done"
	parent, err := r.Start(shell(script), func(e Exit) { exits <- e })
	if err != nil {
		t.Fatal(err)
	}
	if e := receive(t, exits, "the end of the orphans' parent"); e.PID != parent || e.Status != 0 {
		t.Errorf("%+v", e)
	}
	// Their ends come as signals to this process; a merged one is made good by the next look.
	for deadline := time.Now().Add(20 * time.Second); r.Reaped() < orphans; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d orphans reaped", r.Reaped(), orphans)
		}
		select {
		case <-sigchld:
		case <-time.After(10 * time.Millisecond):
		}
	}
	for _, pid := range []int{held, parent} {
		if s, err := readStat(pid); err != nil || s.state != 'Z' {
			t.Errorf("child %d is not held: %+v, %v", pid, s, err)
		}
		if err := r.Release(pid); err != nil {
			t.Error(err)
		}
		if _, err := StartTime(pid); !gone(err) {
			t.Errorf("child %d after its release: %v", pid, err)
		}
		if err := r.Release(pid); !errors.Is(err, unix.ESRCH) {
			t.Errorf("second release: %v", err)
		}
	}
	if n := r.Reaped(); n != orphans {
		t.Errorf("%d strangers reaped, want %d", n, orphans)
	}
}

// A child that was already dead when it was made known, as after an execve, has no signal left to send.
func TestReaperAdoptsZombie(t *testing.T) {
	pid, err := shell("exit 5")()
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	exits := make(chan Exit, 1)
	r := NewReaper()
	if _, err := r.Start(func() (int, error) { return pid, nil }, func(e Exit) { exits <- e }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { r.Run(ctx) })
	defer done.Wait()
	defer cancel()
	if e := receive(t, exits, "the adopted zombie"); e.Status.ExitStatus() != 5 {
		t.Errorf("%+v", e)
	}
	if err := r.Release(pid); err != nil {
		t.Error(err)
	}
}

func TestReaperStartFails(t *testing.T) {
	r := running(t)
	want := errors.New("no")
	if _, err := r.Start(func() (int, error) { return 0, want }, func(Exit) { t.Error("exited was called") }); !errors.Is(err, want) {
		t.Error(err)
	}
	_, err := r.Start(func() (int, error) {
		return syscall.ForkExec("/nonexistent", []string{"x"}, &syscall.ProcAttr{})
	}, func(Exit) { t.Error("exited was called") })
	if !errors.Is(err, unix.ENOENT) {
		t.Error(err)
	}
	if n := r.Reaped(); n != 0 {
		t.Errorf("a failed start was taken for a stranger: %d", n)
	}
}
