package drain

import (
	"errors"
	"fmt"
)

// ErrDraining is returned by Group.Start once Shutdown or Close has begun: the
// work has not been admitted and belongs elsewhere.
var ErrDraining = errors.New("drain: draining, no new work is admitted")

// ErrDeadline is the cause with which a Sequence ends its drain when the time
// for it is used up.
var ErrDeadline = errors.New("drain: the deadline is reached")

// ErrEnding is the cause with which the contexts of requests and jobs end
// shortly before a drain's deadline: what is not over by now will be cut, and
// there is just time left to say so to the client, or to give a job back.
var ErrEnding = errors.New("drain: the deadline is near")

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

	// Stragglers names the active work, the oldest first. It may differ from
	// Active by what began or ended between two looks, and because a
	// connection of HTTP/2 carries several requests.
	Stragglers []Straggler

	// Err is the context's cause.
	Err error
}

// Error names the counts, the cause, and the first stragglers.
func (e *IncompleteError) Error() string {
	text := fmt.Sprintf("drain: incomplete, %d active", e.Active)
	if e.Idle > 0 {
		text += fmt.Sprintf(", %d idle", e.Idle)
	}
	text += fmt.Sprintf(": %v", e.Err)
	if len(e.Stragglers) > 0 {
		text += ": " + names(e.Stragglers)
	}
	return text
}

// Unwrap returns the context's cause.
func (e *IncompleteError) Unwrap() error { return e.Err }
