package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Members returns the living processes of a generation: those whose session is leader's, those whose environment
// carries HANDOVER_TOKEN=token, leader itself, and every descendant of one of these by parent. Zombies are left out,
// and so is the calling process.
//
// leader must be a number that cannot have been used again: that of a child held by a Reaper, or one whose start time
// was compared just now. Zero means that there is no such process, an empty token that none is to be looked for.
// The environment is the one at execve and can be read only as Looker says; nothing tells of a process that it hides.
// A pass is a snapshot: a process that forks meanwhile may be missed, and so may one in the middle of an execve, which
// has no environment for a moment; look until two passes find none.
func Members(leader int, token string) ([]Process, error) {
	return findMembers(leader, token, 0, 0)
}

// MembersBefore is Members for a leader that nobody holds, whose number may have been used again after the time that
// before says, in ticks since boot: of its session only those count that were started by then, or beside one that was.
// The number of a session is given to nobody as long as a process is in it (kernel/pid.c, __change_pid, Linux 2.6.24),
// so one of them shows that it is still the same. Zero is no bound.
func MembersBefore(leader int, token string, before uint64) ([]Process, error) {
	return findMembers(leader, token, before, 0)
}

// Ticks is the time of i as StartTime counts it, rounded down.
func Ticks(i Instant) uint64 { return uint64(max(0, i)) / uint64(time.Second/ticksPerSecond) }

// execRetries and execPause are how often and how long KillMembers waits for the environment of a process that has
// none. A whole pass takes 6 ms longer where a process has cleared its environment for good.
const (
	execRetries = 3
	execPause   = 2 // ms
)

// findMembers looks at the processes without an environment again, retries times.
func findMembers(leader int, token string, before uint64, retries int) ([]Process, error) {
	all, err := snapshot()
	if err != nil {
		return nil, fmt.Errorf("members of %d: %w", leader, err)
	}
	self := os.Getpid()
	entry := []byte(TokenVariable + "=" + token)
	in := make(map[int]bool)
	byParent := make(map[int][]int, len(all))
	var queue []int
	var bare []stat
	same := before == 0
	for _, s := range all {
		same = same || leader > 0 && s.session == leader && s.start <= before
	}
	for pid, s := range all {
		byParent[s.ppid] = append(byParent[s.ppid], pid)
		mine, empty := leader > 0 && (pid == leader || s.session == leader) && (same || s.start <= before), false
		if !mine && token != "" {
			if mine, empty, err = carries(s, entry); err != nil {
				return nil, fmt.Errorf("members of %d: %w", leader, err)
			}
		}
		switch {
		case pid == self:
		case mine:
			in[pid] = true
			queue = append(queue, pid)
		case empty:
			bare = append(bare, s)
		}
	}
	for ; retries > 0 && len(bare) > 0; retries-- {
		if _, err := unix.Poll(nil, execPause); err != nil && err != unix.EINTR {
			return nil, os.NewSyscallError("poll", err)
		}
		bare = slices.DeleteFunc(bare, func(s stat) bool {
			mine, empty, err := carries(s, entry)
			if err != nil {
				return false
			}
			if mine {
				in[s.pid] = true
				queue = append(queue, s.pid)
			}
			return !empty
		})
	}
	for len(queue) > 0 {
		next := queue[0]
		queue = queue[1:]
		for _, pid := range byParent[next] {
			if !in[pid] && pid != self {
				in[pid] = true
				queue = append(queue, pid)
			}
		}
	}
	var members []Process
	for pid := range in {
		s := all[pid]
		if s.dead() {
			continue
		}
		members = append(members, Process{
			PID: pid, PPID: s.ppid, PGID: s.pgid, Session: s.session, StartTime: s.start, State: s.state, UID: uidOf(pid),
		})
	}
	return members, nil
}

// KillMembers makes one pass over the Members and sends sig to each, through a pidfd whose process was compared by
// start time after it was opened, so that no stranger can be hit. It returns how many were still there: the work is
// done when two passes return 0. A process that is gone is no error; err joins those of the others.
func KillMembers(leader int, token string, sig unix.Signal) (left int, err error) {
	return KillMembersBefore(leader, token, 0, sig)
}

// KillMembersBefore is KillMembers of the MembersBefore.
func KillMembersBefore(leader int, token string, before uint64, sig unix.Signal) (left int, err error) {
	members, err := findMembers(leader, token, before, execRetries)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, m := range members {
		switch err := signalExactly(m, sig); {
		case err == nil:
			left++
		case gone(err):
		default:
			left++
			errs = append(errs, fmt.Errorf("signal %v to process %d: %w", sig, m.PID, err))
		}
	}
	return left, errors.Join(errs...)
}

// signalExactly sends sig to that process and never to another one with its number. ESRCH says that it is gone.
func signalExactly(p Process, sig unix.Signal) error {
	fd, err := OpenPidfd(p.PID)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	s, err := readStat(p.PID)
	if err != nil {
		return err
	}
	if s.start != p.StartTime || s.dead() {
		return unix.ESRCH
	}
	return SignalPidfd(fd, sig)
}

// snapshot reads the stat line of every process; one that ends meanwhile, or is hidden, is left out.
func snapshot() (map[int]stat, error) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		return nil, err
	}
	numbers, err := pids()
	if err != nil {
		return nil, err
	}
	all := make(map[int]stat, len(numbers))
	for _, pid := range numbers {
		switch s, err := readStat(pid); {
		case err == nil:
			all[pid] = s
		case starved(err):
			return nil, err
		}
	}
	return all, nil
}

// carries reports whether the environment has the entry, and whether it is empty in a process that has one. One that
// may not be read has not; the error says that none can be read now.
func carries(s stat, entry []byte) (yes, empty bool, err error) {
	if s.kernel || s.dead() {
		return false, false, nil
	}
	environ, err := os.ReadFile(filesOf(s) + "environ")
	if starved(err) {
		return false, false, err
	}
	if err != nil {
		return false, false, nil
	}
	return hasVariable(environ, entry), len(environ) == 0, nil
}

// WithVariable returns the living processes whose environment has an entry that begins with prefix, without the calling
// one, in order. It is the environment at execve, of those that may be looked at.
func WithVariable(prefix string) ([]int, error) {
	all, err := snapshot()
	if err != nil {
		return nil, err
	}
	var found []int
	for pid, s := range all {
		if s.kernel || s.dead() || pid == os.Getpid() {
			continue
		}
		environ, _ := os.ReadFile(filesOf(s) + "environ")
		if bytes.HasPrefix(environ, []byte(prefix)) || bytes.Contains(environ, []byte("\x00"+prefix)) {
			found = append(found, pid)
		}
	}
	slices.Sort(found)
	return found, nil
}

// uidOf reads the effective user. The owner of /proc/PID would be root for a process that is not dumpable.
func uidOf(pid int) int {
	b, err := os.ReadFile(pidPath(pid, "status"))
	if err != nil {
		return -1
	}
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte("Uid:")); ok {
			if f := bytes.Fields(rest); len(f) > 1 {
				if uid, err := strconv.Atoi(string(f[1])); err == nil {
					return uid
				}
			}
		}
	}
	return -1
}
