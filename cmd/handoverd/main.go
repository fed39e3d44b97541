// The runtime would look for another CPU limit once a minute
// (sched_getaffinity, and a read of the cgroup's cpu.max). A process that waits
// for events has no use for it, and idle is to be idle.
//go:debug updatemaxprocs=0

// Command handoverd owns the listening sockets of programs and hands them to
// each new generation, so that the port never closes during a reload.
package main

import (
	"os"
	"runtime"

	"github.com/handoverd/handover/internal/proc"
	"github.com/handoverd/handover/internal/shim"
	"github.com/handoverd/handover/supervisor"
)

// The main goroutine keeps the process's first thread: it starts the children,
// whose parent-death signal follows the thread (prctl(2), PR_SET_PDEATHSIG).
func init() { runtime.LockOSThread() }

func init() { shim.Init() }

func main() {
	if isLookHelper() {
		if err := proc.LookHelper(); err != nil {
			os.Exit(1)
		}
		return
	}
	if isFetchHelper() {
		if err := supervisor.FetchHelper(os.Args[1:]); err != nil {
			os.Exit(1)
		}
		return
	}
	if isKeeper() {
		if err := keep(); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(runImage(osEnv(), handedText(), os.Args[1:]))
}

// isFetchHelper reports whether this process was started to take the sockets of a
// program of its user.
func isFetchHelper() bool { return os.Args[0] == supervisor.FetchHelperName }

// isLookHelper reports whether this process was started to look at the programs
// of another user.
func isLookHelper() bool { return os.Args[0] == supervisor.LookHelperName }
