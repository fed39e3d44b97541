package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/handoverd/handover/drain"
)

// A way is how a program leaves when it is told to.
type way string

// The ways, in the order of the table.
const (
	wayExit     way = "exit"     // at once, as a program without a handler does
	wayShutdown way = "shutdown" // http.Server.Shutdown, and the end when that returns
	wayListener way = "listener" // the listener is closed, listenerPause later http.Server.Shutdown is called
	wayDrain    way = "drain"    // drain.Sequence
)

// listenerPause is how long wayListener serves on without accepting.
const listenerPause = time.Second

var ways = []way{wayExit, wayShutdown, wayListener, wayDrain}

func (w way) title() string {
	return map[way]string{
		wayExit:     "exit at once",
		wayShutdown: "`http.Server.Shutdown` alone",
		wayListener: "listener closed, `Shutdown` 1 s later",
		wayDrain:    "package drain",
	}[w]
}

func parseWay(s string) (way, error) {
	if w := way(s); slices.Contains(ways, w) {
		return w, nil
	}
	return "", fmt.Errorf("-way %q: want one of %v", s, ways)
}

// leave ends the program that way. told is closed when it is to leave, limits gives the time it has. It returns the exit
// code: 3 where something was cut and this is known.
func (p *program) leave(told <-chan struct{}, limits func() (context.Context, context.CancelFunc)) int {
	if p.way == wayDrain {
		return p.leaveInOrder()
	}
	<-told
	if p.way == wayExit {
		// Not os.Exit: under the race detector that takes a second, in which everything is answered.
		p.check(syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
	ctx, cancel := limits()
	defer cancel()
	if p.way == wayListener && p.listener != nil {
		p.check(p.listener.Close())
		select {
		case <-time.After(listenerPause):
		case <-ctx.Done():
		}
	}
	if err := p.http.Shutdown(ctx); err != nil {
		return 3
	}
	return 0
}

// leaveInOrder is wayDrain, from the begin to the end.
func (p *program) leaveInOrder() int {
	err := p.sequence.Run(p.signalled)
	if p.report {
		p.check(json.NewEncoder(os.Stdout).Encode(p.sequence.Report()))
	}
	if err != nil {
		p.say("%v", err)
		return 3
	}
	return 0
}

// serve accepts until the program ends.
func (p *program) serve(l net.Listener) {
	var err error
	if p.way == wayDrain {
		err = p.server.Serve(l)
	} else {
		err = p.http.Serve(l)
	}
	if !errors.Is(err, http.ErrServerClosed) && p.way != wayListener {
		p.check(err)
	}
}

// register puts what is to be drained into the sequence.
func (p *program) register() {
	p.server = drain.HTTP(p.http)
	p.sequence.Add("http", p.server)
	p.sequence.Add("streams", &p.streams)
	if p.workers != nil {
		p.sequence.Add("workers", p.workers)
	}
}
