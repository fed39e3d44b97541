package keeper

import (
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// shortName is what ps shows, of at most 15 bytes (prctl(2), PR_SET_NAME).
const shortName = "handoverd-keep"

// Prepare makes this process the keeper's: it takes its name, on the main thread,
// which the caller is on, and closes what is not its own.
func Prepare() error {
	name, err := unix.BytePtrFromString(shortName)
	if err == nil {
		err = os.NewSyscallError("prctl PR_SET_NAME", unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0))
	}
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	return closeInherited()
}

// closeInherited closes every descriptor above ListenFD that came with execve: what a
// shell or a service manager has left open for handoverd, sockets among them, is
// not the keeper's to hold. Those that this process has opened itself, the runtime's
// included, are close-on-exec, and one that has come through execve is not.
func closeInherited() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= ListenFD {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
	return nil
}
