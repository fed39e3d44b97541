package handover

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// The errors to compare with; they come wrapped.
var (
	// ErrNoSocket: Listen, ListenPacket or File asked for a name that was not
	// inherited, or that was taken before.
	ErrNoSocket = errors.New("no such socket")
	// ErrInherited: Inherit or Standalone was called before.
	ErrInherited = errors.New("handover: Inherit was called before")
	// ErrSupervisorGone: the supervisor ended or closed the connection before
	// it acknowledged Ready. Returned by Inherit, Ready, Extend, and by Accept
	// and ReadFrom of what Listen and ListenPacket gave.
	ErrSupervisorGone = errors.New("the supervisor is gone")
	// ErrDrainDeadline is the cause (context.Cause) of a DrainContext that
	// ended by the supervisor's deadline. It is a context.DeadlineExceeded.
	ErrDrainDeadline = fmt.Errorf("handover: drain deadline reached: %w", context.DeadlineExceeded)
)

var (
	errNotYet = errors.New("not accepting yet: the supervisor has not said so")
	errLate   = errors.New("sockets are taken before Ready")
)

// SocketError says which socket something failed for.
type SocketError struct {
	Op      string // "listen", "listen packet", "file", "accept", "read" …
	Name    string // as given to Listen
	Network string
	Address string // as given to Listen; empty if the socket is inherited
	Err     error  // a system call's error, net.ErrClosed, or an Err of this package
}

func (e *SocketError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "handover: %s %q", e.Op, e.Name)
	for _, s := range []string{e.Network, e.Address} {
		if s != "" {
			b.WriteString(" " + s)
		}
	}
	return b.String() + ": " + e.Err.Error()
}

// Unwrap gives Err.
func (e *SocketError) Unwrap() error { return e.Err }

// Timeout says whether a deadline of the socket passed (net.Error).
func (e *SocketError) Timeout() bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](e.Err)
	return ok && t.Timeout()
}

// Temporary is false (net.Error).
func (e *SocketError) Temporary() bool { return false }
