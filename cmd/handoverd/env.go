package main

import (
	"io"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/signals"
)

// env is what a command touches of the world, so that tests can hand in another.
type env struct {
	stdout, stderr io.Writer
	getenv         func(string) string
	signals        func() (<-chan os.Signal, func())
	handed         *handedOver // nil: this is no image that takes over
}

func osEnv() *env {
	return &env{stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, signals: notify}
}

// notify asks for the signals that handoverd obeys. SIGPIPE is ignored: a log
// that nobody reads any more must not end the supervisor. The shim makes all of
// them default again for the programs.
//
// The function returned ends the forwarding and does not give the signals back: one
// that comes in the last moment would end the process with another code than its own.
func notify() (<-chan os.Signal, func()) {
	signal.Ignore(unix.SIGPIPE)
	out, done := make(chan os.Signal), make(chan struct{})
	var forwarders sync.WaitGroup
	for _, c := range signals.Channels() {
		forwarders.Add(1) // the function returned waits for it
		go forward(c, out, done, &forwarders)
	}
	return out, func() {
		close(done)
		forwarders.Wait()
	}
}

// forward passes signals on until done.
func forward(from <-chan os.Signal, to chan<- os.Signal, done <-chan struct{}, over *sync.WaitGroup) {
	defer over.Done()
	for {
		select {
		case s := <-from:
			caught.note(s)
			select {
			case to <- s:
			case <-done:
				return
			}
		case <-done:
			return
		}
	}
}
