package supervisor

import (
	"sync"
	"sync/atomic"
	"time"
)

// passing tells what of the output is on its way.
type passing struct {
	step sync.RWMutex // held for reading while a part is passed on and written down as such
	ends atomic.Int64 // files of generations that are gone, with something to pass on yet
}

// passed reports whether all output of generations that are gone has been passed on:
// their files have no name any more.
func (o *output) passed() bool { return o.passing.ends.Load() == 0 }

// pauseLimit is how long an upgrade waits for a part of the output that is being passed
// on. Where nobody reads it, it comes again from the next image.
const pauseLimit = time.Second

// pause has nothing passed on until resume: the next image goes on exactly after what
// is written down.
func (o *output) pause() (resume func()) {
	pause := time.NewTicker(time.Millisecond)
	defer pause.Stop()
	for begin := time.Now(); time.Since(begin) < pauseLimit; <-pause.C {
		if o.passing.step.TryLock() {
			return o.passing.step.Unlock
		}
	}
	return func() {}
}
