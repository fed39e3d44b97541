package drain

import (
	"cmp"
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
//   - Stopping() <-chan struct{}: closed when the service ends and no other
//     process takes over, before Draining or while this one drains. Without it
//     whatever closes Draining is a hand-over.
//   - DrainReason() string: why, for the Report; "" or "reload" is a plain
//     hand-over.
type Supervisor interface {
	// Draining is closed when the process is to finish: another one serves, or
	// the service ends.
	Draining() <-chan struct{}

	// DrainContext gives a context that ends a little before the supervisor
	// ends the process.
	DrainContext(parent context.Context) (context.Context, context.CancelFunc)
}

// ends tells whether the supervisor has said that the service ends.
func (s *Sequence) ends() bool {
	t, ok := s.Supervisor.(interface{ Stopping() <-chan struct{} })
	if !ok {
		return false
	}
	select {
	case <-t.Stopping():
		return true
	default:
		return false
	}
}

// asked is what the supervisor has asked for, and whether another generation takes
// over.
func (r *run) asked() (cause string, handover bool) {
	var reason string
	if d, ok := r.Supervisor.(interface{ DrainReason() string }); ok {
		reason = d.DrainReason()
	}
	switch {
	case r.ends():
		return cmp.Or(reason, "stop"), false
	case reason == "" || reason == "reload":
		return "handover", true
	}
	return "handover (" + reason + ")", true
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
