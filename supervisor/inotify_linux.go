package supervisor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// newInotify gives an inotify(7) instance that waits in the runtime's poller: nothing
// runs while nothing happens.
func newInotify() (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	return os.NewFile(uintptr(fd), "inotify"), nil
}

// change is one event of a watch. With lost it is of none: some were dropped. With gone
// what is watched has gone away, or its path has.
type change struct {
	watch int32
	name  string // in the directory that is watched
	lost  bool
	gone  bool
}

// readChanges waits for events. buf has room for at least one. After close of f it is
// os.ErrClosed.
func readChanges(f *os.File, buf []byte) ([]change, error) {
	n, err := f.Read(buf)
	switch {
	case errors.Is(err, os.ErrClosed):
		return nil, os.ErrClosed
	case err != nil:
		return nil, fmt.Errorf("inotify: %w", err)
	}
	var out []change
	for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
		end := min(len(b), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])))
		mask := binary.NativeEndian.Uint32(b[4:])
		out = append(out, change{
			watch: int32(binary.NativeEndian.Uint32(b)),
			name:  strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00"),
			lost:  mask&unix.IN_Q_OVERFLOW != 0,
			gone:  mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT) != 0,
		})
		b = b[end:]
	}
	return out, nil
}
