package proc

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func bootTime() Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return Instant(ts.Nano())
}

// ThreadTime returns the processor time that the calling thread has used since it began; zero where that is not known. Only
// the difference of two calls means something, and only while the goroutine is locked to its thread
// (runtime.LockOSThread).
func ThreadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// BootID returns the kernel's random name of this boot (man proc_sys_kernel(5), random/boot_id). An Instant or a
// start time of another boot means nothing in this one.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
