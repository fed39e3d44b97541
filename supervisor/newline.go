package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// newlinePipe makes the pipe on which a program says that it is ready as programs
// for s6 do: it writes a newline (s6, doc/notifywhenup.html). The caller owns both
// ends; the program's blocks, as it expects.
func newlinePipe() (r *os.File, childFD int, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, -1, fmt.Errorf("ready.fd: %w", err)
	}
	defer func() { _ = w.Close() }()
	raw, err := w.SyscallConn()
	if err == nil {
		var dupErr error
		err = raw.Control(func(fd uintptr) {
			if childFD, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); dupErr == nil {
				dupErr = unix.SetNonblock(childFD, false)
			}
		})
		err = errors.Join(err, dupErr)
	}
	if err != nil {
		return nil, -1, errors.Join(fmt.Errorf("ready.fd: %w", err), r.Close())
	}
	return r, childFD, nil
}

// awaitNewline adds the pipe to what the generation is passed, if it says ready in
// that way. The function returned closes the program's end.
func (c *child) awaitNewline(g *Generation, h *handout, pass []int) ([]int, func(), error) {
	if g.Spec.Config.Ready.When != "newline" {
		return pass, func() {}, nil
	}
	r, fd, err := newlinePipe()
	if err != nil {
		return nil, nil, err
	}
	c.ready, h.readyFD = r, g.readyFD()
	return append(pass, fd), func() { _ = unix.Close(fd) }, nil
}

// readyFD is the number that the program has the pipe at: the configured one, or
// the first after its sockets and the control socket.
func (g *Generation) readyFD() int {
	if fd := g.Spec.Config.Ready.FD; fd != 0 {
		return fd
	}
	return firstFreeFD(len(g.Spec.Keys))
}

// firstFreeFD is the first number that a program with so many sockets is given
// nothing at.
func firstFreeFD(sockets int) int { return firstFD + sockets + 1 }

// readNewline waits for the newline. It reads on after it, until every end that
// the generation has is closed: a program that writes more is not to die of SIGPIPE.
// An end without a newline is no event: the exit or the grace is. Run waits for it.
func (l *loop) readNewline(c *child) {
	defer l.readers.Done()
	buf := make([]byte, 512)
	said := false
	for {
		n, err := c.ready.Read(buf)
		if !said && bytes.IndexByte(buf[:n], '\n') >= 0 {
			said = true
			l.post(evReady{c.at, "newline"})
		}
		if err != nil {
			return
		}
	}
}
