package fdleak

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

// settleTimeout bounds the wait for descriptors that another goroutine or an
// exiting child's waiter closes just after the test has seen its last event.
// Nothing tells when a descriptor is closed, so the table is read again.
const settleTimeout = 2 * time.Second

// descriptor is what a snapshot keeps of one open descriptor.
type descriptor struct {
	target string // what /proc/self/fd/N points at: a path, or kind:[inode]
	status int    // F_GETFL: shared by all holders of the description
	fd     int    // F_GETFD: close-on-exec, of this descriptor only
}

func (d descriptor) String() string {
	return fmt.Sprintf("%s status flags %#o descriptor flags %d", d.target, d.status, d.fd)
}

// Snapshot records the open descriptors of the process and registers a cleanup
// that fails t if one was opened, closed or replaced, or if its status or
// descriptor flags were changed, by the time t and its later cleanups are done.
// Cleanups run last in first out, so call it before anything that registers one.
//
// It waits up to two seconds for descriptors that are still being closed by
// other goroutines. Where there is no /proc/self/fd it only logs that.
func Snapshot(t testing.TB) {
	t.Helper()
	snapshot(t, settleTimeout)
}

func snapshot(t testing.TB, settle time.Duration) {
	t.Helper()
	before, err := table()
	if err != nil {
		unavailable(t, err)
		return
	}
	t.Cleanup(func() {
		t.Helper()
		deadline := time.Now().Add(settle)
		again := time.NewTicker(10 * time.Millisecond)
		defer again.Stop()
		for {
			after, err := table()
			if err != nil {
				t.Errorf("fdleak: %v", err)
				return
			}
			diff := compare(before, after)
			if len(diff) == 0 {
				return
			}
			if time.Now().After(deadline) {
				for _, line := range diff {
					t.Errorf("fdleak: %s", line)
				}
				return
			}
			<-again.C
		}
	})
}

// compare says how after differs from before, one line per descriptor, in the
// order of their numbers.
func compare(before, after map[int]descriptor) []string {
	numbers := slices.Collect(maps.Keys(before))
	for n := range after {
		if _, ok := before[n]; !ok {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)

	var diff []string
	for _, n := range numbers {
		was, had := before[n]
		is, has := after[n]
		switch {
		case !had:
			diff = append(diff, fmt.Sprintf("fd %d was left open: %v", n, is))
		case !has:
			diff = append(diff, fmt.Sprintf("fd %d was closed: %v", n, was))
		case was.target != is.target:
			diff = append(diff, fmt.Sprintf("fd %d was replaced: %v, now %v", n, was, is))
		case was != is:
			diff = append(diff, fmt.Sprintf("fd %d has changed flags: %v, now %v", n, was, is))
		}
	}
	return diff
}
