package shim

import (
	"errors"
	"syscall"
)

const (
	// ExitFailed is the exit code of a shim that could not become the program;
	// [Process.Result] has the reason.
	ExitFailed = 127
	// ExitAborted is the exit code of a shim whose parent closed its end, or
	// died, before [Process.Go].
	ExitAborted = 125
)

// ErrAborted is returned by Go and Result when Abort or Close came first.
var ErrAborted = errors.New("shim: aborted")

// ErrDied is returned by Go and Result where the shim has ended without a report before
// it could execute the program. Somebody has killed it, or its own Go runtime has ended
// it before any code of this package, for want of a descriptor or a thread, and has
// written why to the standard error that the program would have had. The exit status
// of the pid tells more.
var ErrDied = errors.New("shim: it ended before it could execute the program")

// ExecError is the shim's report of why it did not become the program.
type ExecError struct {
	// Step is the system call or stage that failed, as in the package
	// documentation: "chdir", "setresuid", "execve" ….
	Step string
	// Path is the file or directory concerned, or empty.
	Path string
	// Detail says more where the errno alone would puzzle, or is empty.
	Detail string
	Errno  syscall.Errno
}

func (e *ExecError) Error() string {
	s := "shim: " + e.Step
	if e.Path != "" {
		s += " " + e.Path
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s + ": " + e.Errno.Error()
}

// Unwrap returns the errno.
func (e *ExecError) Unwrap() error { return e.Errno }

// StartError is a failure on the parent's side: no program runs.
type StartError struct {
	// Op is the system call or stage: "spec", "memfd_create", "fork" ….
	Op string
	// Detail says more, or is empty.
	Detail string
	// Err is a syscall.Errno, or errors.ErrUnsupported.
	Err error
}

func (e *StartError) Error() string {
	s := "shim: start: " + e.Op
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *StartError) Unwrap() error { return e.Err }
