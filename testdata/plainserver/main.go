// Command plainserver is what the example server would be with http.Server.Shutdown in place of package drain. It
// loses requests at each reload: the load test runs it to prove that it would see a loss.
package main

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"

	"github.com/handoverd/handover"
	"github.com/handoverd/handover/internal/site"
)

func main() {
	child, err := handover.Inherit()
	check(err)
	ln, err := child.Listen("http", "tcp", "127.0.0.1:0")
	check(err)
	server := &http.Server{Handler: site.Handler(child.Generation())}
	go serve(server, ln) // ends with the shutdown
	check(child.Ready())
	<-child.Draining()
	ctx, cancel := child.DrainContext(context.Background())
	defer cancel()
	check(server.Shutdown(ctx))
}

func serve(server *http.Server, ln net.Listener) {
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
