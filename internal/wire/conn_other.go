//go:build !linux

package wire

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
)

var errUnsupported = fmt.Errorf("wire: %w on %s", errors.ErrUnsupported, runtime.GOOS)

// Conn cannot be made on this system.
type Conn struct{}

// NewConn returns [errors.ErrUnsupported]. It leaves fd open.
func NewConn(fd int) (*Conn, error) { return nil, errUnsupported }

// Pair returns [errors.ErrUnsupported].
func Pair() (supervisor *Conn, childFD int, err error) { return nil, -1, errUnsupported }

// SyscallConn returns [errors.ErrUnsupported].
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return nil, errUnsupported }

// Unread cannot be made on this system.
type Unread struct{}

// Unread returns [errors.ErrUnsupported].
func (c *Conn) Unread() (*Unread, error) { return nil, errUnsupported }

// Wait returns [errors.ErrUnsupported].
func (u *Unread) Wait() error { return errUnsupported }

// Close returns [errors.ErrUnsupported].
func (u *Unread) Close() error { return errUnsupported }

// Send returns [errors.ErrUnsupported].
func (c *Conn) Send(m Message, files ...*os.File) error { return errUnsupported }

// Recv returns [errors.ErrUnsupported].
func (c *Conn) Recv() (Message, []*os.File, error) { return Message{}, nil, errUnsupported }

// Peek returns [errors.ErrUnsupported].
func (c *Conn) Peek() (Message, []*os.File, error) { return Message{}, nil, errUnsupported }

// Drop does nothing.
func (c *Conn) Drop() {}

// Close returns [errors.ErrUnsupported].
func (c *Conn) Close() error { return errUnsupported }
