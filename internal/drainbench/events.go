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
	event := func(n int) []byte { return fmt.Appendf(nil, "id: %d\ndata: event %d\n\n", n, n) }
	p.sends(w, r, "GET /events", eventEvery, event, func() {
		// Where it fails the client has gone, and counts what it has.
		_, _ = io.WriteString(w, lastEvent)
	})
}

// sends writes part after part of an answer without an end, until the client has gone or the stream is told to leave: then
// goodbye, before it counts as having left.
func (p *program) sends(w http.ResponseWriter, r *http.Request, label string, every time.Duration, part func(n int) []byte, goodbye func()) {
	left, done := p.joins(label)
	defer done()
	out := http.NewResponseController(w)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 0; ; n++ {
		if _, err := w.Write(part(n)); err != nil {
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
			goodbye()
			return
		}
	}
}

// lastEvent is the goodbye: in how many milliseconds to come again, and an event that says why.
const lastEvent = "retry: 50\nevent: restart\ndata: another one serves you\n\n"
