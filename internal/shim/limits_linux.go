package shim

import (
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// setNice acts on the calling thread, which is the one that executes.
func (c *child) setNice() *ExecError {
	if c.spec.Nice == nil {
		return nil
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, *c.spec.Nice); err != nil {
		return failed("nice", "", strconv.Itoa(*c.spec.Nice), err)
	}
	return nil
}

func (c *child) setOOMScoreAdj() *ExecError {
	if c.spec.OOMScoreAdj == nil {
		return nil
	}
	const path = "/proc/self/oom_score_adj"
	value := strconv.Itoa(*c.spec.OOMScoreAdj)
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return failed("oom_score_adj", path, "", err)
	}
	_, err = unix.Write(fd, []byte(value))
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err != nil {
		return failed("oom_score_adj", path, value, err)
	}
	return nil
}

// raiseLimits does the part of the limits that needs privileges, upwards only:
// a limit lowered now could hit the shim itself before its exec. It comes
// after the last descriptor was opened, since the limit of those may fall.
func (c *child) raiseLimits() *ExecError {
	restoreNofile()
	own := true
	for _, l := range c.spec.Rlimits {
		own = own && l.Resource != unix.RLIMIT_NOFILE
		var now syscall.Rlimit
		if err := syscall.Getrlimit(l.Resource, &now); err != nil {
			return limitFailed(l.Resource, err)
		}
		up := syscall.Rlimit{Cur: max(now.Cur, l.Soft), Max: max(now.Max, l.Hard)}
		if up == now {
			continue
		}
		if err := syscall.Setrlimit(l.Resource, &up); err != nil {
			return limitFailed(l.Resource, err)
		}
	}
	if !own {
		return nil
	}
	return c.makeRoom()
}

// makeRoom raises the soft RLIMIT_NOFILE for a program with many sockets: with
// 1,000 of them and the usual 1024 it would have 20 left.
func (c *child) makeRoom() *ExecError {
	var now syscall.Rlimit
	if err := syscall.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		return limitFailed(unix.RLIMIT_NOFILE, err)
	}
	want := min(c.spec.Room(), now.Max)
	if now.Cur >= want {
		return nil
	}
	now.Cur = want
	if err := syscall.Setrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		return limitFailed(unix.RLIMIT_NOFILE, err)
	}
	return nil
}

// finalLimits sets them exactly: lowering only, which anybody may. What the
// program could not start with (RLIMIT_AS, RLIMIT_DATA of a few MiB) cannot
// stop the shim's own start this way.
func (c *child) finalLimits() *ExecError {
	for _, l := range c.spec.Rlimits {
		exact := syscall.Rlimit{Cur: l.Soft, Max: l.Hard}
		if err := syscall.Setrlimit(l.Resource, &exact); err != nil {
			return limitFailed(l.Resource, err)
		}
	}
	return nil
}

// restoreNofile undoes what the Go runtime did at its start: it raises the soft
// RLIMIT_NOFILE to the hard one and keeps the original to itself. syscall.Exec
// puts it back before it executes, also when that fails, as it does here for an
// empty path.
func restoreNofile() {
	_ = syscall.Exec("", []string{""}, nil)
}

func limitFailed(resource int, err error) *ExecError {
	return failed("rlimit", "", "resource "+strconv.Itoa(resource), err)
}
