package drill

import (
	"context"
	"time"
)

// standBack waits before a request looks for a connection again, after so many that ended before they took it: a server that
// ends each of its connections at once, as one that drains does, is not to be asked as fast as it can answer. The first move
// is at once, and the waits then double, from 1 ms to 128 ms. It waits for no longer than the deadline.
func standBack(moves int, deadline time.Time) {
	if moves < 2 {
		return
	}
	time.Sleep(min(time.Millisecond<<min(moves-2, 7), time.Until(deadline)))
}

// Pause waits for d, or for the end of the context, whose error it returns.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
