package fdpass

import "errors"

var (
	// ErrTruncated is wrapped by what Recv and RecvFDs return when the kernel
	// cut the message or its descriptors (MSG_TRUNC, MSG_CTRUNC), or when more
	// descriptors came than were asked for.
	ErrTruncated = errors.New("message truncated")

	// ErrShutDown is wrapped by what Adopt and Relisten return for a socket that
	// was shut down and that cannot be revived: a new one has to be bound.
	ErrShutDown = errors.New("socket was shut down for good")

	// ErrNoLink is wrapped by what Restore returns when the path is gone or
	// foreign and there is no hard link to bring the socket back from.
	ErrNoLink = errors.New("no hard link to restore the path from")
)

// BindError says which socket an operation failed for. Functions that make or
// change a Socket return it.
type BindError struct {
	Op   string // bind, adopt, apply, listen, restore, unlink, remove, nonblock
	Addr Addr
	// Err is an *os.SyscallError where a system call failed, so that errors.Is
	// finds the errno.
	Err error
	// Owner names the processes that hold the address, as "pid 12 (nginx)", when
	// Err is EADDRINUSE and /proc shows them. Otherwise it is empty.
	Owner string
}

func (e *BindError) Error() string {
	s := "fdpass: " + e.Op + " " + e.Addr.String() + ": " + e.Err.Error()
	if e.Owner != "" {
		s += ": held by " + e.Owner
	}
	return s
}

// Unwrap returns Err.
func (e *BindError) Unwrap() error { return e.Err }
