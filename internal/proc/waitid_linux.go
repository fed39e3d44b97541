package proc

import (
	"bytes"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// __WALL and __WCLONE are never used: they would also take the child without an exit signal by which the os package
// finds out whether pidfds work (os/pidfd_linux.go), and switch pidfds off for the life of the process.

// childInfo is the SIGCHLD form of siginfo_t (man sigaction(2)): three ints, aligned to a pointer, then the union.
type childInfo struct {
	Signo, Errno, Code int32
	_                  [unsafe.Sizeof(uintptr(0)) - 4]byte
	PID                int32
	UID                uint32
	Status             int32
	_                  [100]byte
}

// The values of si_code for a SIGCHLD that tells of an end (asm-generic/siginfo.h).
const (
	cldExited = 1
	cldKilled = 2
	cldDumped = 3
)

func waitid(kind, id, options int) (childInfo, error) {
	var info childInfo
	for {
		err := unix.Waitid(kind, id, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG|options, nil)
		if err == unix.EINTR {
			continue
		}
		return info, os.NewSyscallError("waitid", err)
	}
}

// peekChild looks whether the child has ended and leaves it a zombie.
func peekChild(pid int) (exit Exit, ended bool) {
	info, err := waitid(unix.P_PID, pid, unix.WNOWAIT)
	if err != nil {
		return Exit{PID: pid, Err: err}, true
	}
	if info.PID == 0 {
		return Exit{}, false
	}
	return Exit{PID: pid, Status: waitStatus(info.Code, info.Status)}, true
}

// peekAny returns a dead child, whichever the kernel finds first, and leaves it a zombie.
func peekAny() (pid int, ok bool) {
	info, err := waitid(unix.P_ALL, 0, unix.WNOWAIT)
	if err != nil || info.PID == 0 {
		return 0, false
	}
	return int(info.PID), true
}

// reap takes the dead child away. It does nothing to one that lives.
func reap(pid int) error {
	_, err := waitid(unix.P_PID, pid, 0)
	return err
}

// waitStatus puts together what wait4(2) would have returned.
func waitStatus(code, status int32) unix.WaitStatus {
	switch code {
	case cldExited:
		return unix.WaitStatus(status&0xff) << 8
	case cldDumped:
		return unix.WaitStatus(status&0x7f) | 0x80
	case cldKilled:
		return unix.WaitStatus(status & 0x7f)
	}
	return unix.WaitStatus(status & 0x7f)
}

// deadChildren returns the zombies whose parent is this process. The error says that not all can be found now.
func deadChildren() (dead []int, err error) {
	children, err := childLists("/proc/self")
	if err != nil && !starved(err) {
		children, err = pids() // CONFIG_PROC_CHILDREN is off in many kernels
	}
	if err != nil {
		return nil, err
	}
	self := os.Getpid()
	for _, pid := range children {
		s, readErr := readStat(pid)
		switch {
		case starved(readErr):
			err = readErr
		case readErr == nil && s.ppid == self && s.dead():
			dead = append(dead, pid)
		}
	}
	return dead, err
}

// childLists reads DIR/task/TID/children of one process (man proc_tid_children(5), Linux 3.5): each thread has a list
// of its own. A thread that ends meanwhile has none. The error says that the kernel does not tell, or not now.
func childLists(dir string) (children []int, err error) {
	threads, err := os.ReadDir(dir + "/task")
	if err != nil {
		return nil, err
	}
	for _, t := range threads {
		b, err := os.ReadFile(dir + "/task/" + t.Name() + "/children")
		if err != nil {
			if _, gone := os.Stat(dir + "/task/" + t.Name()); gone != nil {
				continue
			}
			return nil, err
		}
		for f := range bytes.FieldsSeq(b) {
			if pid, err := strconv.Atoi(string(f)); err == nil {
				children = append(children, pid)
			}
		}
	}
	return children, nil
}

// pids returns the numbers of all processes that /proc shows.
func pids() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	found := make([]int, 0, len(names))
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			found = append(found, pid)
		}
	}
	return found, nil
}
