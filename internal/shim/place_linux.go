package shim

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// receive reads the Spec and all descriptors. Whatever lies on a number below
// base, received or our own, is moved up before the next message is read, so
// that no target is in the way of another: a received descriptor may have got
// the number that is the target of a second one, and that one the first's.
func (c *child) receive() *ExecError {
	first, failure := c.receiveFiles()
	if failure != nil {
		return failure
	}
	if len(first) == 0 {
		return failed("receive", "", "no spec", unix.EBADMSG)
	}
	if failure := c.load(first[0]); failure != nil {
		return failure
	}
	c.base = controlFD
	for _, t := range c.spec.Targets {
		c.base = max(c.base, t+1)
	}
	old := c.control
	if c.control, failure = c.moveUp(old); failure != nil {
		c.control = old
		return failure
	}
	next := first[1:]
	for {
		for _, fd := range next {
			up, failure := c.moveUp(fd)
			if failure != nil {
				return failure
			}
			c.files = append(c.files, up)
		}
		if len(c.files) == len(c.spec.Targets) {
			return nil
		}
		if next, failure = c.receiveFiles(); failure != nil {
			return failure
		}
		if len(next) == 0 || len(c.files)+len(next) > len(c.spec.Targets) {
			return failed("receive", "", "another number of descriptors than targets", unix.EBADMSG)
		}
	}
}

func (c *child) receiveFiles() ([]int, *ExecError) {
	b, oob := make([]byte, 16), make([]byte, unix.CmsgSpace(maxFiles*4))
	n, oobn, flags, err := 0, 0, 0, error(unix.EINTR)
	for err == unix.EINTR {
		n, oobn, flags, _, err = unix.Recvmsg(c.control, b, oob, unix.MSG_CMSG_CLOEXEC)
	}
	switch {
	case err == unix.ECONNRESET, err == nil && n == 0:
		exit(ExitAborted)
	case err != nil:
		return nil, failed("receive", "", "recvmsg", err)
	case flags&unix.MSG_CTRUNC != 0:
		return nil, failed("receive", "", "descriptors lost: RLIMIT_NOFILE", unix.EMFILE)
	case b[0] != packetFiles:
		return nil, failed("receive", "", "not descriptors", unix.EBADMSG)
	}
	var fds []int
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, failed("receive", "", "control message", err)
	}
	for i := range messages {
		rights, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, failed("receive", "", "control message", err)
		}
		fds = append(fds, rights...)
	}
	return fds, nil
}

// stdin is /dev/null (fork).
const stdin = 0

// load takes memfd.
func (c *child) load(memfd int) *ExecError {
	var st unix.Stat_t
	if err := unix.Fstat(memfd, &st); err != nil {
		return failed("receive", "", "fstat spec", err)
	}
	b := make([]byte, st.Size)
	for got := 0; got < len(b); {
		n, err := unix.Pread(memfd, b[got:], int64(got))
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 {
			err = unix.EBADMSG
		}
		if err != nil {
			return failed("receive", "", "read spec", err)
		}
		got += n
	}
	if err := unix.Close(memfd); err != nil {
		return failed("receive", "", "close spec", err)
	}
	spec, ok := decodeSpec(b)
	if !ok {
		return failed("receive", "", "damaged spec", unix.EBADMSG)
	}
	c.spec = spec
	return nil
}

// moveUp returns fd itself or its close-on-exec duplicate at base or above. The
// number stays taken, by /dev/null: see childFiles.
func (c *child) moveUp(fd int) (int, *ExecError) {
	if fd >= c.base {
		return fd, nil
	}
	up, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, c.base)
	if err != nil {
		return -1, failed("descriptors", "", "no number above "+strconv.Itoa(c.base)+", RLIMIT_NOFILE?", err)
	}
	if err := unix.Dup3(stdin, fd, unix.O_CLOEXEC); err != nil {
		return -1, failed("descriptors", "", "dup3", err)
	}
	return up, nil
}

// place puts each descriptor on its target, without close-on-exec but for the
// program's own; everything else from 3 on gets that flag, whoever left it there.
func (c *child) place() *ExecError {
	if err := closeAtExec(); err != nil {
		return failed("descriptors", "", "close-on-exec", err)
	}
	for i, t := range c.spec.Targets {
		flags := 0
		if c.spec.executes(t) {
			flags = unix.O_CLOEXEC
		}
		if err := unix.Dup3(c.files[i], t, flags); err != nil {
			return failed("descriptors", "", "dup3 to "+strconv.Itoa(t), err)
		}
	}
	for _, t := range c.spec.Targets {
		flags, err := unix.FcntlInt(uintptr(t), unix.F_GETFD, 0)
		if err == nil && (flags&unix.FD_CLOEXEC != 0) != c.spec.executes(t) {
			err = unix.EBADF
		}
		if err != nil {
			return failed("descriptors", "", "number "+strconv.Itoa(t)+" would not reach the program", err)
		}
	}
	return nil
}

// executes reports whether the target is the program's own descriptor.
func (s *Spec) executes(target int) bool { return s.ExecTarget != 0 && target == s.ExecTarget }

func closeAtExec() error {
	const first, last = 3, 1<<32 - 1
	// CLOSE_RANGE_CLOEXEC is of Linux 5.11, and an old seccomp filter knows
	// no close_range at all.
	_, _, errno := unix.RawSyscall(unix.SYS_CLOSE_RANGE, first, last, unix.CLOSE_RANGE_CLOEXEC)
	if errno == 0 {
		return nil
	}
	return closeAtExecByList(first)
}

// closeAtExecByList does the same by what /proc/self/fd lists.
func closeAtExecByList(first int) error {
	dir, err := unix.Open("/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	b := make([]byte, 8192)
	for {
		n, err := unix.ReadDirent(dir, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		_, _, names := unix.ParseDirent(b[:n], -1, nil)
		for _, name := range names {
			fd, err := strconv.Atoi(name)
			if err != nil || fd < first {
				continue
			}
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
				return err
			}
		}
	}
}
