package main

import (
	"fmt"
	"io"
	"net/http"
	"time"
)

// eventEvery is the time between two events.
const eventEvery = 200 * time.Millisecond

// events is an event stream (HTML, 9.2) without an end of its own. One that is told to leave says when to come again, and
// ends as an answer ends.
func (p *program) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	left, done := p.joins("GET /events")
	defer done()
	out := http.NewResponseController(w)
	tick := time.NewTicker(eventEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		if _, err := fmt.Fprintf(w, "id: %d\ndata: event %d\n\n", n, n); err != nil {
			return // the client has gone
		}
		if err := out.Flush(); err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		case <-left:
			// Where it fails the client has gone, and counts what it has.
			_, _ = io.WriteString(w, lastEvent)
			return
		}
	}
}

// lastEvent is the goodbye: in how many milliseconds to come again, and an event that says why.
const lastEvent = "retry: 50\nevent: restart\ndata: another one serves you\n\n"
