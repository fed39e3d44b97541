package supervisor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Descriptors that taking over needs: of each socket one from the keeper and one
// that the watcher of harm may make, of each generation its pidfd twice, its channels,
// its output and where that was read to; and some for a moment.
const (
	roomOfSocket     = 2
	roomOfGeneration = 8
	roomForAMoment   = 24
)

// room is how many descriptors it takes to go on with the state.
func (s *savedState) room() int {
	n := roomForAMoment + roomOfSocket*len(s.Held.Sockets)
	for _, svc := range s.Services {
		n += roomOfGeneration * len(svc.Generations)
	}
	return n
}

// haveRoom reports whether so many descriptors can be had, by making them: what
// RLIMIT_NOFILE leaves, and the limits of the machine. Without them a process that
// lives could not be opened, and would be taken for one that is gone.
func haveRoom(n int) error {
	fds := make([]int, 0, n)
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	for range n {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%d descriptors are needed to take over what an earlier handoverd has left, and %d can be had: %w; "+
				"nothing was changed: start again with a higher RLIMIT_NOFILE", n, len(fds), &os.PathError{Op: "open", Path: os.DevNull, Err: err})
		}
		fds = append(fds, fd)
	}
	return nil
}
