package shim

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/fdleak"
)

// 1,000 descriptors and the memfd take four packets, all of them there before
// anybody reads.
func TestSendAllFillsPacketsInOrder(t *testing.T) {
	fdleak.Snapshot(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pair[1]) }()
	fds, _ := sockets(t, 1000)
	if err := sendAll(pair[0], fds[0], fds); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(pair[0])
	c := &child{control: pair[1]}
	var sizes []int
	for total := 0; total < 1001; {
		got, failure := c.receiveFiles()
		if failure != nil {
			t.Fatal(failure)
		}
		for _, fd := range got {
			_ = unix.Close(fd)
		}
		total += len(got)
		sizes = append(sizes, len(got))
	}
	if d := cmp.Diff([]int{253, 253, 253, 242}, sizes); d != "" {
		t.Error(d)
	}
}

func TestTheSpecIsSealed(t *testing.T) {
	fdleak.Snapshot(t)
	fd, err := sealed([]byte("spec"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.Pwrite(fd, []byte("x"), 0); err != unix.EPERM {
		t.Errorf("write: %v", err)
	}
	if err := unix.Ftruncate(fd, 1); err != unix.EPERM {
		t.Errorf("shrink: %v", err)
	}
	if err := unix.Ftruncate(fd, 100); err != unix.EPERM {
		t.Errorf("grow: %v", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err != unix.EPERM {
		t.Errorf("another seal: %v", err)
	}
}

// The way for kernels before 5.11, where close_range has no such flag.
func TestCloseAtExecByList(t *testing.T) {
	fds, _ := sockets(t, 300)
	for _, fd := range fds {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			t.Fatal(err)
		}
	}
	low, high := fds[0], fds[1:]
	if err := closeAtExecByList(low + 1); err != nil {
		t.Fatal(err)
	}
	for _, fd := range high {
		if fd > low && !closesAtExec(t, fd) {
			t.Errorf("descriptor %d would be inherited", fd)
		}
	}
	if closesAtExec(t, low) {
		t.Errorf("descriptor %d below the first was changed", low)
	}
}

func closesAtExec(t *testing.T, fd int) bool {
	t.Helper()
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil {
		t.Fatal(err)
	}
	return flags&unix.FD_CLOEXEC != 0
}

func TestParseStartTime(t *testing.T) {
	for stat, want := range map[string]uint64{
		"914 (exe) R 908 914 914 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 121212 1 2 3\n":    121212,
		"914 (a) b (c) R 908 914 914 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 7 1 2 3 4 5\n": 7,
	} {
		if got, ok := parseStartTime(stat); !ok || got != want {
			t.Errorf("%q: %d, %v", stat, got, ok)
		}
	}
	for _, stat := range []string{"", "914 (exe)", "914 (exe) R 1 2 3", "no bracket 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23"} {
		if got, ok := parseStartTime(stat); ok {
			t.Errorf("%q: %d", stat, got)
		}
	}
}
