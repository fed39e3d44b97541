package proc

import (
	"bytes"
	"fmt"
	"strconv"
	"time"
)

// ticksPerSecond is USER_HZ, the unit of the times in /proc/PID/stat. It is part of the ABI and 100 on every
// architecture that Go supports (man proc_pid_stat(5), sysconf(_SC_CLK_TCK)).
const ticksPerSecond = 100

// stat is what is used of /proc/PID/stat.
type stat struct {
	pid, ppid, pgid, session int
	state                    byte
	threads                  int
	kernel                   bool   // a thread of the kernel
	ticks                    uint64 // utime + stime
	start                    uint64 // in ticks since boot
	rss                      uint64 // in pages
}

// headless reports whether the main thread has ended and others live on (pthread_exit(3) in main): the process looks
// like a zombie, but is none.
func (s stat) headless() bool { return s.state == 'Z' && s.threads > 1 }

// dead reports whether the process has ended and only its number is left.
func (s stat) dead() bool {
	return s.state == 'Z' && !s.headless() || s.state == 'X' || s.state == 'x'
}

func (s stat) cpu() time.Duration {
	return time.Duration(s.ticks) * (time.Second / ticksPerSecond)
}

// parseStat reads one line of /proc/PID/stat. The command's name is in parentheses and may itself hold spaces,
// newlines and parentheses, so the fields are counted from the last one.
func parseStat(line []byte) (stat, error) {
	open, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return stat{}, fmt.Errorf("stat line without a command name: %.60q", line)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(line[:open])))
	if err != nil {
		return stat{}, fmt.Errorf("stat line: pid: %w", err)
	}
	rest := bytes.Fields(line[end+1:]) // rest[0] is field 3 of the manual
	const last = 24
	if len(rest) < last-2 || len(rest[0]) != 1 {
		return stat{}, fmt.Errorf("stat line of %d is too short: %d fields", pid, len(rest)+2)
	}
	s := stat{pid: pid, state: rest[0][0]}
	for field, to := range map[int]*int{4: &s.ppid, 5: &s.pgid, 6: &s.session, 20: &s.threads} {
		if *to, err = strconv.Atoi(string(rest[field-3])); err != nil {
			return stat{}, fmt.Errorf("stat line of %d: field %d: %w", pid, field, err)
		}
	}
	var flags, user, system uint64
	for field, to := range map[int]*uint64{9: &flags, 14: &user, 15: &system, 22: &s.start, 24: &s.rss} {
		if *to, err = strconv.ParseUint(string(rest[field-3]), 10, 64); err != nil {
			return stat{}, fmt.Errorf("stat line of %d: field %d: %w", pid, field, err)
		}
	}
	s.ticks = user + system
	const kthread = 0x00200000 // PF_KTHREAD of linux/sched.h
	s.kernel = flags&kthread != 0
	return s, nil
}
