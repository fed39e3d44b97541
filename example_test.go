package handover_test

import (
	"context"
	"fmt"
	"log"
	"net/http"

	"github.com/handoverd/handover"
	"github.com/handoverd/handover/drain"
)

// A whole server. It runs under handoverd, under systemd socket activation,
// and by itself, where it listens on :8080 and is never asked to drain.
func Example() {
	child, err := handover.Inherit()
	if err != nil {
		log.Fatal(err)
	}
	ln, err := child.Listen("http", "tcp", ":8080")
	if err != nil {
		log.Fatal(err)
	}
	server := drain.HTTP(&http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "hello from generation %d\n", child.Generation())
	})})
	go func() { log.Print(server.Serve(ln)) }() // ends with the process

	if err := child.Ready(); err != nil { // the previous generation drains now
		log.Fatal(err)
	}
	<-child.Draining() // the next generation serves

	ctx, cancel := child.DrainContext(context.Background())
	defer cancel()
	if err := drain.All(ctx, server); err != nil {
		log.Print(err) // what the deadline cut off
	}
}
