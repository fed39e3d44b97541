//go:build linux

package main

import (
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"

	"github.com/coder/websocket"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/handoverd/handover/internal/site"
)

// cmdModes starts one site on three listeners, which speak all that drill does: without TLS HTTP/1.1 and HTTP/2 ($HTTP, and
// $SOCK, which is $ESCAPED in a URL's host), with TLS the same ($HTTPS, certificate in $CA). It ends with the script.
func cmdModes(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: modes")
	}
	mux := http.NewServeMux()
	mux.Handle("/", site.Handler(1))
	mux.HandleFunc("/ws", echoMessages)
	dir, err := os.MkdirTemp("", "m") // short: sun_path holds 108 bytes
	ts.Check(err)
	ts.Defer(func() { ts.Check(os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "s")
	for _, l := range [][2]string{{"tcp4", "127.0.0.1:0"}, {"unix", socket}} {
		ln, err := net.Listen(l[0], l[1])
		ts.Check(err)
		if l[0] == "tcp4" {
			ts.Setenv("HTTP", ln.Addr().String())
		}
		server := &http.Server{Handler: mux, Protocols: new(http.Protocols)}
		server.Protocols.SetHTTP1(true)
		server.Protocols.SetUnencryptedHTTP2(true)
		done := make(chan struct{})
		go func() { // the deferred function waits for it
			defer close(done)
			_ = server.Serve(ln) // ends by Close
		}()
		ts.Defer(func() { _ = server.Close(); <-done })
	}
	ts.Setenv("SOCK", socket)
	ts.Setenv("ESCAPED", url.PathEscape(socket))

	secure := httptest.NewUnstartedServer(mux)
	secure.EnableHTTP2 = true
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // certificates are refused on purpose
	secure.StartTLS()
	ts.Defer(secure.Close)
	ts.Setenv("HTTPS", secure.Listener.Addr().String())
	ca := filepath.Join(dir, "ca.pem")
	ts.Check(os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600))
	ts.Setenv("CA", ca)
}

// echoMessages sends each message back until the client closes.
func echoMessages(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return // the client was told
	}
	defer c.CloseNow()
	for {
		kind, b, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if c.Write(r.Context(), kind, b) != nil {
			return
		}
	}
}
