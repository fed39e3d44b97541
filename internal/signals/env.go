package signals

import "syscall"

// An image that takes over asks for the signals now. Any other does when it serves: a
// command is to end by SIGINT.
func init() {
	if _, takesOver := syscall.Getenv("HANDOVERD_UPGRADE"); takesOver {
		Channels()
	}
}
