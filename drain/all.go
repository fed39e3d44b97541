package drain

import (
	"context"
	"errors"
	"fmt"
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
// All keeps the deadline even if a Shutdown does not: one that has not returned
// 100 ms after the end of ctx is closed and no longer waited for. With a
// context that never ends All waits for ever.
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
	go callShutdown(ctx, t, done)
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
	results <- errors.Join(fmt.Errorf("drain: %T: %w", t, err), t.Close())
}

func callShutdown(ctx context.Context, t Target, done chan<- error) {
	done <- t.Shutdown(ctx)
}
