package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// deepLimit is the number of descriptors from which on the epoll sets of a process are not read: reading one holds
// its mutex, which its owner's loop needs. Measured: 1.6 ms with 1,000 entries, 17 ms with 18,000.
const deepLimit = 2000

// Looker finds out which processes wait for connections on which sockets, from /proc alone. It remembers what it saw
// of each process, so that one that has not run since is not looked at again. The zero value is ready. A Looker is
// used by one goroutine at a time.
type Looker struct {
	// Deep reads also the epoll sets of processes with 2,000 descriptors and more. That stops the event loop of
	// such a process for some milliseconds.
	Deep bool

	memory map[int]memory
	sockfs uint64 // the device of all sockets, in the form of epollEntry.device
}

// memory is what was seen of one process, and the state of its threads just before.
type memory struct {
	start  uint64
	quiet  map[int]uint64 // how often each thread has run; nil if one of them was running
	inodes []uint64
	deep   bool
	seen   *view
}

// Look looks at the processes and tells what they do with the sockets of these inodes. A process that ends meanwhile
// is no error and shows nothing. What cannot be seen is in the Sight, not in the error, which tells only that
// looking is impossible here, or, where Starved says so, at this moment: then nothing at all was seen.
//
// The permissions needed are PTRACE_MODE_READ for descriptors and epoll sets, and PTRACE_MODE_ATTACH for the system
// calls of threads and the memory they point to (ptrace(2)). A 32-bit program on a 64-bit kernel is seen by its epoll
// sets only, since its system calls have other numbers.
func (l *Looker) Look(pids []int, inodes []uint64) (Sight, error) {
	if err := l.prepare(); err != nil {
		return Sight{}, fmt.Errorf("look at processes: %w", err)
	}
	inodes = slices.Sorted(slices.Values(inodes))
	sight := Sight{
		Polled: make(map[uint64]int), Accepting: make(map[uint64]int),
		Held: make(map[uint64]bool), Stale: make(map[uint64]bool),
	}
	now := make(map[int]memory, len(pids))
	for _, pid := range pids {
		if _, twice := now[pid]; twice {
			continue
		}
		m, ok, err := l.process(pid, inodes)
		if err != nil {
			return Sight{}, fmt.Errorf("look at process %d: %w", pid, err)
		}
		if !ok {
			continue
		}
		now[pid] = m
		sight.add(pid, m.seen)
	}
	l.memory = now
	return sight, nil
}

func (l *Looker) prepare() error {
	if l.sockfs != 0 {
		return nil
	}
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	dev := uint64(st.Dev)
	l.sockfs = uint64(unix.Major(dev))<<20 | uint64(unix.Minor(dev))
	return nil
}

// process looks at one process; ok is false if there is none. The error is one of starved alone.
func (l *Looker) process(pid int, inodes []uint64) (m memory, ok bool, err error) {
	m, ok, err = l.lookAt(pid, inodes)
	switch {
	case err == nil, starved(err):
		return m, ok, err
	}
	m, ok = blindUnlessGone(pid, err)
	return m, ok, nil
}

// lookAt looks at one process.
func (l *Looker) lookAt(pid int, inodes []uint64) (m memory, ok bool, err error) {
	s, err := readStat(pid)
	if err != nil || s.dead() {
		return memory{}, false, err
	}
	// The order matters: how often the threads have run is read before anything that they could change.
	threads, err := readThreads(pid)
	if err != nil {
		return memory{}, false, err
	}
	quiet := threads.quiet()
	old, known := l.memory[pid]
	if known && quiet != nil && old.start == s.start && old.deep == l.Deep &&
		slices.Equal(old.inodes, inodes) && maps.Equal(old.quiet, quiet) {
		return old, true, nil
	}
	v := newView()
	p := looked{files: filesOf(s), inodes: inodes, sockfs: l.sockfs, view: v}
	if err := p.look(threads, l.Deep); err != nil {
		return memory{}, false, err
	}
	again, err := readStat(pid)
	if starved(err) {
		return memory{}, false, err
	}
	if err != nil || again.start != s.start || again.dead() {
		return memory{}, false, nil
	}
	return memory{start: s.start, quiet: quiet, inodes: inodes, deep: l.Deep, seen: v}, true, nil
}

// blindUnlessGone decides what a failed look means: the process has ended, or it may not be looked at.
func blindUnlessGone(pid int, err error) (memory, bool) {
	blind := memory{seen: &view{blind: true}}
	if !gone(err) {
		return blind, true
	}
	if _, err := readStat(pid); err == nil {
		// It is just ending, and has lost its descriptors; no other process would have said "gone".
		return memory{}, false
	}
	// hidepid=2 hides a process as if it were not there (proc(5)), but kill(2) knows it.
	if err := unix.Kill(pid, 0); errors.Is(err, unix.ESRCH) {
		return memory{}, false
	}
	return blind, true
}

// denied reports whether err says that the kernel forbids a look.
func denied(err error) bool { return errors.Is(err, fs.ErrPermission) }
