package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Runnable returns how long the busiest thread of the process has been running or ready to run in its life: what a thread
// that never waits has used, or would have used on an idle machine. Where the kernel does not count the time of waiting
// for a processor (Documentation/scheduler/sched-stats.rst; without CONFIG_SCHED_INFO) it is CPUTime.
func Runnable(pid int) (time.Duration, error) {
	s, err := readStat(pid)
	if err != nil {
		return 0, fmt.Errorf("run time of process %d: %w", pid, err)
	}
	dir := "/proc/" + strconv.Itoa(pid) + "/task/"
	threads, err := os.ReadDir(dir)
	if err != nil {
		return 0, fmt.Errorf("run time of process %d: %w", pid, err)
	}
	most, counted := time.Duration(0), false
	for _, t := range threads {
		text, err := os.ReadFile(dir + t.Name() + "/schedstat")
		if err != nil {
			continue // the thread has ended, or there is no such file
		}
		if d, ok := parseSchedstat(string(text)); ok {
			most, counted = max(most, d), true
		}
	}
	if !counted {
		return s.cpu(), nil
	}
	return most, nil
}

// parseSchedstat adds the first two fields, nanoseconds on a processor and waiting for one. The kernel writes zeros
// where it does not count.
func parseSchedstat(text string) (time.Duration, bool) {
	f := strings.Fields(text)
	if len(f) < 2 {
		return 0, false
	}
	ran, err := strconv.ParseInt(f[0], 10, 64)
	if err != nil || ran == 0 {
		return 0, false
	}
	waited, err := strconv.ParseInt(f[1], 10, 64)
	return time.Duration(ran + waited), err == nil
}
