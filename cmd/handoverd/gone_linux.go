package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/proc"
)

// watchGone returns a function that waits until the process, alive at the time
// of the call, has ended: its pidfd becomes readable then (pidfd_open(2)), of
// whomever it is a child.
func watchGone(pid int) (wait func() error, err error) {
	fd, err := proc.OpenPidfd(pid)
	if err != nil {
		return nil, err
	}
	return func() error {
		defer func() { _ = unix.Close(fd) }()
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return fmt.Errorf("process %d: %w", pid, os.NewSyscallError("poll", err))
			}
			return nil
		}
	}, nil
}
