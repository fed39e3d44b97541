//go:build !linux

package shim

import "errors"

// Init does nothing here.
func Init() {}

// Process is a started shim; there are none on this system.
type Process struct {
	PID       int
	StartTime uint64
}

// Start fails with errors.ErrUnsupported.
func Start(s *Spec, fds []int, stdout, stderr int) (*Process, error) {
	if err := s.check(len(fds)); err != nil {
		return nil, err
	}
	return nil, &StartError{Op: "fork", Detail: programName, Err: errors.ErrUnsupported}
}

// Go fails with errors.ErrUnsupported.
func (p *Process) Go() error { return errors.ErrUnsupported }

// Abort fails with errors.ErrUnsupported.
func (p *Process) Abort() error { return errors.ErrUnsupported }

// Result fails with errors.ErrUnsupported.
func (p *Process) Result() error { return errors.ErrUnsupported }

// Pidfd returns -1.
func (p *Process) Pidfd() int { return -1 }

// Close fails with errors.ErrUnsupported.
func (p *Process) Close() error { return errors.ErrUnsupported }

// Adopted is a Process that nothing can be done with.
func Adopted(pid int, startTime uint64, _ int) *Process {
	return &Process{PID: pid, StartTime: startTime}
}
