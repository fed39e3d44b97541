package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/proc"
)

// listener is the process that listens on a control socket. It owns a pidfd.
type listener struct{ pid, fd int }

// listenerOf asks the kernel who it is: SO_PEERCRED of a connection names who called listen(2), with its number in the
// caller's pid namespace (unix(7)). What the other side says of itself would be its number in its own.
func listenerOf(ctx context.Context, path string) (*listener, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, &reachError{path, err}
	}
	defer func() { _ = c.Close() }()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, &reachError{path, err}
	}
	var cred *unix.Ucred
	var fail error
	if err := raw.Control(func(fd uintptr) {
		cred, fail = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || fail != nil {
		return nil, &reachError{path, errors.Join(err, os.NewSyscallError("getsockopt SO_PEERCRED", fail))}
	}
	if cred.Pid <= 0 {
		return nil, fmt.Errorf("control socket %s: its process is in a pid namespace that cannot be seen from here", path)
	}
	l := &listener{pid: int(cred.Pid)}
	l.fd, err = proc.OpenPidfd(l.pid)
	if err != nil {
		return nil, err
	}
	// The number is still that process's if somebody listens on: its end closes the socket before the number is free.
	again, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		l.close()
		return nil, &reachError{path, err}
	}
	_ = again.Close()
	return l, nil
}

// kill sends SIGKILL and waits for the end.
func (l *listener) kill() error {
	if err := proc.SignalPidfd(l.fd, unix.SIGKILL); err != nil {
		return fmt.Errorf("SIGKILL to handoverd, process %d: %w", l.pid, err)
	}
	return l.wait()
}

// wait waits for the end of the process, of whomever it is a child: its pidfd becomes readable then (pidfd_open(2)).
func (l *listener) wait() error {
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}}, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("process %d: %w", l.pid, os.NewSyscallError("poll", err))
		}
		return nil
	}
}

func (l *listener) close() { _ = unix.Close(l.fd) }
