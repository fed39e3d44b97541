package signals

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// kinds are the signals that are obeyed. Each kind has a channel of its own: package
// signal drops what a full channel has no room for, and a storm of SIGHUPs, which stand for one
// another, is to crowd out no stop.
var kinds = [][]os.Signal{
	{syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT},
	{syscall.SIGHUP},
	{syscall.SIGUSR1, syscall.SIGUSR2},
}

var channels = sync.OnceValue(func() []chan os.Signal {
	var all []chan os.Signal
	for _, kind := range kinds {
		c := make(chan os.Signal, 4)
		signal.Notify(c, kind...)
		all = append(all, c)
	}
	return all
})

// Channels asks for the signals, the first time that it is called, and returns a channel
// for each kind of them. They are never given back.
func Channels() []chan os.Signal { return channels() }

// Settle returns when every signal that has come before is in its channel.
func Settle() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGWINCH)
	signal.Stop(c) // waits until no delivery is under way (os/signal, signalWaitUntilIdle)
}
