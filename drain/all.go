package drain

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// A Target is something that can stop politely and, failing that, at once.
// *Server, *Group and *http.Server are Targets.
type Target interface {
	// Shutdown finishes what is in flight and returns nil, or returns an
	// error when ctx ends first.
	Shutdown(ctx context.Context) error

	// Close ends everything at once.
	Close() error
}

// lateness is how long after the end of its context a Shutdown may take to
// return before it is closed under its hands. A Target that keeps the contract
// returns at once and its own account of what was left is the better one.
const lateness = 100 * time.Millisecond

// All shuts every target down at the same time and returns when all are done.
// When ctx ends it closes those that are still busy. The error joins one error
// per straggler; nil means that nothing was cut off. A target whose Shutdown
// fails for another reason is closed as well.
//
// All keeps the deadline even if a target does not: a Shutdown that has not
// returned 100 ms after the end of ctx is closed and no longer waited for, nor is
// a Close that takes as long. One that panics has failed, and its error has the
// stack; the others go on. With a context that never ends All waits for ever.
func All(ctx context.Context, targets ...Target) error {
	results := make(chan error)
	for _, t := range targets {
		// Waited for below: each sends one result.
		go shutOne(ctx, t, results)
	}
	var errs []error
	for range targets {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}

// shutOne drains one target and sends what went wrong, or nil.
func shutOne(ctx context.Context, t Target, results chan<- error) {
	done := make(chan error, 1)
	// Not waited for when t ignores both its context and Close: it sends into
	// the buffer and ends whenever Shutdown returns.
	go ask(ctx, t.Shutdown, done)
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		late := time.NewTimer(lateness)
		defer late.Stop()
		select {
		case err = <-done:
		case <-late.C:
			err = fmt.Errorf("Shutdown did not return: %w", context.Cause(ctx))
		}
	}
	if err == nil {
		results <- nil
		return
	}
	results <- errors.Join(fmt.Errorf("drain: %T: %w", t, err), cut(t))
}

// cut closes a target. One that writes its last words to a client that does not
// read may take for ever.
func cut(t Target) error {
	done := make(chan error, 1)
	// Not waited for beyond lateness: it sends into the buffer.
	go ask(context.Background(), func(context.Context) error { return t.Close() }, done)
	late := time.NewTimer(lateness)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-late.C:
		return fmt.Errorf("drain: %T: Close did not return", t)
	}
}

// errNoReturn is a function that ended its goroutine (runtime.Goexit).
var errNoReturn = errors.New("it ended without returning")

// ask calls a function of the caller's and sends what it returns. A panic there
// is sent as an error: it would end the process, with the work of all the others.
func ask(ctx context.Context, f func(context.Context) error, answer chan<- error) {
	err := errNoReturn
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
		answer <- err
	}()
	err = f(ctx)
}
