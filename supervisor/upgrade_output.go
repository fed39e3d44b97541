package supervisor

import (
	"sync"
	"sync/atomic"
	"time"
)

// passing tells what of the output is on its way.
type passing struct {
	ends atomic.Int64 // files of generations that are gone, with something to pass on yet

	mu     sync.Mutex
	steps  int           // parts that are being passed on and written down as such
	still  chan struct{} // closed when there are none
	paused chan struct{} // closed at the end of a pause; nil: there is none
}

// begin waits for the end of a pause, and end has to follow.
func (p *passing) begin() {
	p.mu.Lock()
	for p.paused != nil {
		over := p.paused
		p.mu.Unlock()
		<-over
		p.mu.Lock()
	}
	p.steps++
	p.mu.Unlock()
}

func (p *passing) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.steps--; p.steps == 0 && p.still != nil {
		close(p.still)
		p.still = nil
	}
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
	p := &o.passing
	p.mu.Lock()
	p.paused = make(chan struct{})
	var still chan struct{}
	if p.steps > 0 {
		still = make(chan struct{})
		p.still = still
	}
	p.mu.Unlock()
	if still != nil {
		select {
		case <-still:
		case <-time.After(pauseLimit):
		}
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		close(p.paused)
		p.paused, p.still = nil, nil
	}
}
