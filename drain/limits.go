package drain

import (
	"context"
	"sync"
	"time"
)

// limits is when the drain must be over and when everything must. Both can only
// come nearer. It is the context of the drain, so that what is drained can plan
// by its Deadline.
type limits struct {
	context.Context

	cancel  context.CancelCauseFunc
	release []func()

	mu       sync.Mutex
	drainEnd time.Time // zero: none
	end      time.Time // zero: none
	timer    *time.Timer
}

// begin sets the context that it derives from.
func (l *limits) begin(parent context.Context) {
	l.Context, l.cancel = context.WithCancelCause(parent)
}

// Deadline is when the drain must be over.
func (l *limits) Deadline() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.drainEnd, !l.drainEnd.IsZero()
}

// last is when everything must be over; zero if nobody has said.
func (l *limits) last() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// shorten brings both nearer, unless they are nearer already.
func (l *limits) shorten(drainEnd, end time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.end.IsZero() && !end.Before(l.end) {
		return
	}
	l.drainEnd, l.end = drainEnd, end
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer = time.AfterFunc(time.Until(drainEnd), l.expire)
}

func (l *limits) expire() { l.cancel(ErrDeadline) }

// stop releases what the limits hold.
func (l *limits) stop() {
	l.mu.Lock()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	for _, f := range l.release {
		f()
	}
	l.cancel(context.Canceled)
}
