// Command goserver is a web server that is replaced without losing a request.
//
// Everything that concerns handoverd is in main: five calls. The handlers are
// plain net/http. It runs under systemd socket activation and by itself as well;
// then it binds -addr, and SIGHUP replaces it by its new executable.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"

	"github.com/handoverd/handover"
	"github.com/handoverd/handover/drain"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "address to listen on, without a supervisor")
	pidFile := flag.String("pid-file", "", "written by each process that is ready, without a supervisor")
	flag.Parse()

	child, err := handover.Standalone(handover.Options{PIDFile: *pidFile})
	check(err)
	ln, err := child.Listen("http", "tcp", *addr)
	check(err)

	server := drain.HTTP(&http.Server{Handler: routes(child.Generation())})
	go serve(server, ln) // ends with the drain

	check(child.Ready())
	log.Printf("generation %d serves %s", child.Generation(), ln.Addr())
	<-child.Draining()

	ctx, cancel := child.DrainContext(context.Background())
	defer cancel()
	check(drain.All(ctx, server))
}

// serve accepts until the drain. It ends the program when that fails before.
func serve(server *drain.Server, ln net.Listener) {
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
