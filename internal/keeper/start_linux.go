package keeper

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start forks the keeper of dir: /proc/self/exe as [ProgramName], in a session of
// its own, with an empty standard input and output, since the log of a handoverd
// that is gone is not to be held open. It returns the pid, which the caller reaps,
// and a pidfd, close-on-exec, which the caller owns; -1 before Linux 5.2. It
// forks on the calling thread.
func Start(dir string) (pid, pidfd int, err error) {
	listen, err := Listen(dir)
	if err != nil {
		return 0, -1, err
	}
	defer func() { _ = unix.Close(listen) }()
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, -1, &os.PathError{Op: "open", Path: os.DevNull, Err: err}
	}
	defer func() { _ = unix.Close(null) }()
	pidfd = -1
	pid, err = syscall.ForkExec("/proc/self/exe", []string{ProgramName, dir}, &syscall.ProcAttr{
		Dir: "/",
		// One thread's worth of a runtime that does nothing but wait.
		Env:   []string{"GOMAXPROCS=1", "GODEBUG=containermaxprocs=0,updatemaxprocs=0"},
		Files: []uintptr{uintptr(null), uintptr(null), uintptr(null), uintptr(listen)},
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	})
	if err != nil {
		return 0, -1, errors.Join(fmt.Errorf("keeper: %w", os.NewSyscallError("fork/exec", err)), Remove(dir))
	}
	return pid, pidfd, nil
}
