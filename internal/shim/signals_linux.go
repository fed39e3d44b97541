package shim

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	lastSignal = 64
	// sigsetLen is the kernel's sigset in bytes on the architectures of Go for
	// Linux; the MIPS family, with 16, gets EINVAL and so an error.
	sigsetLen = 8
)

// resetSignals makes every disposition the default one, also the ignored ones,
// which execve would keep (signal(7)): a handoverd under nohup would make every
// program deaf to SIGHUP. Then it empties the mask, which execve keeps from the
// calling thread. The runtime's own handlers are gone afterwards, so execve
// follows at once.
func resetSignals() *ExecError {
	// A kernel sigaction of zeros is SIG_DFL without flags; it is 32 bytes or
	// less everywhere.
	var action [64]byte
	for sig := uintptr(1); sig <= lastSignal; sig++ {
		if sig == uintptr(unix.SIGKILL) || sig == uintptr(unix.SIGSTOP) {
			continue
		}
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig,
			uintptr(unsafe.Pointer(&action)), 0, sigsetLen, 0, 0)
		if errno != 0 {
			return failed("signals", "", "rt_sigaction", errno)
		}
	}
	var empty [sigsetLen]byte
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK,
		uintptr(unsafe.Pointer(&empty)), 0, sigsetLen, 0, 0)
	if errno != 0 {
		return failed("signals", "", "rt_sigprocmask", errno)
	}
	return nil
}
