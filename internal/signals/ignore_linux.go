package signals

import (
	"syscall"
	"unsafe"
)

// action is struct sigaction of the kernel, whose fields nobody looks at here: the
// handler is the first word on every architecture but mips, and what follows is as big as on
// those with a restorer and a mask of 64 bits (rt_sigaction(2)).
type action struct {
	handler uintptr
	rest    [4]uint64
}

const (
	sigDfl   = 0
	sigIgn   = 1
	maskSize = 8
)

// ignored are those whose default would end an image that has not asked for them yet,
// and which can be ignored for so long: SIGTERM cannot, since Go does not respect it.
var ignored = []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGUSR1, syscall.SIGUSR2}

// deadly are those that nobody sends twice: they are rather to end handoverd than to be lost.
var deadly = []syscall.Signal{syscall.SIGTERM, syscall.SIGQUIT}

// Ignore has the process ignore what must not end the image that it is about to
// execute, behind the back of package signal, whose handlers are back after restore.
func Ignore() (restore func(), err error) { return set(ignored, sigIgn) }

// Default has SIGTERM and SIGQUIT end the process, as they do when the next image begins, in the
// same way: what is caught until the execve, and not obeyed, would be lost with this image. The first
// process of a pid namespace cannot be ended by them (kill(2)): it goes on catching them, and loses them.
func Default() (restore func(), err error) {
	if syscall.Getpid() == 1 {
		return func() {}, nil
	}
	return set(deadly, sigDfl)
}

func set(signals []syscall.Signal, handler uintptr) (restore func(), err error) {
	var old []action
	restore = func() {
		for i := range old {
			_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(signals[i]), uintptr(unsafe.Pointer(&old[i])), 0, maskSize, 0, 0)
		}
	}
	for _, sig := range signals {
		var was action
		now := action{handler: handler}
		_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&now)), uintptr(unsafe.Pointer(&was)), maskSize, 0, 0)
		if errno != 0 {
			restore()
			return nil, errno
		}
		old = append(old, was)
	}
	return restore, nil
}
