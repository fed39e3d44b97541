package supervisor

import (
	"errors"
	"os"
	"time"

	"github.com/handoverd/handover/internal/sdnotify"
	"github.com/handoverd/handover/internal/wire"
)

// readControl turns a child's messages into events until its end is closed: by
// the child, which is no event (its exit is), or by release. Run waits for it.
func (l *loop) readControl(c *child) {
	defer l.readers.Done()
	for {
		m, files, err := c.ctl.Peek()
		for _, f := range files {
			_ = f.Close() // no verb of a child carries descriptors
		}
		var bad *wire.DecodeError
		switch {
		case errors.As(err, &bad):
			_ = c.ctl.Send(wire.Message{Verb: wire.Error, Reply: bad.Verb, Error: bad.Err.Error()})
			c.ctl.Drop()
			continue
		case errors.Is(err, wire.ErrEmpty), errors.Is(err, wire.ErrTruncated):
			_ = c.ctl.Send(wire.Message{Verb: wire.Error, Error: err.Error()})
			c.ctl.Drop()
			continue
		case err != nil:
			return
		}
		l.message(c, m)
		if !l.written() {
			return
		}
		c.ctl.Drop()
	}
}

// message handles one message of the child protocol.
func (l *loop) message(c *child, m wire.Message) {
	switch m.Verb {
	case wire.Hello:
		l.post(evHello{c.at})
	case wire.Ready:
		l.post(evReady{c.at, "native"})
	case wire.Draining:
		l.post(evAnswered{c.at})
	case wire.Extend:
		l.post(evExtend{c.at, time.Duration(m.ExtendNS)})
	case wire.Status:
		l.said(c, m.Text)
	case wire.Sockets:
		l.call(func() { l.sendSockets(c) })
	case wire.Bye:
	default:
		_ = c.ctl.Send(wire.Message{Verb: wire.Error, Reply: m.Verb, Error: "not a message of a child, or not supported by this version"})
	}
}

// awaitRead has the machine told when a generation has received all that it was sent. Who cannot be sent anything is
// told of as if it had: the signal is all that can reach it.
func (l *loop) awaitRead(a at) {
	c := l.children[a]
	if c == nil {
		return
	}
	if c.ctl == nil {
		l.queue(evRead{a})
		return
	}
	c.endUnread()
	u, err := c.ctl.Unread()
	if err != nil { // no descriptor, for one: then only its answer tells
		l.log.Warn("whether it reads the drain message is not seen", "service", a.Service, "gen", a.Gen, "err", err)
		return
	}
	c.unread = u
	l.readers.Go(func() { // Run waits for it
		err := u.Wait()
		_ = u.Close()
		if err == nil {
			l.post(evRead{a})
		}
	})
}

// endUnread ends a wait of awaitRead.
func (c *child) endUnread() {
	if c.unread != nil {
		_ = c.unread.Close() // closed already where it was received
	}
}

// readNotify turns sd_notify datagrams into events until the socket is closed.
// The socket itself tells the generation, so a sender that has exited already
// still counts. Run waits for it.
func (l *loop) readNotify(c *child) {
	defer l.readers.Done()
	for {
		m, _, err := c.notify.Peek()
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case errors.Is(err, sdnotify.ErrEmpty), errors.Is(err, sdnotify.ErrNUL), errors.Is(err, sdnotify.ErrTruncated):
			c.notify.Drop()
			continue
		case err != nil:
			return
		}
		l.post(evNotify{c.at})
		if m.ExtendUsec > 0 {
			l.post(evExtend{c.at, time.Duration(m.ExtendUsec) * time.Microsecond})
		}
		if m.Status != "" {
			l.said(c, m.Status)
		}
		if m.Ready {
			l.post(evReady{c.at, "notify"})
		}
		if !l.written() {
			return
		}
		c.notify.Drop()
	}
}
