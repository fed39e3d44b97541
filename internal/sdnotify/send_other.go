//go:build !linux

package sdnotify

import (
	"errors"
	"fmt"
	"runtime"
)

// Sender is not supported on this system.
type Sender struct{}

var errOther = fmt.Errorf("sdnotify on %s: %w", runtime.GOOS, errors.ErrUnsupported)

// NewSender is not supported on this system.
func NewSender(string) (*Sender, error) { return nil, errOther }

// Send is not supported on this system.
func (s *Sender) Send(string, ...int) error { return errOther }

// Close is not supported on this system.
func (s *Sender) Close() error { return errOther }

// MonotonicUsec is zero on this system.
func MonotonicUsec() uint64 { return 0 }
