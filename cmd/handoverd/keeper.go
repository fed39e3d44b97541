package main

import (
	"errors"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/keeper"
)

// isKeeper reports whether this process was started to hold what handoverd would
// lose when it is killed.
func isKeeper() bool { return os.Args[0] == keeper.ProgramName }

// keep is the keeper's whole life. What a terminal sends is not for it; SIGTERM ends it, and a
// living handoverd then starts another one.
func keep() error {
	if len(os.Args) != 2 {
		return errors.New("keeper: which directory?")
	}
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGPIPE)
	if err := keeper.Prepare(); err != nil {
		return err
	}
	return keeper.Serve(keeper.ListenFD, os.Args[1])
}
