package main

import (
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/handoverd/handover/internal/signals"
)

// quietLimit is how long an upgrade waits for the signals that came before it.
const quietLimit = 100 * time.Millisecond

// mark goes through a channel of signals behind those that came before it.
type mark struct{ passed chan<- struct{} }

func (mark) String() string { return "mark" }
func (mark) Signal()        {}

var _ os.Signal = mark{}

// caught are the signals that have come. Until the first turn of an image none of them is obeyed.
var caught caughtSignals

type caughtSignals struct{ set atomic.Uint64 }

func (c *caughtSignals) note(sig os.Signal) {
	if n, ok := sig.(syscall.Signal); ok {
		c.set.Or(1 << n)
	}
}

// unobeyed is what an image that goes back passes on to the one before it: a request to stop, 0 without one.
func (c *caughtSignals) unobeyed() syscall.Signal {
	signals.Settle()
	for _, channel := range signals.Channels() {
		select {
		case sig := <-channel:
			c.note(sig)
		default:
		}
	}
	set := c.set.Load()
	for _, sig := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGINT} {
		if set&(1<<sig) != 0 {
			return sig
		}
	}
	return 0
}

// holdSignals has those ignored that would end the next image before it asks for them.
// quiet: all that came before have been obeyed. Then SIGTERM and SIGQUIT, of which none has to be lost, end this
// image as they would the next.
func holdSignals() (release func(), quiet bool) {
	restore, err := signals.Ignore()
	if err != nil {
		return func() {}, false
	}
	if !obeyed() {
		return restore, false
	}
	catch, err := signals.Default()
	if err != nil {
		return restore, false
	}
	return func() { catch(); restore() }, obeyed() // one may have come in between
}

// obeyed reports whether every signal that came before has been obeyed.
func obeyed() bool {
	signals.Settle()
	channels := signals.Channels()
	passed := make(chan struct{}, len(channels))
	for _, c := range channels {
		select {
		case c <- mark{passed}:
		default: // full: they have not been obeyed
			return false
		}
	}
	late := time.After(quietLimit)
	for range channels {
		select {
		case <-passed: // also if this process was kept from a processor for so long
			continue
		default:
		}
		select {
		case <-passed:
		case <-late:
			return false
		}
	}
	return true
}
