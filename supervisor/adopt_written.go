package supervisor

// evWritten is no event of the state: it comes back when the turns of all events that
// were posted before it have been written.
type evWritten struct{ done chan struct{} }

func (evWritten) isEvent() {}

// written waits until what the caller has posted is in the state file. A message of a
// program is taken out of its channel only then: if handoverd is killed before, the
// keeper still has the channel with the message in it, and the next one reads it. It
// returns false when the loop has ended.
func (l *loop) written() bool {
	e := evWritten{make(chan struct{})}
	l.post(e)
	select {
	case <-e.done:
		return true
	case <-l.ended:
		return false
	}
}
