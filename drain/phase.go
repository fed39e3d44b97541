package drain

import (
	"fmt"
	"time"
)

// A Phase is where a Sequence is. It only ever goes forward.
type Phase int32

// The phases, in their order.
const (
	// Serving is normal life, and the zero value.
	Serving Phase = iota

	// LameDuck still serves everything, while the routing layer is told to send
	// clients elsewhere: readiness is 503.
	LameDuck

	// Draining admits nothing new and finishes what was admitted.
	Draining

	// Closing closes what the work needed: pools, telemetry, files.
	Closing

	// Done is the end; the program may exit.
	Done
)

var phaseNames = [...]string{"serving", "lame duck", "draining", "closing", "done"}

// String is the phase's name: "serving", "lame duck", "draining", "closing",
// "done".
func (p Phase) String() string {
	if p < Serving || p > Done {
		return fmt.Sprintf("Phase(%d)", int32(p))
	}
	return phaseNames[p]
}

// MarshalText is String, for JSON.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// A Transition is one change of phase.
type Transition struct {
	From, To Phase

	// At is when.
	At time.Time

	// Cause says why: what began the sequence, or what ended the phase before.
	Cause string
}

// A Report is the account of a Sequence, complete once it is done.
type Report struct {
	// Cause is what began it: the cause of Run's context, what Begin was given,
	// or what the supervisor asked for: "handover", "handover (rolled back)",
	// "stop", "removed" (the service is not configured any more).
	Cause string `json:"cause"`

	// Handover says that the supervisor asked because another generation serves,
	// or will.
	Handover bool `json:"handover"`

	// Stopped says that the supervisor has ended the service: from the begin, or,
	// after a hand-over, before this generation was done.
	Stopped bool `json:"stopped"`

	// Begun is when.
	Begun time.Time `json:"begun"`

	// LameDuck is how the wait for the routing layer ended.
	LameDuck WaitResult `json:"lame_duck"`

	// DrainTook and CloseTook are how long the phases took, Took is all of it.
	DrainTook time.Duration `json:"drain_took_ns"`
	CloseTook time.Duration `json:"close_took_ns"`
	Took      time.Duration `json:"took_ns"`

	// DeadlineReached says that something was cut.
	DeadlineReached bool `json:"deadline_reached"`

	// Idle is how many idle HTTP connections were closed at the deadline: see
	// IncompleteError.
	Idle int `json:"idle"`

	// Stragglers is what was cut, in the order of the targets and closers.
	Stragglers []Straggler `json:"stragglers"`
}

// A CutError is returned by Sequence.Run when something was not over in time.
type CutError struct {
	// Stragglers names what was cut.
	Stragglers []Straggler

	// Err is why: ErrDeadline, or the cause that the supervisor gave.
	Err error
}

// Error names the cause and the first stragglers.
func (e *CutError) Error() string {
	return fmt.Sprintf("drain: cut %d: %v: %s", len(e.Stragglers), e.Err, names(e.Stragglers))
}

// Unwrap returns the cause.
func (e *CutError) Unwrap() error { return e.Err }
