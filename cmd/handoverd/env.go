package main

import (
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// env is what a command touches of the world, so that tests can hand in another.
type env struct {
	stdout, stderr io.Writer
	getenv         func(string) string
	signals        func() (<-chan os.Signal, func())
}

func osEnv() *env {
	return &env{stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, signals: notify}
}

// notify asks for the signals that handoverd obeys. SIGPIPE is ignored: a log
// that nobody reads any more must not end the supervisor. The shim makes all of
// them default again for the programs.
func notify() (<-chan os.Signal, func()) {
	c := make(chan os.Signal, 16)
	signal.Ignore(unix.SIGPIPE)
	signal.Notify(c, unix.SIGHUP, unix.SIGTERM, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	return c, func() { signal.Stop(c) }
}
