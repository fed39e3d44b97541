package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ownPidfd reports whether id is the inode number of this process's pidfd, which is
// unique for a boot where pidfds are files of pidfs (Linux 6.9). systemd 259 sets
// LISTEN_PIDFDID to it; "" says nothing.
func ownPidfd(id string) bool {
	if id == "" {
		return true
	}
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false
	}
	return id == strconv.FormatUint(st.Ino, 10)
}
