//go:build linux

package handover_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/handoverd/handover/supervisor"
)

// census compares, while nothing is under way, what the state file says with /proc and with the status: every process that
// it has lives and is the one that was started, every process that was started is in it, and every socket is held by
// handoverd and by the program that serves, and listens.
func (c *chaos) census() {
	c.t.Helper()
	// What has just ended may be there a moment longer.
	deadline := time.After(patience)
	for {
		diff := c.differences()
		if len(diff) == 0 {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			c.t.Fatalf("the state does not equal /proc:\n%s", strings.Join(diff, "\n"))
		}
	}
}

func (c *chaos) differences() (diff []string) {
	c.t.Helper()
	no := func(format string, args ...any) { diff = append(diff, fmt.Sprintf(format, args...)) }
	status, err := c.status()
	if err != nil {
		return []string{err.Error()}
	}
	st := c.stateFile()
	if len(st.Jobs) > 0 || len(st.Services) != len(chaosServices) || len(status.Services) != len(chaosServices) {
		no("%d jobs, %d services in the state, %d in the status", len(st.Jobs), len(st.Services), len(status.Services))
		return diff
	}
	own, listening := inodesOf(c.PID), listeningInodes()
	var known []int
	for _, svc := range status.Services {
		s := st.Services[svc.Name]
		if s == nil || len(s.Generations) != 1 || len(svc.Generations) != 1 || s.Upgrade != nil || s.Restart != nil {
			no("%s: state %+v, status %+v", svc.Name, s, svc)
			continue
		}
		g, shown := s.Generations[0], svc.Generations[0]
		known = append(known, g.PID)
		if g.Phase != supervisor.PhaseServing || shown.Phase != g.Phase || shown.Generation != g.N || shown.PID != g.PID || s.LastN < g.N {
			no("%s: state %d %d %s, status %+v", svc.Name, g.N, g.PID, g.Phase, shown)
		}
		if began := startTimeOf(g.PID); began != g.StartTime {
			no("%s: process %d began at %d, by the state at %d", svc.Name, g.PID, began, g.StartTime)
		}
		if !inEnvironment(g.PID, "HANDOVER_TOKEN="+g.Token, "HANDOVER_GENERATION="+strconv.Itoa(g.N)) {
			no("%s: process %d is not generation %d", svc.Name, g.PID, g.N)
		}
		theirs := inodesOf(g.PID)
		for _, so := range svc.Sockets {
			if !own[so.Inode] || !theirs[so.Inode] || !listening[so.Inode] || !so.Listening || !so.Nonblocking {
				no("%s: socket %+v: handoverd has it %v, the program %v, listening %v", svc.Name, so, own[so.Inode], theirs[so.Inode], listening[so.Inode])
			}
		}
	}
	for key, so := range st.Held.Sockets {
		if !own[so.Inode] {
			no("socket %s (inode %d) is in the state, and handoverd does not have it", key, so.Inode)
		}
	}
	if k := st.Held.Keeper; k.PID != status.Keeper.PID || startTimeOf(k.PID) != k.StartTime {
		no("keeper: state %+v, status %+v", k, status.Keeper)
	}
	left := c.Left()
	slices.Sort(left)
	slices.Sort(known)
	if !slices.Equal(left, known) {
		no("processes %v live, the state has %v", left, known)
	}
	return diff
}

// startTimeOf is field 22 of /proc/PID/stat (proc_pid_stat(5)), 0 for a process that is gone.
func startTimeOf(pid int) uint64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(f) < 20 {
		return 0
	}
	n, _ := strconv.ParseUint(f[19], 10, 64)
	return n
}

// inodesOf are the sockets that the process has.
func inodesOf(pid int) map[uint64]bool {
	m := map[uint64]bool{}
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, l := range links {
		var inode uint64
		to, _ := os.Readlink(l)
		if n, _ := fmt.Sscanf(to, "socket:[%d]", &inode); n == 1 {
			m[inode] = true
		}
	}
	return m
}

// listeningInodes are the TCP sockets over IPv4 that listen (proc_pid_net(5): state 0A).
func listeningInodes() map[uint64]bool {
	m := map[uint64]bool{}
	text, _ := os.ReadFile("/proc/net/tcp")
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != "0A" {
			continue
		}
		if n, err := strconv.ParseUint(f[9], 10, 64); err == nil {
			m[n] = true
		}
	}
	return m
}
