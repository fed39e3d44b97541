package fdpass

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// firstInherited is SD_LISTEN_FDS_START of sd_listen_fds(3).
const firstInherited = 3

// Inherited takes the descriptors that this process was started with, from 3 on,
// one per name, makes them close-on-exec and returns them as a set that the caller
// owns. Call it once and early. What the environment said about them is the
// caller's business.
//
// A descriptor that is not open, or that is close-on-exec already and so was not
// inherited but opened here (or taken before), is an error: the environment does
// not fit this process. Then none has been touched.
func Inherited(names []string) (*Set, error) {
	for i, name := range names {
		fd := firstInherited + i
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil {
			return nil, fmt.Errorf("fdpass: inherited descriptor %d (%s): %w", fd, name, os.NewSyscallError("fcntl", err))
		}
		if flags&unix.FD_CLOEXEC != 0 {
			return nil, fmt.Errorf("fdpass: descriptor %d (%s) was not inherited: it is close-on-exec", fd, name)
		}
	}
	for i := range names {
		unix.CloseOnExec(firstInherited + i)
	}
	set := new(Set)
	for i, name := range names {
		f, err := newFile(firstInherited+i, name)
		if err != nil {
			for rest := i + 1; rest < len(names); rest++ {
				_ = unix.Close(firstInherited + rest)
			}
			_ = set.Close()
			return nil, fmt.Errorf("fdpass: inherited descriptor %d (%s): %w", firstInherited+i, name, err)
		}
		set.Add(name, f)
	}
	return set, nil
}
