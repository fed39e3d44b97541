package proc

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// FetchRefused says in words why pidfd_getfd(2) cannot be used here at all, or "": a kernel before Linux 5.6, or a
// seccomp filter, as container runtimes have. It asks for a descriptor of this process.
func FetchRefused() string {
	self, err := OpenPidfd(os.Getpid())
	if err != nil {
		return err.Error()
	}
	defer unix.Close(self)
	fd, err := unix.PidfdGetfd(self, self, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_getfd", err).Error()
	}
	unix.Close(fd)
	return ""
}

// HelperBlindness says in words why a helper that runs as that user could not take descriptors of the user's programs
// either, or "" if nothing known stands against it. Yama lets only ancestors do so from 1 on
// (Documentation/admin-guide/LSM/Yama.rst), and a program that is not dumpable is closed to everybody without
// CAP_SYS_PTRACE.
func HelperBlindness(uid int) string {
	scope := yamaScope()
	switch self := os.Geteuid(); {
	case scope >= 1:
		return fmt.Sprintf("kernel.yama.ptrace_scope is %d", scope)
	case self != 0 && uid != self:
		return fmt.Sprintf("user %d may not run one as user %d", self, uid)
	}
	return ""
}
