// Command tableflipserver is the example server without a supervisor, upgraded on SIGHUP by
// github.com/cloudflare/tableflip: the peer that the load test measures beside handoverd. -leave says how the old
// process leaves: "shutdown", as tableflip's own example does, or "drain", by package drain.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cloudflare/tableflip"

	"github.com/handoverd/handover/drain"
	"github.com/handoverd/handover/internal/site"
)

// server is what both ways of leaving have in common.
type server interface {
	Serve(net.Listener) error
	Shutdown(context.Context) error
}

func main() {
	addr := flag.String("addr", "127.0.0.1:0", "address of the first process")
	pidFile := flag.String("pid-file", "", "rewritten by each process that is ready")
	leave := flag.String("leave", "shutdown", "how the old process leaves: shutdown or drain")
	flag.Parse()
	generation := nextGeneration()
	upgrader, err := tableflip.New(tableflip.Options{PIDFile: *pidFile})
	check(err)
	defer upgrader.Stop()
	go upgradeOnHangup(upgrader) // nobody waits: it ends with the process
	ln, err := upgrader.Listen("tcp", *addr)
	check(err)
	inner := &http.Server{Handler: site.Handler(generation)}
	var srv server = inner
	if *leave == "drain" {
		srv = drain.HTTP(inner)
	}
	go serve(srv, ln) // Shutdown below waits for it
	check(upgrader.Ready())
	<-upgrader.Exit()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	check(srv.Shutdown(ctx))
}

func upgradeOnHangup(u *tableflip.Upgrader) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	for range hangups {
		if err := u.Upgrade(); err != nil {
			log.Print(err)
		}
	}
}

func serve(srv server, ln net.Listener) {
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
