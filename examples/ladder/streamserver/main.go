// Command streamserver is a WebSocket server for the ladder: its clients stay
// for ever, so it is always left with connections open. It has two ways to leave
// them: net/http's Shutdown, which knows nothing of WebSockets, so that the exit
// cuts them all; or a goodbye to each, spread over a window, by package drain.
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

	"github.com/handoverd/handover"
	"github.com/handoverd/handover/drain"
)

// grace bounds the leave where no supervisor gives a deadline.
const grace = 30 * time.Second

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "address to listen on, without a supervisor")
	polite := flag.Bool("goodbye", true, "close each WebSocket with 1012 before the exit; false: leave them to the exit")
	window := flag.Duration("window", 10*time.Second, "spreads the goodbyes; 0: all at once")
	flag.Parse()

	child, err := handover.Inherit()
	check(err)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ln, err := child.Listen("http", "tcp", *addr)
	check(err)

	streams := &drain.Streams{Window: *window}
	mux := http.NewServeMux()
	mux.Handle("GET /ws", echo{streams})
	plain := &http.Server{Handler: mux}
	lossless := drain.HTTP(plain)
	if *polite {
		go serve(lossless.Serve, ln) // ends with the drain
	} else {
		go serve(plain.Serve, ln) // ends with Shutdown
	}
	check(child.Ready())

	select {
	case <-child.Draining():
	case <-ctx.Done():
	}
	leaving, cancelGrace := context.WithTimeout(context.Background(), grace)
	defer cancelGrace()
	leaving, cancel := child.DrainContext(leaving)
	defer cancel()
	began := time.Now()
	if *polite {
		err = drain.All(leaving, lossless, streams)
	} else {
		err = plain.Shutdown(leaving)
	}
	log.Printf("process %d leaves after %v, %d WebSockets open: %v", os.Getpid(), time.Since(began), streams.Len(), err)
	check(err)
}

// serve accepts until the server leaves. It ends the program when that fails
// before.
func serve(on func(net.Listener) error, ln net.Listener) {
	if err := on(ln); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
