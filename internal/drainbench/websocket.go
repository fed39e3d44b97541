package main

import (
	"net/http"

	"github.com/handoverd/handover/internal/site"
)

// echo is a WebSocket whose every message is sent back.
type echo struct {
	program    *program
	generation string
}

func (e echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ws, err := site.Upgrade(w, r, e.generation)
	if err != nil {
		return
	}
	defer func() { _ = ws.Close() }()
	left, done := e.program.joins("GET /ws")
	defer done()
	ended := make(chan struct{})
	// Not waited for: it ends with ended, or with one write.
	go restart(ws, left, ended)
	defer close(ended)
	ws.Echo()
}

// restart closes politely when the stream is to leave.
func restart(ws *site.WebSocket, left, ended <-chan struct{}) {
	select {
	case <-left:
		ws.Goodbye()
	case <-ended:
	}
}
