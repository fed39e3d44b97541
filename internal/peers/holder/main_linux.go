// Command holder is the least that can hand a socket over: it holds the listener, starts the server with it, and at each
// SIGHUP starts another one, waits until that is ready, and tells the old one to drain. It checks nothing, bounds nothing and
// survives nothing; it is what handoverd's figures are compared with. Arguments: the address and the server's path.
package main

import (
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/wire"
)

func main() {
	addr, options, err := fdpass.ParseAddr("tcp4://" + os.Args[1])
	check(err)
	socket, err := fdpass.Bind(addr, options)
	check(err)
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	var old *wire.Conn
	for generation := 1; ; generation++ {
		fresh := start(socket.FD(), generation)
		if old != nil {
			var now unix.Timespec
			check(unix.ClockGettime(unix.CLOCK_BOOTTIME, &now))
			check(old.Send(wire.Message{Verb: wire.Drain, DeadlineNS: now.Nano() + int64(time.Minute)}))
			go discard(old) // nobody waits: it ends with the old server
		}
		old = fresh
		<-hangups
	}
}

// start returns when the new server accepts.
func start(listener, generation int) *wire.Conn {
	conn, childEnd, err := wire.Pair()
	check(err)
	pid, err := syscall.ForkExec(os.Args[2], os.Args[2:3], &syscall.ProcAttr{
		Env: []string{
			wire.EnvFD + "=4", wire.EnvSocketPrefix + "HTTP=3", fmt.Sprintf("%s=%d", wire.EnvGeneration, generation),
		},
		Files: []uintptr{0, 1, 2, uintptr(listener), uintptr(childEnd)},
	})
	check(err)
	check(unix.Close(childEnd))
	go reap(pid) // nobody waits: it ends with the server
	for {
		m, _, err := conn.Recv()
		check(err)
		if m.Verb == wire.Ready {
			break
		}
	}
	check(conn.Send(wire.Message{Verb: wire.Accept}))
	check(conn.Send(wire.Message{Verb: wire.Ack}))
	return conn
}

// reap leaves no zombie.
func reap(pid int) { _, _ = unix.Wait4(pid, nil, 0, nil) }

// discard reads what a draining server says, until its end.
func discard(conn *wire.Conn) {
	for {
		if _, _, err := conn.Recv(); err != nil {
			_ = conn.Close()
			return
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
