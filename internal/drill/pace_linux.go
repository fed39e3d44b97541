package drill

import (
	"time"

	"golang.org/x/sys/unix"
)

// shortSleep sleeps about d, to some 50 µs: a timer of the runtime wakes from epoll_wait in whole milliseconds.
func shortSleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	// A signal may end it early; the caller looks at the clock anyway.
	_ = unix.Nanosleep(&ts, nil)
}
