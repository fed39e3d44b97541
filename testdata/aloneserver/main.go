// Command aloneserver upgrades itself and has a socket of each kind.
package main

import (
	"context"
	"flag"
	"log"
	"os/signal"
	"syscall"

	"github.com/handoverd/handover"
)

func main() {
	pidFile := flag.String("pid-file", "", "written by each process that is ready")
	path := flag.String("unix", "", "path of a UNIX socket")
	keep := flag.Bool("keep-signals", false, "stop by itself")
	flag.Parse()
	child, err := handover.Standalone(handover.Options{PIDFile: *pidFile, KeepSignals: *keep})
	check(err)
	ctx, cancel := context.WithCancel(context.Background())
	if *keep {
		ctx, cancel = signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	}
	defer cancel()
	a, err := child.Listen("a", "tcp", "127.0.0.1:0")
	check(err)
	b, err := child.Listen("b", "tcp", "127.0.0.1:0")
	check(err)
	u, err := child.Listen("u", "unix", *path)
	check(err)
	p, err := child.ListenPacket("p", "udp", "127.0.0.1:0")
	check(err)
	check(child.Ready())
	log.Printf("generation %d: %s %s %s %s", child.Generation(), a.Addr(), b.Addr(), u.Addr(), p.LocalAddr())
	select {
	case <-child.Draining():
		log.Printf("generation %d ends: %s", child.Generation(), child.DrainReason())
	case <-ctx.Done():
		log.Print("stops by itself")
	}
	check(child.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
