package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Blindness says in words why a process of that user could not be looked at from here, or "" if nothing known
// stands against it: the missing CAP_SYS_PTRACE, hidepid or Yama. It tells of the rules of this place, not of one
// process, which may also have made itself undumpable or be stopped by a security module.
func Blindness(uid int) string {
	capable := hasPtrace()
	scope := yamaScope()
	var why []string
	if scope >= 3 {
		why = append(why, "kernel.yama.ptrace_scope is 3, which forbids everyone to read the system calls of a thread")
	}
	if capable {
		return strings.Join(why, "; ")
	}
	self := os.Geteuid()
	switch {
	case uid != self:
		why = append(why, fmt.Sprintf("no CAP_SYS_PTRACE, without which user %d may not look at a process of user %d", self, uid))
		if mode := hidepid(); mode != "" {
			why = append(why, "/proc is mounted with hidepid="+mode)
		}
	case scope == 2:
		why = append(why, "no CAP_SYS_PTRACE, and kernel.yama.ptrace_scope is 2")
	case scope == 1:
		why = append(why, "no CAP_SYS_PTRACE, and kernel.yama.ptrace_scope is 1: only descendants may be looked at")
	}
	return strings.Join(why, "; ")
}

// hasPtrace reports whether the calling thread, and so the process, has CAP_SYS_PTRACE in effect.
func hasPtrace() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_SYS_PTRACE) != 0
}

// yamaScope returns kernel.yama.ptrace_scope (Documentation/admin-guide/LSM/Yama.rst), 0 without Yama.
func yamaScope() int {
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(b)))
	if err != nil {
		return 0
	}
	return n
}

// hidepid returns the hidepid option of the /proc that is seen here, "" if it hides nothing (proc(5)).
func hidepid() string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	return hidepidOption(b)
}

// hidepidOption reads mountinfo (man proc_pid_mountinfo(5)): the mount point is field 5, and the options of the file
// system are the last field. The last /proc of the list is the one on top.
func hidepidOption(mountinfo []byte) string {
	mode := ""
	for line := range strings.Lines(string(mountinfo)) {
		f := strings.Fields(line)
		if len(f) < 6 || f[4] != "/proc" {
			continue
		}
		mode = ""
		for option := range strings.SplitSeq(f[len(f)-1], ",") {
			if v, ok := strings.CutPrefix(option, "hidepid="); ok && v != "0" && v != "off" {
				mode = v
			}
		}
	}
	return mode
}
