package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

func pidPath(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

// gone reports whether err says that a process ended while it was looked at: its directory is no longer there, or
// a file of it that was already open has lost its owner.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// starved reports whether err says nothing of the process that was looked at, but that this one, or the machine, is
// short of something: RLIMIT_NOFILE (getrlimit(2)), fs.file-max, memory. Who took it for "not there" would find every
// process gone at such a moment.
func starved(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// Starved is starved for callers that decide by an error of this package.
func Starved(err error) bool { return starved(err) }

// filesOf returns the directory under /proc where the descriptors, memory and environment of the process are. Those
// of a main thread that has ended are empty; any other thread shows what they all share.
func filesOf(s stat) string {
	dir := pidPath(s.pid, "")
	if !s.headless() {
		return dir
	}
	threads, err := os.ReadDir(dir + "task") // where this one is starved, what is asked of dir next is as well
	if err != nil {
		return dir
	}
	for _, t := range threads {
		if t.Name() != strconv.Itoa(s.pid) {
			return dir + "task/" + t.Name() + "/"
		}
	}
	return dir
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile(pidPath(pid, "stat"))
	if err != nil {
		return stat{}, err
	}
	return parseStat(b)
}

// StartTime returns when the process was started, in clock ticks since boot: field 22 of man proc_pid_stat(5). The
// pair of pid and start time names a process of one boot for ever. It is readable for every user. A process that is
// gone, or hidden by hidepid, gives an error that is fs.ErrNotExist or ESRCH; a zombie still has its start time.
func StartTime(pid int) (uint64, error) {
	s, err := readStat(pid)
	if err != nil {
		return 0, fmt.Errorf("start time of process %d: %w", pid, err)
	}
	return s.start, nil
}

// CPUTime returns the time that all threads of the process have used, in user and kernel mode together. Its
// resolution is 10 ms. Errors are those of StartTime.
func CPUTime(pid int) (time.Duration, error) {
	s, err := readStat(pid)
	if err != nil {
		return 0, fmt.Errorf("cpu time of process %d: %w", pid, err)
	}
	return s.cpu(), nil
}

// RSS returns the bytes of memory that the process has resident. Errors are those of StartTime.
func RSS(pid int) (int64, error) {
	s, err := readStat(pid)
	if err != nil {
		return 0, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	return int64(s.rss) * int64(os.Getpagesize()), nil
}
