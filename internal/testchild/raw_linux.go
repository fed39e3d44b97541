package main

import (
	"context"
	"errors"
	"log"
	"net"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/drain"
)

// listenFD is the first inherited descriptor (sd_listen_fds(3)).
const listenFD = 3

// raw runs the modes that know only descriptor 3 and the runtime's poller.
func (p *process) raw(mode string) {
	term := make(chan os.Signal, 1)
	if mode == "raw-ignore-drain" {
		signal.Ignore(syscall.SIGTERM)
	} else {
		signal.Notify(term, syscall.SIGTERM)
	}
	s := drain.HTTP(p.site())
	go serve(s, p.counts.listener(listenFD)) // the drain waits for what it accepted
	p.rawHealth()

	switch mode {
	case "accept-notify", "raw-ready-then-die":
		check(notifyReady(p.notify))
	case "accept-newline":
		check(newlineReady(p.readyFD))
	}
	if mode == "crash-accepting" || mode == "raw-ready-then-die" {
		p.die()
	}
	<-term
	log.Printf("generation %d drains", p.generation)
	check(s.Shutdown(context.Background()))
}

// notifyReady sends READY=1 as sd_notify(3) does.
func notifyReady(name string) error {
	if name == "" {
		return errors.New("NOTIFY_SOCKET is not set")
	}
	c, err := net.Dial("unixgram", name)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte("READY=1"))
	return err
}

// thread runs the modes in which a thread sits in a system call with the socket
// and no epoll set has it. SIGTERM ends the accepting; what was accepted is
// finished.
func (p *process) thread(mode string) {
	l := &threadListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	s := p.server()
	go serve(s, l)              // the drain waits for what it accepted
	go l.loop(mode == "select") // not waited for: nothing can wake it
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	<-term
	check(s.Shutdown(context.Background()))
}

// A threadListener hands on what a thread of its own accepts.
type threadListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *threadListener) loop(selects bool) {
	runtime.LockOSThread()
	for {
		if selects {
			var set unix.FdSet
			set.Set(listenFD)
			if _, err := unix.Select(listenFD+1, &set, nil, nil, nil); err != nil {
				continue // EINTR: the runtime's own signals
			}
		}
		fd, _, err := unix.Accept4(listenFD, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if errors.Is(err, unix.EAGAIN) && !selects {
			// The socket is non-blocking for all who share it; a program of
			// this style then burns a core. Here it is spared.
			time.Sleep(time.Millisecond)
			continue
		}
		switch {
		case err == nil:
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
			continue
		default:
			log.Fatal(os.NewSyscallError("accept4", err))
		}
		f := os.NewFile(uintptr(fd), "accepted")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			log.Print(err)
			continue
		}
		select {
		case l.conns <- c:
		case <-l.closed:
			// Accepted by a thread that cannot be woken: lost, as in the
			// programs that this one stands for.
			_ = c.Close()
			return
		}
	}
}

// Accept returns what the thread accepted.
func (l *threadListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close stops handing on.
func (l *threadListener) Close() error {
	l.once.Do(l.end)
	return nil
}

func (l *threadListener) end() { close(l.closed) }

// Addr is not known and nobody asks.
func (l *threadListener) Addr() net.Addr { return &net.TCPAddr{} }
