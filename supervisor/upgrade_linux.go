package supervisor

import (
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/shim"
)

const handedSeals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// memfd returns an empty memfd, close-on-exec, which the caller owns (memfd_create(2)).
func memfd(name string) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	return fd, os.NewSyscallError("memfd_create", err)
}

// sealedMemfd returns one that holds b and that nobody can change. The caller owns it.
func sealedMemfd(name string, b []byte) (int, error) {
	fd, err := memfd(name)
	if err != nil {
		return -1, err
	}
	for at := 0; at < len(b); {
		n, err := unix.Pwrite(fd, b[at:], int64(at))
		if err != nil && err != unix.EINTR {
			_ = unix.Close(fd)
			return -1, os.NewSyscallError("pwrite", err)
		}
		at += max(n, 0)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, handedSeals); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("fcntl F_ADD_SEALS", err)
	}
	return fd, nil
}

// readSealed reads a memfd of sealedMemfd. Anything else is refused: nobody but a
// handoverd makes one, and it cannot change while it is read.
func readSealed(fd int) ([]byte, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&handedSeals != handedSeals {
		return nil, fmt.Errorf("descriptor %d is no sealed memfd: %w", fd, os.NewSyscallError("fcntl F_GET_SEALS", err))
	}
	return readAllAt(fd)
}

// readFault reads what a newer image has noted before it went back.
func readFault(fd int) string {
	b, err := readAllAt(fd)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// readAllAt reads a file from its begin, wherever its offset is: it is shared.
func readAllAt(fd int) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	b := make([]byte, st.Size)
	for at := 0; at < len(b); {
		n, err := unix.Pread(fd, b[at:], int64(at))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, os.NewSyscallError("pread", err)
		case n == 0:
			return b[:at], nil
		default:
			at += n
		}
	}
	return b, nil
}

// startFiles is the soft RLIMIT_NOFILE that this process was started with, once an execve has
// failed; 0: package syscall knows it, and gives it to whatever is started.
var startFiles atomic.Uint64

// execute has the program of the descriptor take the process over (execve(2)). The
// caller is on the main thread, whose children stay its children (prctl(2),
// PR_SET_PDEATHSIG). It returns only if that fails, and then nothing has changed:
// syscall.Exec gives RLIMIT_NOFILE back to what it was at the start, which package syscall
// had raised, leaves it there, and forgets it.
func execute(image int, args, environ []string) error {
	var limit unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		return os.NewSyscallError("prlimit", err)
	}
	if start := startFiles.Load(); start != 0 { // forgotten by an earlier one
		was := unix.Rlimit{Cur: min(start, limit.Max), Max: limit.Max}
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &was, nil); err != nil {
			return os.NewSyscallError("prlimit", err)
		}
	}
	err := syscall.Exec(fdPath(image), args, environ)
	var start unix.Rlimit
	if unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &start) == nil {
		startFiles.CompareAndSwap(0, start.Cur)
	}
	if back := unix.Prlimit(0, unix.RLIMIT_NOFILE, &limit, nil); back != nil {
		err = fmt.Errorf("%w; RLIMIT_NOFILE not restored: %w", err, back)
	}
	return fmt.Errorf("execve: %w", err)
}

// filesAsAtStart gives a program the RLIMIT_NOFILE that it would have had before an
// execve failed, unless its configuration has one.
func filesAsAtStart(s *shim.Spec) {
	start := startFiles.Load()
	if start == 0 || slices.ContainsFunc(s.Rlimits, func(r shim.Rlimit) bool { return r.Resource == unix.RLIMIT_NOFILE }) {
		return
	}
	var now unix.Rlimit
	if unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &now) == nil {
		s.Rlimits = append(s.Rlimits, shim.Rlimit{Resource: unix.RLIMIT_NOFILE, Soft: min(max(start, s.Room()), now.Max), Hard: now.Max})
	}
}

// showName makes the process be called by that name in ps (proc_pid_comm(5)): one that
// was executed by a descriptor is called by its number.
func showName(comm string) { _ = os.WriteFile("/proc/self/comm", []byte(comm), 0) }

// shownName is what it is called now.
func shownName() string {
	b, err := os.ReadFile("/proc/self/comm")
	if err != nil || len(b) == 0 {
		return ""
	}
	return string(b[:len(b)-1])
}

// inheritable copies a descriptor so that it goes through execve. The caller holds
// syscall.ForkLock until that, so that no program gets it meanwhile, and owns the copy.
func inheritable(fd int) (int, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD, 3)
	return dup, os.NewSyscallError("fcntl F_DUPFD", err)
}

// forkLock keeps the process from starting others.
func forkLock() (unlock func()) {
	syscall.ForkLock.Lock()
	return syscall.ForkLock.Unlock
}

// startRehearsal starts the binary as a pre-flight, with files from number 0 on. It
// borrows everything.
func startRehearsal(b *chosenBinary, args, environ []string, files []uintptr) (int, error) {
	// The child executes it by the number that it has there. Any other may be taken by
	// what package syscall moves out of the way of the files before.
	pid, err := syscall.ForkExec(fdPath(len(files)), args, &syscall.ProcAttr{
		Env: environ, Files: append(files, uintptr(b.fd)), // It has a copy of the lock: a handoverd that is killed meanwhile could not be followed by another one.
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL},
	})
	return pid, os.NewSyscallError("fork/exec "+b.path, err)
}
