// Command grpc is a gRPC server that is replaced, and stopped, without losing a
// call.
//
// Package drain does not know gRPC: it takes anything with GracefulStop and
// Stop. This example is a module of its own, so that whoever uses handover does
// not depend on gRPC.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/handoverd/handover"
	"github.com/handoverd/handover/drain"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:9090", "address to listen on, without a supervisor")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()

	child, err := handover.Inherit()
	check(err)
	ln, err := child.Listen("grpc", "tcp", *addr)
	check(err)

	server := grpc.NewServer()
	server.RegisterService(&echo, nil)
	stopper := drain.Graceful(server)
	go serve(server, stopper.Listener(ln)) // ends with the drain

	seq := drain.Sequence{Supervisor: child, LameDuck: drain.Timer(5 * time.Second)}
	seq.Add("grpc", stopper)
	check(child.Ready())
	check(seq.Run(ctx)) // SIGTERM, or the supervisor
}

func serve(server *grpc.Server, ln net.Listener) {
	check(server.Serve(ln))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
