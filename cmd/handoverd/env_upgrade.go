package main

import (
	"os"

	"github.com/handoverd/handover/internal/signals"
	"github.com/handoverd/handover/supervisor"
)

// handedText takes what another image has told this one out of the environment: it is
// not for what this one starts.
func handedText() string {
	text := os.Getenv(supervisor.UpgradeVariable)
	for _, name := range []string{supervisor.UpgradeVariable, signals.Variable} {
		_ = os.Unsetenv(name) // it fails for no name like these
	}
	return text
}

// environ is what the next image of handoverd is executed with.
func environ() []string { return os.Environ() }
