package fdleak

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// startPoller makes the runtime open its epoll and eventfd descriptors, which it
// does at the first use of a pollable file, so that they are in every baseline.
var startPoller = sync.OnceValue(func() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	return errors.Join(r.Close(), w.Close())
})

// table reads the descriptor table of the process, without the descriptor that
// the reading itself needs.
func table() (map[int]descriptor, error) {
	if err := startPoller(); err != nil {
		return nil, fmt.Errorf("start the poller: %w", err)
	}
	const path = "/proc/self/fd"
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		_ = dir.Close()
		return nil, err
	}
	// The directory is closed before the descriptors are looked at: its own
	// number then fails with ENOENT and EBADF, and is left out.
	if err := dir.Close(); err != nil {
		return nil, err
	}
	open := make(map[int]descriptor, len(names))
	for _, name := range names {
		n, err := strconv.Atoi(name)
		if err != nil {
			return nil, fmt.Errorf("%s/%s: not a number", path, name)
		}
		d, err := describe(n, path+"/"+name)
		if errors.Is(err, unix.EBADF) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, err
		}
		open[n] = d
	}
	return open, nil
}

func describe(n int, path string) (descriptor, error) {
	target, err := os.Readlink(path)
	if err != nil {
		return descriptor{}, err
	}
	status, err := unix.FcntlInt(uintptr(n), unix.F_GETFL, 0)
	if err != nil {
		return descriptor{}, os.NewSyscallError("fcntl", err)
	}
	flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0)
	if err != nil {
		return descriptor{}, os.NewSyscallError("fcntl", err)
	}
	return descriptor{target: target, status: status, fd: flags}, nil
}

// unavailable fails the test: on Linux the table can always be read.
func unavailable(t testing.TB, err error) {
	t.Helper()
	t.Fatalf("fdleak: %v", err)
}
