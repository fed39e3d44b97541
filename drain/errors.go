package drain

import (
	"errors"
	"fmt"
)

// ErrDraining is returned by Group.Start once Shutdown or Close has begun: the
// work has not been admitted and belongs elsewhere.
var ErrDraining = errors.New("drain: draining, no new work is admitted")

// An IncompleteError says that a drain's context ended before the work did. It
// is returned by the Shutdown methods of Group and Server, which leave the
// active work running: Close cuts it.
type IncompleteError struct {
	// Active is how many pieces of work were left: a request being answered,
	// a hijacked connection, a tracked connection of a Group, a job.
	Active int

	// Idle is how many HTTP connections were closed while they waited for a
	// request. No response was cut with them. A request that its client sent
	// in the moment of the close is lost all the same, and the client cannot
	// know whether it was processed, so only a client that repeats idempotent
	// requests is sure to notice nothing. Always 0 for a Group.
	Idle int

	// Err is the context's cause.
	Err error
}

// Error names the counts and the cause.
func (e *IncompleteError) Error() string {
	if e.Idle > 0 {
		return fmt.Sprintf("drain: incomplete, %d active, %d idle: %v", e.Active, e.Idle, e.Err)
	}
	return fmt.Sprintf("drain: incomplete, %d active: %v", e.Active, e.Err)
}

// Unwrap returns the context's cause.
func (e *IncompleteError) Unwrap() error { return e.Err }
