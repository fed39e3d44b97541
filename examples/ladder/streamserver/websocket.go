package main

import (
	"net/http"
	"os"
	"strconv"

	"github.com/handoverd/handover/drain"
	"github.com/handoverd/handover/internal/site"
)

// echo is a WebSocket that sends each message back. It names the process that
// answers in X-Generation.
type echo struct{ streams *drain.Streams }

func (e echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ws, err := site.Upgrade(w, r, strconv.Itoa(os.Getpid()))
	if err != nil {
		return
	}
	done, err := e.streams.Add(r.RemoteAddr, func(drain.Reason) { ws.Goodbye() }, ws.Close)
	if err != nil {
		_ = ws.Close() // the drain is over
		return
	}
	// Before done, which lets the program exit: it shall not close the connection
	// in place of this.
	defer func() { _ = ws.Close(); done() }()
	ws.Echo()
}
