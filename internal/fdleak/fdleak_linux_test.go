package fdleak

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// recorder is a testing.TB that keeps what is reported and runs its cleanups
// when told to.
type recorder struct {
	testing.TB
	errors   []string
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...) }

func (r *recorder) finish() string {
	for _, v := range slices.Backward(r.cleanups) {
		v()
	}
	return strings.Join(r.errors, "\n")
}

func TestSnapshot(t *testing.T) {
	Snapshot(t)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(os.NewSyscallError("pipe2", err))
	}
	defer unix.Close(pipe[1])
	defer unix.Close(pipe[0])

	var extra int
	tests := []struct {
		name string
		do   func() error
		undo func() error
		want string
	}{
		{"nothing", func() error { return nil }, func() error { return nil }, ""},
		{
			"left open",
			func() (err error) { extra, err = unix.FcntlInt(uintptr(pipe[0]), unix.F_DUPFD_CLOEXEC, 0); return err },
			func() error { return unix.Close(extra) },
			"was left open: pipe:[",
		},
		{
			"closed",
			func() error { return unix.Close(pipe[1]) },
			func() error {
				if err := unix.Close(pipe[0]); err != nil {
					return err
				}
				return unix.Pipe2(pipe[:], unix.O_CLOEXEC)
			},
			"was closed: pipe:[",
		},
		{
			"replaced",
			func() error { return unix.Dup3(0, pipe[0], unix.O_CLOEXEC) },
			func() error { return nil },
			"was replaced: pipe:[",
		},
		{
			"status flag",
			func() error { return unix.SetNonblock(pipe[1], true) },
			func() error { return unix.SetNonblock(pipe[1], false) },
			"has changed flags: pipe:[",
		},
		{
			"descriptor flag",
			func() error { _, err := unix.FcntlInt(uintptr(pipe[1]), unix.F_SETFD, 0); return err },
			func() error { unix.CloseOnExec(pipe[1]); return nil },
			"has changed flags: pipe:[",
		},
	}
	for _, tt := range tests {
		rec := &recorder{TB: t}
		snapshot(rec, 0)
		if err := tt.do(); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		got := rec.finish()
		if err := tt.undo(); err != nil {
			t.Fatalf("%s: undo: %v", tt.name, err)
		}
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s: reported %q, want %q", tt.name, got, tt.want)
		}
	}
}

// A descriptor that another goroutine closes a little later is no leak.
func TestSnapshotWaits(t *testing.T) {
	rec := &recorder{TB: t}
	Snapshot(rec)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 2)
	rec.Cleanup(func() {
		go func() { closed <- r.Close(); closed <- w.Close() }()
	})
	if got := rec.finish(); got != "" {
		t.Errorf("reported %q", got)
	}
	for range 2 {
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}
}
