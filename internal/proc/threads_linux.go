package proc

import (
	"bytes"
	"os"
	"slices"
	"strconv"
)

// thread is one thread of a process at the moment of a look.
type thread struct {
	tid  int
	runs uint64 // how often it was given a processor; zero where the kernel does not count
	call syscallLine
}

type threads struct {
	list   []thread
	denied bool // the system call of a thread may not be read
}

// readThreads reads the state of all threads of the process.
func readThreads(pid int) (threads, error) {
	dir := pidPath(pid, "task")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return threads{}, err
	}
	var all threads
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		runs, err := readRuns(dir + "/" + e.Name() + "/schedstat")
		if err != nil {
			return threads{}, err
		}
		t := thread{tid: tid, runs: runs}
		line, err := os.ReadFile(dir + "/" + e.Name() + "/syscall")
		switch {
		case err == nil:
			// A line of an unknown form is taken for a thread that runs: nothing is known of it.
			call, ok := parseSyscall(line)
			if !ok {
				call.running = true
			}
			t.call = call
		case gone(err):
			continue
		case starved(err):
			return threads{}, err
		default:
			// Not allowed, or a kernel without CONFIG_HAVE_ARCH_TRACEHOOK.
			all.denied = true
		}
		all.list = append(all.list, t)
	}
	return all, nil
}

// readRuns reads the third number of a thread's schedstat, the count of its time slices (Documentation/scheduler/
// sched-stats.rst). It is zero without CONFIG_SCHED_INFO. The error is one of starved.
func readRuns(path string) (uint64, error) {
	b, err := os.ReadFile(path)
	if starved(err) {
		return 0, err
	}
	f := bytes.Fields(b)
	if err != nil || len(f) < 3 {
		return 0, nil
	}
	n, err := strconv.ParseUint(string(f[2]), 10, 64)
	if err != nil {
		return 0, nil
	}
	return n, nil
}

// quiet returns how often each thread has run, or nil if that does not prove anything: a thread was running, or is
// not counted. Two equal answers mean that no thread has run between them, so that nothing can have changed.
func (t threads) quiet() map[int]uint64 {
	if t.denied {
		return nil
	}
	runs := make(map[int]uint64, len(t.list))
	for _, th := range t.list {
		if th.call.running || th.runs == 0 {
			return nil
		}
		runs[th.tid] = th.runs
	}
	return runs
}

// running reports whether a thread was on a processor or about to be.
func (t threads) running() bool {
	return slices.ContainsFunc(t.list, func(th thread) bool { return th.call.running })
}
