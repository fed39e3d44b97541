package drill

import "time"

// longSleep is the part of a sleep that a runtime timer may do; the rest needs better than its millisecond.
const longSleep = 5 * time.Millisecond

// pace makes requests due, evenly spaced, until the run stops, and then calls last.
func (r *Run) pace(send func(due time.Time), last func()) {
	defer r.clients.Done()
	defer last()
	gap := float64(time.Second) / r.load.Rate
	for i := range r.load.Requests {
		due := r.begin.Add(time.Duration(float64(i) * gap))
		if !r.sleepUntil(due) {
			return
		}
		r.due.Add(1)
		send(due)
	}
	r.halt()
}

// sleepUntil reports false when the run stops before t.
func (r *Run) sleepUntil(t time.Time) bool {
	for {
		d := time.Until(t)
		switch {
		case d > longSleep:
			timer := time.NewTimer(d - longSleep)
			select {
			case <-timer.C:
			case <-r.stopping:
			}
			timer.Stop()
		case d > 0:
			shortSleep(d)
		}
		select {
		case <-r.stopping:
			return false
		default:
		}
		if d <= 0 {
			return true
		}
	}
}

// queue gives a due request to the next free client.
func (r *Run) queue(due time.Time) {
	select {
	case r.work <- due:
	default:
		r.book.fault(faultUnsent)
	}
}
