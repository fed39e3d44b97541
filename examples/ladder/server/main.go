// Command server is a plain net/http server that knows nothing of handoverd:
// what the ladder puts in the place of an ordinary program. Its answers are
// those of the load generator's contract, each byte of which can be checked,
// and its generation is its process id.
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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/handoverd/handover/internal/site"
)

// grace bounds the requests in progress at SIGTERM; those of the ladder take
// two seconds at most.
const grace = 10 * time.Second

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "address to listen on")
	boot := flag.Duration("boot", 0, "how long it takes to start: code, caches, connections")
	handler := flag.Bool("handler", true, "at SIGTERM finish the requests in progress; false: end at once, as a program without a handler")
	flag.Parse()

	// Caught from here on, so that none is lost between this and the wait.
	term := make(chan os.Signal, 1)
	if *handler {
		signal.Notify(term, syscall.SIGTERM)
	}
	time.Sleep(*boot)

	var ready readiness
	ready.Store(true)
	mux := http.NewServeMux()
	mux.Handle("/", site.Handler(os.Getpid()))
	mux.HandleFunc("GET /ready", ready.show)
	mux.HandleFunc("POST /unready", ready.fail)

	server := &http.Server{Handler: mux}
	ln, err := net.Listen("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			log.Fatal(err)
		}
	}()

	<-term
	ready.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		log.Print(err)
	}
}

// readiness is what a balancer asks for. Failing it changes nothing else: the
// server serves on.
type readiness struct{ atomic.Bool }

func (r *readiness) show(w http.ResponseWriter, _ *http.Request) {
	ready := r.Load()
	log.Printf("checked, ready: %t", ready)
	if !ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

func (r *readiness) fail(http.ResponseWriter, *http.Request) { r.Store(false) }
