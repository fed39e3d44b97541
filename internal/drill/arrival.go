package drill

import (
	"slices"
	"time"
)

// The last arrival of a window: how long after its begin the last request was sent, on a fresh connection, that an older
// generation answered. It is the tail of the old generation as a client sees it, behind whatever stands between: a balancer
// that has not noticed yet, or the instances of a rolling restart that come last. Only fresh connections count, because a
// kept one belongs to the generation that accepted it, however long it lives.

// arrived takes note of a good answer that tells its generation; called with the lock held.
//
// It belongs to the window that superseded its generation: of those that began before the request was sent, and before which
// the newest generation seen was this one or a newer one, the first; where several began with the same newest, because
// reloads failed, the last of these.
func (b *book) arrived(o outcome) {
	if o.reused || o.resent {
		return
	}
	var superseded *Window
	latest := true
	for _, w := range slices.Backward(b.windows) {
		if o.start.Before(w.begin) {
			continue
		}
		if latest {
			w.fresh++
			latest = false
		}
		if w.before < o.generation {
			break
		}
		if superseded == nil || w.before < superseded.before {
			superseded = w
		}
		if w.before == o.generation {
			break // what comes before cannot be nearer
		}
	}
	if superseded != nil {
		superseded.lastArrival = max(superseded.lastArrival, o.start.Sub(superseded.begin))
	}
}

// lastArrival is window i's. It is known where the clients saw a generation before it, a newer one between it and the next
// window, and fresh connections in that time. 0 and known: no request that was sent after the trigger came to an older
// generation. Called with the lock held.
func (b *book) lastArrival(i int) (last time.Duration, known bool) {
	w, newest := b.windows[i], b.newest
	if i+1 < len(b.windows) {
		newest = b.windows[i+1].before
	}
	if w.before == 0 || newest <= w.before || w.fresh == 0 {
		return 0, false
	}
	return w.lastArrival, true
}
