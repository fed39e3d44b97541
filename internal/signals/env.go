package signals

import (
	"strconv"
	"syscall"
)

// Variable names the environment variable by which an image that goes back to the one
// before it passes on a signal that it has caught and cannot obey any more: its number.
const Variable = "HANDOVERD_SIGNAL"

// An image that takes over asks for the signals now. Any other does when it serves: a
// command is to end by SIGINT.
func init() {
	if _, takesOver := syscall.Getenv("HANDOVERD_UPGRADE"); !takesOver {
		return
	}
	Channels()
	if text, ok := syscall.Getenv(Variable); ok {
		if n, err := strconv.Atoi(text); err == nil && n > 0 {
			_ = syscall.Kill(syscall.Getpid(), syscall.Signal(n)) // as if it came now
		}
	}
}
