//go:build !linux

package fdpass

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
)

var errUnsupported = fmt.Errorf("fdpass on %s: %w", runtime.GOOS, errors.ErrUnsupported)

// Bind is not supported on this system.
func Bind(a Addr, o Options) (*Socket, error) {
	return nil, &BindError{Op: "bind", Addr: a, Err: errUnsupported}
}

// Adopt is not supported on this system.
func Adopt(fd int, a Addr, o Options) (*Socket, error) {
	return nil, &BindError{Op: "adopt", Addr: a, Err: errUnsupported}
}

// AdoptDead is not supported on this system.
func AdoptDead(fd int, a Addr, o Options) (*Socket, error) { return Adopt(fd, a, o) }

// Replace is not supported on this system.
func Replace(fd int, a Addr, o Options) (*Socket, error) {
	return nil, &BindError{Op: "adopt", Addr: a, Err: errUnsupported}
}

// RemoveStale is not supported on this system.
func RemoveStale(a Addr) (removed bool, err error) {
	return false, &BindError{Op: "remove", Addr: a, Err: errUnsupported}
}

// BoundTo returns nothing here.
func BoundTo(string) []uint64 { return nil }

// Close is not supported on this system.
func (s *Socket) Close() error { return s.fail("close", errUnsupported) }

// Unlink is not supported on this system.
func (s *Socket) Unlink() error { return s.fail("unlink", errUnsupported) }

// Restore is not supported on this system.
func (s *Socket) Restore() error { return s.fail("restore", errUnsupported) }

// AtPath reports nothing here.
func (s *Socket) AtPath() bool { return true }

// Rebind is not supported on this system.
func (s *Socket) Rebind() (*Socket, error) { return nil, s.fail("bind", errUnsupported) }

// Apply is not supported on this system.
func (s *Socket) Apply(o Options) error { return s.fail("apply", errUnsupported) }

// Listening is not supported on this system.
func (s *Socket) Listening() (bool, error) { return false, s.fail("listen", errUnsupported) }

// Relisten is not supported on this system.
func (s *Socket) Relisten() error { return s.fail("listen", errUnsupported) }

// Nonblocking is not supported on this system.
func (s *Socket) Nonblocking() (bool, error) { return false, s.fail("nonblock", errUnsupported) }

// SetNonblocking is not supported on this system.
func (s *Socket) SetNonblocking() error { return s.fail("nonblock", errUnsupported) }

// Dup is not supported on this system.
func Dup(c syscall.Conn, name string) (*os.File, error) { return nil, errUnsupported }

// Send is not supported on this system.
func Send(c *net.UnixConn, msg []byte, files []*os.File) error { return errUnsupported }

// SendFDs is not supported on this system.
func SendFDs(fd int, msg []byte, fds []int) error { return errUnsupported }

// Recv is not supported on this system.
func Recv(c *net.UnixConn, buf []byte, max int) (n int, files []*os.File, err error) {
	return 0, nil, errUnsupported
}

// RecvFDs is not supported on this system.
func RecvFDs(fd int, buf []byte, max int) (n int, fds []int, err error) {
	return 0, nil, errUnsupported
}

// Inherited is not supported on this system.
func Inherited(names []string) (*Set, error) { return nil, errUnsupported }
