package drain

import (
	"context"
	"time"

	"github.com/handoverd/handover/internal/until"
)

// A Supervisor asks this process to leave, and knows the deadline.
// *handover.Child is one.
//
// It may know more, by methods that are looked for:
//
//   - LameDuck() <-chan struct{}: closed when the process is to serve on while
//     its readiness fails; Draining follows.
//   - DrainReason() string: why. "stop" and "removed" say that the service ends
//     and no other process takes over, from the begin or, where it changes, while
//     this one drains. Any other is a hand-over, "" and "reload" a plain one, and
//     so is whatever closes Draining where there is no such method.
type Supervisor interface {
	// Draining is closed when the process is to finish: another one serves, or
	// the service ends.
	Draining() <-chan struct{}

	// DrainContext gives a context that ends a little before the supervisor
	// ends the process.
	DrainContext(parent context.Context) (context.Context, context.CancelFunc)
}

// reason is what the supervisor has said, or "".
func (s *Sequence) reason() string {
	if d, ok := s.Supervisor.(interface{ DrainReason() string }); ok {
		return d.DrainReason()
	}
	return ""
}

// ends tells whether the supervisor has said that the service ends.
func (s *Sequence) ends() bool {
	reason := s.reason()
	return reason == "stop" || reason == "removed"
}

// asked is what the supervisor has asked for, and whether another generation takes
// over.
func (r *run) asked() (cause string, handover bool) {
	switch reason := r.reason(); {
	case r.ends():
		return reason, false
	case reason == "" || reason == "reload":
		return "handover", true
	default:
		return "handover (" + reason + ")", true
	}
}

// bySupervisor takes the supervisor's limits. A signal that comes later brings
// them forward: then somebody else ends this process as well.
func (r *run) bySupervisor() {
	ctx, cancel := r.Supervisor.DrainContext(context.WithoutCancel(r.signal))
	ended := context.AfterFunc(ctx, func() { r.limits.drain.Cancel(context.Cause(ctx)) })
	nearer := until.OnNearer(ctx, func() { r.follow(ctx) })
	if _, ok := until.Of(ctx); ok {
		r.follow(ctx)
	} else {
		r.shorten(time.Now().Add(r.deadline())) // it has set none, and there is always one
	}
	signalled := context.AfterFunc(r.signal, func() { r.shorten(time.Now().Add(r.deadline())) })
	r.limits.release = append(r.limits.release, func() { ended(); nearer(); signalled(); cancel() })
}

// follow takes the deadline that the supervisor's context has now.
func (r *run) follow(ctx context.Context) {
	if end, ok := until.Of(ctx); ok {
		r.shorten(end)
	}
}
