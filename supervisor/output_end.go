package supervisor

import "time"

// closeWait is how long the end waits for somebody to read what is passed on, where
// nobody does.
const closeWait = time.Second

// endBacklog is how much of what a program has written is still passed on when
// handoverd ends, whose time is short.
const endBacklog = 1 << 20

// backlog is how far a file may be ahead of what is passed on.
func (o *output) backlog() int64 {
	if o.closing.Load() {
		return endBacklog
	}
	return maxBacklog
}

// close has what is left passed on. It waits for a reader that is slow until limit,
// and for closeWait where nobody reads anything.
func (o *output) close(limit time.Duration) {
	o.closing.Store(true)
	o.mu.Lock()
	gens := make([]at, 0, len(o.files))
	for a := range o.files {
		gens = append(gens, a)
	}
	o.mu.Unlock()
	for _, a := range gens {
		o.end(a)
	}
	// It is waited for here, but what nobody reads does not hold the end up.
	passed := make(chan struct{})
	go o.wait(passed)
	if !o.readToEnd(passed, limit) {
		o.log.Warn("not all output was passed on: nobody reads it, or too slowly")
	}
	_ = o.watch.close()
}

// readToEnd waits for passed as close says.
func (o *output) readToEnd(passed <-chan struct{}, limit time.Duration) bool {
	late := time.After(max(limit, closeWait))
	for seen := o.count.Load(); ; {
		select {
		case <-passed:
			return true
		case <-late:
			return false
		case <-time.After(closeWait):
			now := o.count.Load()
			if now == seen {
				return false
			}
			seen = now
		}
	}
}

// wait ends when all has been passed on; close waits for it, though not for ever.
func (o *output) wait(passed chan<- struct{}) {
	defer close(passed)
	o.readers.Wait()
}

// timeLeft is how long the process may still live in order: until a stop has to be
// over, deadline included.
func (l *loop) timeLeft() time.Duration {
	if l.state.Stop == nil {
		return 0
	}
	return l.state.Stop.Hard.Until()
}
