//go:build !linux

package sdnotify

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// Socket cannot be made on this system.
type Socket struct{}

// Listen returns [errors.ErrUnsupported]: credentials and their socket options
// differ from system to system.
func Listen(path string, mode os.FileMode, uid, gid int) (*Socket, error) {
	return nil, fmt.Errorf("sdnotify: listen %s: %w on %s", path, errors.ErrUnsupported, runtime.GOOS)
}

// NewSocket returns [errors.ErrUnsupported].
func NewSocket(int, string) (*Socket, error) {
	return nil, fmt.Errorf("sdnotify: %w on %s", errors.ErrUnsupported, runtime.GOOS)
}

// SyscallConn returns [errors.ErrUnsupported].
func (s *Socket) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }

// Recv returns [os.ErrClosed]: there is nothing to receive from.
func (s *Socket) Recv() (m Message, cred struct{}, err error) {
	return Message{}, struct{}{}, os.ErrClosed
}

// Peek returns [os.ErrClosed].
func (s *Socket) Peek() (m Message, cred struct{}, err error) { return s.Recv() }

// Drop does nothing.
func (s *Socket) Drop() {}

// Close does nothing.
func (s *Socket) Close() error { return nil }
