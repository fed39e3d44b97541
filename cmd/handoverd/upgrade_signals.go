package main

import (
	"os"
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

// holdSignals has those ignored that would end the next image before it asks for them.
// quiet: all that came before have been obeyed.
func holdSignals() (release func(), quiet bool) {
	restore, err := signals.Ignore()
	if err != nil {
		return func() {}, false
	}
	signals.Settle()
	channels := signals.Channels()
	passed := make(chan struct{}, len(channels))
	for _, c := range channels {
		select {
		case c <- mark{passed}:
		default: // full: they have not been obeyed
			return restore, false
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
			return restore, false
		}
	}
	return restore, true
}
