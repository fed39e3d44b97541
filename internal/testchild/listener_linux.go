package main

import (
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A countedListener accepts by itself, through the runtime's poller, so that it
// can count right before and right after accept(2). It is no listener of package
// net: the poller of those cannot be waited for.
type countedListener struct {
	*os.File
	raw    syscall.RawConn
	counts *countbook
}

// listener takes the descriptor of a non-blocking socket.
func (c *countbook) listener(fd int) net.Listener {
	f := os.NewFile(uintptr(fd), "socket")
	raw, err := f.SyscallConn()
	check(err)
	return &countedListener{f, raw, c}
}

// Addr is not known and nobody asks.
func (l *countedListener) Addr() net.Addr { return &net.TCPAddr{} }

// Accept returns the next connection.
func (l *countedListener) Accept() (net.Conn, error) {
	var fd int
	var err error
	closed := l.raw.Read(func(listener uintptr) bool {
		for {
			fd, err = l.accept4(int(listener))
			if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNABORTED) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	})
	if closed != nil {
		return nil, closed
	}
	if err != nil {
		return nil, os.NewSyscallError("accept4", err)
	}
	f := os.NewFile(uintptr(fd), "accepted")
	defer f.Close()
	return net.FileConn(f)
}

func (l *countedListener) accept4(listener int) (int, error) {
	l.counts.entered.Add(1)
	fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err == nil {
		l.counts.connections.Add(1)
	}
	l.counts.left.Add(1)
	return fd, err
}
