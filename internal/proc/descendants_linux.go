package proc

import (
	"fmt"
	"os"
	"slices"
	"strconv"
)

// Descendants returns leader and what it started, as far as it is still connected by parenthood: not an orphan, which
// only Members finds. It reads the children lists of these processes alone (man proc_tid_children(5), Linux 3.5,
// CONFIG_PROC_CHILDREN), so its cost does not grow with the number of processes of the machine. Where the kernel has
// no such lists it does what Members does without a token.
func Descendants(leader int) ([]Process, error) {
	if !hasChildLists() {
		return Members(leader, "")
	}
	var out []Process
	queue := []int{leader}
	for len(queue) > 0 {
		pid := queue[0]
		queue = queue[1:]
		s, err := readStat(pid)
		if starved(err) {
			return nil, fmt.Errorf("descendants of %d: %w", leader, err)
		}
		if err != nil || s.dead() || slices.ContainsFunc(out, func(p Process) bool { return p.PID == pid }) {
			continue
		}
		out = append(out, Process{
			PID: pid, PPID: s.ppid, PGID: s.pgid, Session: s.session, StartTime: s.start, State: s.state, UID: uidOf(pid),
		})
		children, err := childLists("/proc/" + strconv.Itoa(pid))
		if starved(err) {
			return nil, fmt.Errorf("descendants of %d: %w", leader, err)
		}
		queue = append(queue, children...)
	}
	return out, nil
}

// hasChildLists probes by doing: the file is there or not, whatever the kernel's version.
func hasChildLists() bool {
	_, err := os.Stat("/proc/thread-self/children")
	return err == nil
}
