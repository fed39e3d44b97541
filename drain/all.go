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

// A ListenerCloser is a Target that can close its listeners before it tells anybody
// to leave. *Server, *Stopper and *Group are.
type ListenerCloser interface {
	// CloseListeners closes them; what has been accepted goes on as before.
	// Shutdown follows.
	CloseListeners() error
}

// lateness is how long after the end of its context a Shutdown may take to
// return before it is closed under its hands. A Target that keeps the contract
// returns at once and its own account of what was left is the better one.
const lateness = 100 * time.Millisecond

// listenersLast is the longest that the closing of listeners is waited for. It takes
// no time but where a listener of the caller's hangs in Close.
const listenersLast = time.Second

// All closes the listeners of all targets that are ListenerClosers, then shuts
// every target down at the same time, and returns when all are done. So a client
// that is told to leave by one target, a WebSocket of Streams, say, and connects
// anew at once does not meet the listener of another one here. A target of another
// kind, such as *http.Server, closes its own while the others are told.
//
// When ctx ends All closes those that are still busy. The error joins one error
// per straggler; nil means that nothing was cut off. A target whose Shutdown
// fails for another reason is closed as well.
//
// All keeps the deadline even if a target does not: a Shutdown that has not
// returned 100 ms after the end of ctx is closed and no longer waited for, nor is
// a Close that takes as long. One that panics has failed, and its error has the
// stack; the others go on. With a context that never ends All waits for ever.
func All(ctx context.Context, targets ...Target) error {
	closeListeners(ctx, targets)
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

// closeListeners closes the listeners of those targets that can. The errors are
// those of their Shutdown, which comes to it again.
func closeListeners(ctx context.Context, targets []Target) {
	closed := make(chan error, len(targets))
	n := 0
	for _, t := range targets {
		if c, ok := t.(ListenerCloser); ok {
			n++
			// Waited for below, unless a listener hangs.
			go ask(ctx, func(context.Context) error { return c.CloseListeners() }, closed)
		}
	}
	late := time.NewTimer(listenersLast)
	defer late.Stop()
	for range n {
		select {
		case <-closed:
		case <-ctx.Done():
			return
		case <-late.C:
			return
		}
	}
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
