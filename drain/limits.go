package drain

import (
	"context"
	"sync"
	"time"

	"github.com/handoverd/handover/internal/until"
)

// limits is when the drain must be over and when everything must. Both can only
// come nearer. The contexts tell those who have planned by them.
type limits struct {
	drain *until.Context // what is drained plans by its deadline
	all   *until.Context

	release []func()
}

// begin sets the context that both derive from.
func (l *limits) begin(parent context.Context) {
	l.all = until.New(parent, time.Time{}, ErrDeadline)
	l.drain = until.New(parent, time.Time{}, ErrDeadline)
}

// last is when everything must be over; zero if nobody has said.
func (l *limits) last() time.Time {
	end, _ := l.all.Deadline()
	return end
}

// shorten brings both nearer, unless they are nearer already.
func (l *limits) shorten(drainEnd, end time.Time) {
	l.all.Shorten(end)
	l.drain.Shorten(drainEnd)
}

// stop releases what the limits hold.
func (l *limits) stop() {
	for _, f := range l.release {
		f()
	}
	l.drain.Cancel(context.Canceled)
	l.all.Cancel(context.Canceled)
}

// portion is how much of the time to the deadline of ctx a phase may use that wants
// d: at most half of what is left, so that what it begins can end. Without a
// deadline it is d.
func portion(ctx context.Context, d time.Duration) time.Duration {
	if deadline, bounded := until.Of(ctx); bounded {
		d = min(d, time.Until(deadline)/2)
	}
	return max(d, 0)
}

// An alarm calls f some time before the deadline of a context, wherever that
// moves. Each call of f but the first is to do nothing.
type alarm struct {
	ctx   context.Context
	early time.Duration
	f     func()
	stop  func() // of being told; set once

	mu    sync.Mutex
	timer *time.Timer
	over  bool
}

// before has f called early before the deadline of ctx, and at the soonest when half
// of what is left now is over. Without a deadline f is called when there is one.
func before(ctx context.Context, early time.Duration, f func()) *alarm {
	a := &alarm{ctx: ctx, early: early, f: f}
	a.stop = until.OnNearer(ctx, a.set)
	a.set()
	return a
}

func (a *alarm) set() {
	deadline, bounded := until.Of(a.ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !bounded || a.over {
		return
	}
	if a.timer != nil {
		a.timer.Stop()
	}
	a.timer = time.AfterFunc(time.Until(deadline)-portion(a.ctx, a.early), a.f)
}

// cancel ends the waiting.
func (a *alarm) cancel() {
	a.stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	if a.timer != nil {
		a.timer.Stop()
	}
}
