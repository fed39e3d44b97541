package shim

import (
	"errors"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// The package's own init is the dispatch, so that it comes as early as this
// package's imports allow (see the package documentation).
func init() { Init() }

// Init returns at once unless this process is a shim made by [Start]; then it
// never returns: the process becomes the program or exits. Importing the
// package is enough, since its own init calls it; calling it again from the
// init of a command or a test binary says so where it can be read.
func Init() {
	if _, ok := syscall.Getenv(marker); !ok {
		return
	}
	c := &child{control: controlFD, spec: &Spec{}}
	named, err := namedShim()
	switch {
	case err != nil:
		// Whoever carries the marker is a shim; to go on would be to become handoverd.
		c.fail(failed("receive", cmdline, "", err))
	case !named:
		return
	}
	// Already so during initialisation; said again for a caller elsewhere.
	runtime.LockOSThread()
	c.run()
}

// cmdline has argv[0] (proc_pid_cmdline(5)), which package os would know, had it
// been initialised.
const cmdline = "/proc/self/cmdline"

// namedShim reports whether argv[0] is that of a shim.
func namedShim() (bool, error) {
	b, err := readSmall(cmdline)
	return len(b) > len(programName) &&
		string(b[:len(programName)]) == programName && b[len(programName)] == 0, err
}

// child is the shim itself.
type child struct {
	control int // our end, close-on-exec once it was moved
	base    int // above all targets: what we hold is kept from here on
	spec    *Spec
	files   []int // received, each ≥ base, in the order of spec.Targets
}

// step is one stage; its failure is reported and ends the shim.
type step func(*child) *ExecError

func (c *child) run() {
	for _, do := range []step{
		(*child).receive,
		(*child).setNice,
		(*child).setOOMScoreAdj,
		(*child).place,
		(*child).raiseLimits,
		(*child).setUmask,
		(*child).becomeUser,
		(*child).setNoNewPrivs,
		(*child).enterDir,
		(*child).awaitGo,
		(*child).exec,
	} {
		if failure := do(c); failure != nil {
			c.fail(failure)
		}
	}
}

// fail reports and exits; it never returns.
func (c *child) fail(e *ExecError) {
	const longest = maxReport / 4 // a path may be longer than the packet
	e.Path, e.Detail = e.Path[:min(len(e.Path), longest)], e.Detail[:min(len(e.Detail), longest)]
	// The parent may be gone, and there is nobody else to tell.
	_ = unix.Sendmsg(c.control, encodeReport(e), nil, nil, unix.MSG_NOSIGNAL)
	exit(ExitFailed)
}

// exit runs no atexit handler and no finalizer: this process owns nothing.
func exit(code int) {
	for {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(code), 0, 0)
	}
}

func (c *child) setUmask() *ExecError {
	if c.spec.Umask != nil {
		unix.Umask(int(*c.spec.Umask & 0o777))
	}
	return nil
}

func (c *child) setNoNewPrivs() *ExecError {
	if !c.spec.NoNewPrivs {
		return nil
	}
	return prctl("no_new_privs", unix.PR_SET_NO_NEW_PRIVS, 1, 0)
}

// enterDir comes after the change of user: a directory the user may not enter
// is that user's error.
func (c *child) enterDir() *ExecError {
	if c.spec.Dir == "" {
		return nil
	}
	if err := unix.Chdir(c.spec.Dir); err != nil {
		return failed("chdir", c.spec.Dir, "", err)
	}
	return nil
}

// awaitGo ends the process quietly when the parent aborts or dies.
func (c *child) awaitGo() *ExecError {
	b := make([]byte, 16)
	for {
		n, err := unix.Read(c.control, b)
		switch {
		case err == unix.EINTR:
		case err != nil, n == 0:
			exit(ExitAborted)
		case b[0] != packetGo:
			return failed("receive", "", "packet before go", unix.EBADMSG)
		default:
			return nil
		}
	}
}

// exec is the last step. syscall.Exec and not a bare execve: it keeps the
// runtime from creating a thread meanwhile (golang/go#19546).
func (c *child) exec() *ExecError {
	env := c.spec.programEnv(strconv.Itoa(unix.Getpid()))
	if failure := c.finalLimits(); failure != nil {
		return failure
	}
	if failure := resetSignals(); failure != nil {
		return failure
	}
	err := syscall.Exec(c.spec.Path, c.spec.Argv, env)
	return failed("execve", c.spec.Path, puzzle(c.spec.Path, err), err)
}

// puzzle says what an errno of execve(2) means that would puzzle.
func puzzle(path string, err error) string {
	switch {
	case errors.Is(err, unix.ENOENT) && unix.Access(path, unix.F_OK) == nil:
		return "the file is there, but not its interpreter (after #!, or of an ELF file)"
	case errors.Is(err, unix.ENOEXEC):
		return "neither a program for this machine nor a script with #!"
	}
	return ""
}

func failed(step, path, detail string, err error) *ExecError {
	var errno syscall.Errno
	ok := errors.As(err, &errno)
	if !ok {
		errno = unix.EINVAL
	}
	return &ExecError{Step: step, Path: path, Detail: detail, Errno: errno}
}

// prctl acts on the calling thread only.
func prctl(step string, option, arg2, arg3 uintptr) *ExecError {
	if _, _, errno := unix.RawSyscall6(unix.SYS_PRCTL, option, arg2, arg3, 0, 0, 0); errno != 0 {
		return failed(step, "", "prctl", errno)
	}
	return nil
}
