package main

import (
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/handoverd/handover"
)

// healthAnswer is what the health server does: by the content of its file, read at
// each request.
func (p *process) healthAnswer(w http.ResponseWriter, r *http.Request) {
	text, _ := os.ReadFile(p.healthFile) // a missing file is good health
	switch strings.TrimSpace(string(text)) {
	case "bad":
		w.WriteHeader(http.StatusServiceUnavailable)
	case "hang":
		<-r.Context().Done()
	default:
		_, _ = io.WriteString(w, "ok\n")
	}
}

func (p *process) serveHealth(l net.Listener) {
	check(http.Serve(l, http.HandlerFunc(p.healthAnswer)))
}

// nativeHealth serves it on the socket that the child was given for it.
func (p *process) nativeHealth(child *handover.Child) {
	if p.healthSocket == "" {
		return
	}
	l, err := child.Listen(p.healthSocket, p.healthNetwork, "")
	check(err)
	go p.serveHealth(l) // not waited for: it ends with the process
}

// rawHealth serves it on the bare descriptor.
func (p *process) rawHealth() {
	if p.healthFD == 0 {
		return
	}
	f := os.NewFile(uintptr(p.healthFD), "health")
	l, err := net.FileListener(f)
	check(err)
	check(f.Close())
	go p.serveHealth(l) // not waited for: it ends with the process
}

// newlineReady says ready as programs for s6 do.
func newlineReady(fd int) error {
	f := os.NewFile(uintptr(fd), "ready")
	_, err := f.WriteString("\n")
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
