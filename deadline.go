package handover

import (
	"context"
	"sync"
	"time"

	"github.com/handoverd/handover/internal/until"
)

// deadline is when a draining generation should have left by itself. The zero
// value has none.
type deadline struct {
	mu   sync.Mutex
	end  time.Duration // on the clock of bootNow; 0: none
	live map[*until.Context]struct{}
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
	if d.end != 0 && d.end <= end {
		d.mu.Unlock()
		return
	}
	d.end = end
	var live []*until.Context
	for c := range d.live {
		live = append(live, c)
	}
	d.mu.Unlock()
	for _, c := range live { // without the lock, as others are told
		c.Shorten(onClock(end))
	}
}

// onClock is a time of bootNow on the clock of package time.
func onClock(at time.Duration) time.Time { return time.Now().Add(at - bootNow()) }

func (d *deadline) context(parent context.Context) (context.Context, context.CancelFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var end time.Time
	if d.end != 0 {
		end = onClock(d.end)
	}
	c := until.New(parent, end, ErrDrainDeadline)
	if d.live == nil {
		d.live = make(map[*until.Context]struct{})
	}
	d.live[c] = struct{}{}
	return c, func() {
		d.mu.Lock()
		delete(d.live, c)
		d.mu.Unlock()
		c.Cancel(context.Canceled)
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
// successor keeps to it. An earlier one that follows, such as that of a stop at
// short notice, shortens contexts that are in use: their Deadline is the new one,
// and package drain plans anew by it.
func (c *Child) DrainContext(parent context.Context) (context.Context, context.CancelFunc) {
	return c.deadline.context(parent)
}
