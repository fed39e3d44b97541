package keeper

import (
	"bytes"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Open returns a pidfd, close-on-exec, which the caller owns, of the keeper of dir that
// says that its process is pid; -1 if that is another process. The number comes from
// its hello: of a keeper in another pid namespace it may be anybody's here.
func Open(pid int, dir string) int {
	if pid <= 0 {
		return -1
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1
	}
	// Looked at after it was opened: if it is the keeper's now, it was then.
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	args := bytes.Split(text, []byte{0})
	if err == nil && (len(args) < 2 || string(args[0]) != ProgramName || !sameDir(string(args[1]), dir)) {
		err = errors.New("another process")
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

// sameDir reports whether two paths are of one directory.
func sameDir(a, b string) bool {
	if a == b {
		return true
	}
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}
