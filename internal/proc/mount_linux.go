package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// PIDNamespace returns the number of this process's pid namespace (man namespaces(7), "The /proc/pid/ns/ directory").
// Process numbers of another one mean nothing here.
func PIDNamespace() (uint64, error) {
	const path = "/proc/self/ns/pid"
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

// CheckMount refuses a /proc that is not there, or that counts the processes of another pid namespace: what is read
// in it under a number would be about a stranger (man pid_namespaces(7), "/proc and PID namespaces").
func CheckMount() error {
	const self = "/proc/self"
	name, err := os.Readlink(self)
	if err != nil {
		return fmt.Errorf("/proc has to be mounted: %w", err)
	}
	if name != strconv.Itoa(os.Getpid()) {
		return errors.New("/proc is that of another pid namespace: mount one of this one (unshare --mount-proc, or mount -t proc proc /proc): " +
			self + " is " + name + ", not " + strconv.Itoa(os.Getpid()))
	}
	return nil
}
