package handover

import (
	"context"
	"maps"
	"sync"
	"time"
)

// deadline is when a draining generation should have left by itself. The zero
// value has none.
type deadline struct {
	mu    sync.Mutex
	end   time.Duration // on the clock of bootNow; 0: none
	live  map[uint64]context.CancelCauseFunc
	count uint64
}

// set notes the supervisor's deadline, in nanoseconds of CLOCK_BOOTTIME; 0 is
// none. The end is a little before it, so that the program leaves by itself: 5
// % of what is left, at most 1 s. Of two the earlier one holds.
func (d *deadline) set(ns int64) {
	if ns == 0 {
		return
	}
	left := time.Duration(ns) - bootNow()
	end := time.Duration(ns) - min(time.Second, max(0, left/20))
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.end != 0 && d.end <= end {
		return
	}
	d.end = end
	for _, cancel := range maps.Clone(d.live) {
		time.AfterFunc(end-bootNow(), func() { cancel(ErrDrainDeadline) })
	}
}

func (d *deadline) context(parent context.Context) (context.Context, context.CancelFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	base, cancelBase := context.WithCancelCause(parent)
	ctx, cancelTimer := base, context.CancelFunc(func() {})
	if d.end != 0 {
		ctx, cancelTimer = context.WithDeadlineCause(base, time.Now().Add(d.end-bootNow()), ErrDrainDeadline)
	}
	if d.live == nil {
		d.live = make(map[uint64]context.CancelCauseFunc)
	}
	d.count++
	id := d.count
	d.live[id] = cancelBase
	return ctx, func() {
		d.mu.Lock()
		delete(d.live, id)
		d.mu.Unlock()
		cancelTimer()
		cancelBase(context.Canceled)
	}
}

// DrainContext gives a context for the drain: it ends with parent, and a
// little (5 %, at most 1 s) before the moment at which the supervisor kills
// this process. Call it after Draining is closed. context.Cause is
// [ErrDrainDeadline] for the deadline, parent's cause otherwise.
//
// There is no deadline if none was given: before Draining is closed, without a
// supervisor, or when the supervisor died without asking for a drain. A
// deadline once given holds even if the supervisor dies, because its
// successor keeps to it. An earlier one that follows shortens contexts that
// are in use.
func (c *Child) DrainContext(parent context.Context) (context.Context, context.CancelFunc) {
	return c.deadline.context(parent)
}
