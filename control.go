package handover

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/handoverd/handover/internal/wire"
)

// read handles what the supervisor says until the connection ends. It is the
// only goroutine that closes Child's channels.
func (c *Child) read() {
	defer close(c.lost)
	for {
		m, files, err := c.conn.Recv()
		for _, f := range files {
			_ = f.Close() // nothing was asked for
		}
		var bad *wire.DecodeError
		switch {
		case err == nil:
			c.handle(m)
		case errors.As(err, &bad):
			c.refuse(bad.Verb, err)
		case errors.Is(err, wire.ErrEmpty), errors.Is(err, wire.ErrTruncated):
			c.refuse("", err)
		case errors.Is(err, os.ErrClosed):
			c.lose(net.ErrClosed)
			return
		default:
			c.lose(fmt.Errorf("%w: %w", ErrSupervisorGone, err))
			return
		}
	}
}

// lose notes why nothing more will be heard. What does not accept yet never
// will: a supervisor that gives a generation up ends the connection before it
// kills, so to accept now could lose connections.
func (c *Child) lose(cause error) {
	c.lostCause = cause
	c.accept.settle(cause)
}

func (c *Child) handle(m wire.Message) {
	switch m.Verb {
	case wire.Accept:
		c.accept.settle(nil)
	case wire.Ack:
		c.accept.settle(nil)
		closeOnce(c.acked)
	case wire.LameDuck:
		closeOnce(c.lameDuck)
	case wire.Drain:
		c.drain(m.Reason, m.DeadlineNS)
		// Also to a repeated one: a new supervisor waits for its own answer.
		// One that does not read gets none, and sends the signal after 1 s.
		_ = c.conn.Send(wire.Message{Verb: wire.Draining})
	case wire.Error:
		switch m.Reply {
		case "", wire.Hello, wire.Ready:
			if closed(c.refused) {
				return
			}
			c.refusal = fmt.Errorf("handover: the supervisor refused generation %d: %s", c.env.generation, m.Error)
			c.accept.settle(c.refusal)
			close(c.refused)
		}
		// Any other refusal changes nothing: an older supervisor, perhaps,
		// that does not know a verb.
	default:
		c.refuse(m.Verb, errors.New("not for a child"))
	}
}

// refuse answers a message that cannot be handled. An error is never answered
// with an error: two ends could go on like that for ever.
func (c *Child) refuse(verb wire.Verb, why error) {
	if verb == wire.Error {
		return
	}
	// Without an answer the supervisor takes this process for a silent one.
	_ = c.conn.Send(wire.Message{Verb: wire.Error, Reply: verb, Error: why.Error()})
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// closeOnce closes ch unless it is closed. Only one goroutine calls it: read or, without a supervisor, self.watch.
func closeOnce(ch chan struct{}) {
	if !closed(ch) {
		close(ch)
	}
}

func peerGone(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}
