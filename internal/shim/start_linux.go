package shim

import (
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// maxFiles is what one SCM_RIGHTS message carries (unix(7), SCM_MAX_FD).
	maxFiles = 253
	// controlFD is where the child finds its end: the first after the three
	// standard descriptors.
	controlFD = 3
	selfExe   = "/proc/self/exe"
	devNull   = "/dev/null"
)

// shimEnv is the whole environment of the shim; the program's own travels in
// the Spec. The Go variables keep the shim's runtime small and, above all, off
// the low descriptors: since Go 1.25 the runtime opens its cgroup's files at
// the first free numbers and reads them again every second, by when a socket
// may sit on that number.
func shimEnv() []string {
	return []string{
		marker + "=1",
		"GOMAXPROCS=1",
		"GOGC=off",
		"GODEBUG=containermaxprocs=0,updatemaxprocs=0",
	}
}

// Start forks a shim that will become the program of s, with fds[i] at number
// s.Targets[i]. It borrows fds, stdout and stderr: they are duplicated, nothing
// about them changes, O_NONBLOCK included. A negative stdout or stderr is
// /dev/null, as stdin always is. The child leads a session of its own.
//
// Start does not wait for the child: the memfd and all descriptors lie in the
// socketpair before the fork. The child waits for [Process.Go]. On error
// nothing runs and nothing is left open. The error is a *[StartError]: EINVAL
// for a bad Spec, ETOOMANYREFS when more descriptors are under way than
// RLIMIT_NOFILE and the caller has neither CAP_SYS_RESOURCE nor CAP_SYS_ADMIN
// (unix(7)).
//
// The caller reaps PID. See the package documentation for the thread to call
// Start from.
func Start(s *Spec, fds []int, stdout, stderr int) (*Process, error) {
	if err := s.check(len(fds)); err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, &StartError{Op: "socketpair", Err: err}
	}
	ours, theirs := pair[0], pair[1]
	defer func() { _ = unix.Close(theirs) }()
	p, err := start(s, fds, stdout, stderr, ours, theirs)
	if err != nil {
		_ = unix.Close(ours)
		return nil, err
	}
	return p, nil
}

// start takes ours when it succeeds.
func start(s *Spec, fds []int, stdout, stderr, ours, theirs int) (*Process, error) {
	memfd, err := sealed(encodeSpec(s))
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(memfd) }()
	if err := sendAll(ours, memfd, fds); err != nil {
		return nil, err
	}
	pid, pidfd, err := fork(stdout, stderr, theirs, s.Targets)
	if err != nil {
		return nil, err
	}
	started, err := startTime(pid)
	if err != nil {
		// Not yet told to go, so it is still the shim; nobody else knows the
		// pid, so reaping it here takes nothing from anybody.
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = wait(pid)
		_ = closeIf(pidfd)
		return nil, err
	}
	return &Process{PID: pid, StartTime: started, pidfd: pidfd, control: control{fd: ours}}, nil
}

func fork(stdout, stderr, control int, targets []int) (pid, pidfd int, err error) {
	null, err := unix.Open(devNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, -1, &StartError{Op: "open", Detail: devNull, Err: err}
	}
	defer func() { _ = unix.Close(null) }()
	if stdout < 0 {
		stdout = null
	}
	if stderr < 0 {
		stderr = null
	}
	pidfd = -1
	pid, err = syscall.ForkExec(selfExe, []string{programName}, &syscall.ProcAttr{
		Env:   shimEnv(),
		Files: childFiles(null, stdout, stderr, control, targets),
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	})
	if err != nil {
		_ = closeIf(pidfd)
		return 0, -1, &StartError{Op: "fork", Detail: selfExe, Err: err}
	}
	return pid, pidfd, nil
}

// mostReserved bounds the numbers that are kept free for sockets; the runtime
// never gets that far.
const mostReserved = 1 << 12

// childFiles are the child's first descriptors, by their numbers there. Each
// number that a socket will get is taken by /dev/null until then. Else the
// child's own runtime would get it, for the epoll set that the first os.Open of
// some package's init makes, and would end the process when a socket has taken
// its place ("runtime: netpoll failed").
func childFiles(null, stdout, stderr, control int, targets []int) []uintptr {
	const closed = ^uintptr(0)
	files := []uintptr{uintptr(null), uintptr(stdout), uintptr(stderr), uintptr(control)}
	for _, t := range targets {
		if t < len(files) && files[t] != closed || t >= mostReserved {
			continue
		}
		for len(files) <= t {
			files = append(files, closed)
		}
		files[t] = uintptr(null)
	}
	return files
}

// sealed returns a memfd holding b that nobody, the child included, can change.
func sealed(b []byte) (int, error) {
	const name = "handoverd-spec"
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return -1, &StartError{Op: "memfd_create", Err: err}
	}
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			_ = unix.Close(fd)
			return -1, &StartError{Op: "write", Detail: name, Err: err}
		}
		b = b[n:]
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		_ = unix.Close(fd)
		return -1, &StartError{Op: "fcntl", Detail: "F_ADD_SEALS", Err: err}
	}
	return fd, nil
}

// sendAll queues the memfd and fds for the child, maxFiles a packet. The queue
// holds some 270 packets (measured, default wmem), so about 68,000 descriptors;
// beyond, EAGAIN.
func sendAll(control, memfd int, fds []int) error {
	all := append([]int{memfd}, fds...)
	for len(all) > 0 {
		n := min(len(all), maxFiles)
		err := unix.Sendmsg(control, []byte{packetFiles}, unix.UnixRights(all[:n]...), nil,
			unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return &StartError{Op: "sendmsg", Detail: "descriptors", Err: err}
		}
		all = all[n:]
	}
	return nil
}

// startTime is field 22 of /proc/PID/stat, proc_pid_stat(5): clock ticks since
// boot. execve does not change it.
func startTime(pid int) (uint64, error) {
	path := "/proc/" + strconv.Itoa(pid) + "/stat"
	b, err := readSmall(path)
	if err != nil {
		return 0, &StartError{Op: "read", Detail: path, Err: err}
	}
	t, ok := parseStartTime(string(b))
	if !ok {
		return 0, &StartError{Op: "parse", Detail: path, Err: unix.EINVAL}
	}
	return t, nil
}

// parseStartTime counts from the last ')': the program's name before it may
// hold blanks and parentheses.
func parseStartTime(stat string) (uint64, bool) {
	const field = 22 - 2 // counted from the state, field 3, after one blank
	at := len(stat) - 1
	for at >= 0 && stat[at] != ')' {
		at--
	}
	n, begin := 0, -1
	for i := at + 1; at >= 0 && i < len(stat); i++ {
		if stat[i] != ' ' {
			continue
		}
		if n == field {
			t, err := strconv.ParseUint(stat[begin:i], 10, 64)
			return t, err == nil
		}
		n, begin = n+1, i+1
	}
	return 0, false
}

// readSmall reads a file of /proc that fits a page, with no descriptor left.
func readSmall(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	b := make([]byte, 4096)
	for {
		n, err := unix.Read(fd, b)
		if err == unix.EINTR {
			continue
		}
		return b[:max(n, 0)], err
	}
}

func wait(pid int) (unix.WaitStatus, error) {
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &ws, 0, nil)
		if err != unix.EINTR {
			return ws, err
		}
	}
}

func closeIf(fd int) error {
	if fd < 0 {
		return nil
	}
	return unix.Close(fd)
}
