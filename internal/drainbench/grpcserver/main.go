// Command grpcserver is grpc-go's server as one that leaves in several ways, for the table of drainbench. The calls are those
// of drainbench's own server, and its clients ask both. It is a module of its own, so that whoever uses handover does not
// depend on gRPC.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"os"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/handoverd/handover"
	"github.com/handoverd/handover/drain"
)

// listenerPause is how long "listener" serves on without accepting.
const listenerPause = time.Second

func main() {
	if len(os.Args) < 2 || os.Args[1] != "server" {
		log.Fatal("grpcserver: it is started by drainbench, as: grpcserver server -way WAY")
	}
	flags := flag.NewFlagSet("server", flag.ExitOnError)
	way := flags.String("way", "drain", "exit, shutdown, listener or drain")
	check(flags.Parse(os.Args[2:]))

	child, err := handover.Inherit()
	check(err)
	ln, err := child.Listen("http", "tcp", "127.0.0.1:0")
	check(err)
	e := &echo{}
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}))
	server.RegisterService(e.service(), nil)

	if *way == "drain" {
		e.streams = &drain.Streams{}
		stopper := drain.Graceful(server)
		seq := drain.Sequence{Supervisor: child}
		seq.Add("grpc", stopper)
		seq.Add("streams", e.streams)
		go serve(server, stopper.Listener(ln)) // ends with the drain
		check(child.Ready())
		if err := seq.Run(context.Background()); err != nil {
			log.Print(err)
			os.Exit(3)
		}
		return
	}
	go serve(server, ln) // ends with the program
	check(child.Ready())
	os.Exit(leave(child, server, ln, *way))
}

// leave waits until it is time, and leaves in one of the ways that have no sequence. It returns the exit code: 3 where calls
// were cut.
func leave(child *handover.Child, server *grpc.Server, ln net.Listener, way string) int {
	<-child.Draining()
	ctx, cancel := child.DrainContext(context.Background())
	defer cancel()
	switch way {
	case "exit":
		check(syscall.Kill(os.Getpid(), syscall.SIGKILL))
	case "listener":
		check(ln.Close())
		pause(ctx, listenerPause)
	}
	stopped := make(chan struct{})
	go stop(server, stopped) // waited for below
	select {
	case <-stopped:
		return 0
	case <-ctx.Done():
		return 3
	}
}

// stop closes stopped when every call has ended.
func stop(server *grpc.Server, stopped chan<- struct{}) {
	server.GracefulStop()
	close(stopped)
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// serve accepts until the listener is closed.
func serve(server *grpc.Server, ln net.Listener) {
	if err := server.Serve(ln); !errors.Is(err, net.ErrClosed) {
		check(err)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
