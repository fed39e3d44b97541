package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/handoverd/handover"
	"github.com/handoverd/handover/drain"
	"github.com/handoverd/handover/internal/site"
)

// serverVerb is the first argument of the server under test.
const serverVerb = "server"

// program is the server under test: a Go program as small as it can be, with all kinds of clients and several ways to leave.
type program struct {
	way       way
	report    bool            // print Sequence.Report at the end
	listener  net.Listener    // nil: a worker has none
	signalled context.Context // ends at SIGTERM

	http    *http.Server
	server  *drain.Server  // wayDrain: http
	streams drain.Streams  // wayDrain: WebSockets, event streams, calls that stream
	workers *drain.Workers // nil: none

	sequence drain.Sequence
}

// runServer is the server under test from its begin to its end; it returns the exit code.
//
// It takes its socket by package handover, or binds addr. There are two who can tell it to leave: the holder of the socket,
// with a deadline, and SIGTERM.
func runServer(args []string) int {
	var (
		flags    = flag.NewFlagSet(serverVerb, flag.ContinueOnError)
		leaving  = flags.String("way", string(wayDrain), "how it leaves")
		addr     = flags.String("addr", "", "address to bind, where no socket is handed over")
		queue    = flags.String("queue", "", "path of the queue whose jobs it does, instead of serving")
		loop     = flags.String("loop", "", "how a lame duck phase ends")
		stats    = flags.String("stats", "", "path of the balancer's runtime API, for -loop acknowledged")
		name     = flags.String("name", "", "backend/server of this program in the balancer, for -loop acknowledged")
		report   = flags.Bool("report", false, "print the account of the sequence")
		longest  = flags.Duration("longest", 10*time.Second, "of a lame duck phase that waits for something")
		drains   = flags.Duration("drain", 0, "the longest the drain may take; 0: what is left of the deadline")
		deadline = flags.Duration("deadline", 25*time.Second, "time from SIGTERM to the end")
	)
	if err := flags.Parse(args); err != nil {
		return 2
	}
	p := &program{report: *report}
	var err error
	p.way, err = parseWay(*leaving)
	p.check(err)
	child, err := handover.Inherit()
	p.check(err)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	p.signalled = ctx
	p.http = &http.Server{Handler: p.routes(child.Generation()), Protocols: new(http.Protocols)}
	p.http.Protocols.SetHTTP1(true)
	p.http.Protocols.SetUnencryptedHTTP2(true)
	if *queue != "" {
		p.workers = newWorkers(*queue)
	}
	p.sequence.Deadline, p.sequence.Drain = *deadline, *drains
	p.sequence.Supervisor = child
	p.sequence.LameDuck, err = parseLoop(*loop, *stats, *name, *longest)
	p.check(err)
	if p.way == wayDrain {
		p.register()
	}

	// Neither is waited for: they end with the program.
	if *queue != "" {
		go p.workers.Run()
	} else {
		p.listener, err = child.Listen("http", "tcp", *addr)
		p.check(err)
		go p.serve(p.listener)
	}
	p.check(child.Ready())
	return p.leave(told(ctx, child.Draining()), func() (context.Context, context.CancelFunc) {
		limited, cancel := context.WithTimeout(context.Background(), *deadline)
		earlier, release := child.DrainContext(limited)
		return earlier, func() { release(); cancel() }
	})
}

// told is closed when either says that the program is to leave.
func told(signalled context.Context, handedOver <-chan struct{}) <-chan struct{} {
	either := make(chan struct{})
	// Not waited for: it ends with the program.
	go tell(signalled, handedOver, either)
	return either
}

func tell(signalled context.Context, handedOver <-chan struct{}, either chan<- struct{}) {
	select {
	case <-handedOver:
	case <-signalled.Done():
	}
	close(either)
}

// routes are all pages.
func (p *program) routes(generation int) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", site.Handler(generation))
	mux.Handle("/ready", p.sequence.ReadyHandler())
	mux.Handle("GET /ws", echo{p, strconv.Itoa(generation)})
	mux.HandleFunc("GET /events", p.events)
	mux.HandleFunc("POST "+grpcUnary, p.unary)
	mux.HandleFunc("POST "+grpcStream, p.stream)
	return mux
}

// joins registers a stream, in the way that knows streams. The others have nobody who tells one to leave: left is never
// closed then. done must be called at the end.
func (p *program) joins(label string) (left <-chan struct{}, done func()) {
	if p.way != wayDrain {
		return nil, func() {}
	}
	goodbye := make(chan struct{})
	done, err := p.streams.Add(label, func(drain.Reason) { close(goodbye) }, nil)
	p.check(err)
	return goodbye, done
}

func (p *program) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "server %d: %s\n", os.Getpid(), fmt.Sprintf(format, args...))
}

// check ends the program after an error that it cannot go on with.
func (p *program) check(err error) {
	if err != nil {
		p.say("%v", err)
		os.Exit(1)
	}
}
