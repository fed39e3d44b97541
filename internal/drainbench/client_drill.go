package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/internal/site"
)

// drillClient is the load generator of the project.
type drillClient struct {
	run   *drill.Run
	relay *drill.Relay // nil: none
}

func (c drillClient) count() int {
	r := c.run.Snapshot()
	if r.Load.Mode == drill.ModeWebSocket {
		return ended(&r)
	}
	return r.Sent
}

// ended is how many WebSockets the server has ended, in whatever way.
func ended(r *drill.Report) int {
	n := 0
	for _, closes := range r.Closes {
		n += closes
	}
	return n
}

func (c drillClient) finish() tally {
	r := c.run.Stop()
	if c.relay != nil {
		_ = c.relay.Close() // resets what is left of connections that nobody uses any more
	}
	return countDrill(&r)
}

// countDrill counts requests. Of WebSockets it counts those that the server ended, and those are lost that it did not close
// with 1012; a message that crosses the goodbye on its way is not answered, and its client knows that it has to ask anew.
func countDrill(r *drill.Report) tally {
	t := newTally()
	t.Total = r.Sent
	for kind, n := range r.Failures {
		if kind != drill.KindClosed {
			t.loseN(string(kind), n)
		}
	}
	t.note("refused by HTTP/2 before it was processed, sent again", r.RefusedStreams)
	if r.Load.Mode == drill.ModeWebSocket {
		t.Total = ended(r)
		for code, n := range r.Closes {
			if code != site.ServiceRestart && code != noCloseFrame {
				t.loseN("closed with "+strconv.Itoa(code), n)
			}
		}
		t.note("messages that crossed the goodbye, to be sent again", r.Failures[drill.KindClosed])
	}
	for _, f := range r.Samples {
		if f.Kind == drill.KindOther && f.Err != nil {
			t.sample(f.Err)
		}
	}
	for fault, n := range r.GeneratorFaults {
		t.note("fault of the generator: "+fault, n)
	}
	return t
}

// noCloseFrame is how the end of a connection without a close frame is called (RFC 6455, 7.1.5). It is a failure of its own.
const noCloseFrame = 1006

// startDrill begins a load, through a relay if it has a way to go.
func startDrill(b *bench, l drill.Load, far bool) (client, error) {
	c := drillClient{}
	l.Network, l.Address = "tcp", b.addr
	if far {
		relay, err := drill.NewRelay(b.addr, oneWay)
		if err != nil {
			return nil, err
		}
		c.relay, l.Address = relay, relay.Addr()
	}
	run, err := drill.Start(b.ctx, l)
	if err != nil {
		if c.relay != nil {
			err = errors.Join(err, c.relay.Close())
		}
		return nil, fmt.Errorf("load: %w", err)
	}
	c.run = run
	return c, nil
}
