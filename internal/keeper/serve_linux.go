package keeper

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
)

// sendWait is how long the keeper waits for room when it hands out what it has,
// in milliseconds. A client that does not read for so long is given up.
const sendWait = 10_000

// server is the keeper at work. It owns all of its descriptors.
type server struct {
	dir    string
	listen int
	conn   int  // of the client; -1: there is none
	known  bool // the client has the lock
	held   map[string]int
	buf    []byte
}

// Serve is the whole life of the keeper, in a process of its own: it holds what it
// is told to until it is killed, or until its client is gone while it holds
// nothing. listen, which it takes, is a socket from Listen, dir the runtime
// directory.
func Serve(listen int, dir string) error {
	unix.CloseOnExec(listen)
	// What ps shows (proc_pid_comm(5)): started by /proc/self/exe it would be called "exe". Where /proc is read-only it is.
	_ = os.WriteFile("/proc/self/comm", []byte("handoverd-keep"), 0)
	if err := unix.SetNonblock(listen, true); err != nil {
		return fmt.Errorf("keeper: descriptor %d: %w", listen, os.NewSyscallError("fcntl", err))
	}
	s := &server{dir: dir, listen: listen, conn: -1, held: map[string]int{}, buf: make([]byte, MaxPacket+1)}
	defer s.close()
	served := false
	for {
		// What a client that is gone has sent is read to its end before another one
		// is heard.
		polled := []unix.PollFd{{Fd: int32(s.listen), Events: unix.POLLIN}}
		if s.conn >= 0 {
			polled = []unix.PollFd{{Fd: int32(s.conn), Events: unix.POLLIN}}
		}
		if _, err := unix.Poll(polled, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("poll", err)
		}
		if polled[0].Revents == 0 {
			continue
		}
		if s.conn < 0 {
			s.accept()
			served = served || s.conn >= 0
			continue
		}
		if err := s.read(); err != nil {
			s.hangUp(err)
			if served && len(s.held) == 0 {
				return nil // nobody can want anything of it
			}
		}
	}
}

func (s *server) close() {
	for _, fd := range s.held {
		_ = unix.Close(fd)
	}
	if s.conn >= 0 {
		_ = unix.Close(s.conn)
	}
	_ = unix.Close(s.listen)
}

// accept takes the next client, if it is of the keeper's user.
func (s *server) accept() {
	fd, _, err := unix.Accept4(s.listen, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			_, _ = unix.Poll(nil, 100) // it stays readable: this is not to be a spin
		}
		return
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || int(cred.Uid) != os.Geteuid() {
		_ = unix.Close(fd)
		return
	}
	s.conn, s.known = fd, false
}

// hangUp ends a client's connection, and tells him why if it is his fault.
func (s *server) hangUp(err error) {
	if !errors.Is(err, errHungUp) {
		_ = sendPacket(s.conn, message{Verb: verbError, Error: err.Error()}, nil, 0)
	}
	_ = unix.Close(s.conn)
	s.conn = -1
}

// errHungUp says that the client has closed its end.
var errHungUp = errors.New("keeper: the client is gone")

// read handles one packet. An error ends the connection.
func (s *server) read() error {
	n, fds, err := fdpass.RecvFDs(s.conn, s.buf, maxFiles)
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ECONNRESET):
		// The client closed with something of ours unread. The error comes before
		// what it had sent (net/core/datagram.c looks at sk_err before the queue),
		// and that is what a keeper is for: the next read gets it, or the end.
		return nil
	case errors.Is(err, fdpass.ErrTruncated):
		// No room for its descriptors (RLIMIT_NOFILE), most likely. What is held
		// stays held, and the client is told that this is not.
		s.answer(message{Verb: verbError, Error: err.Error()})
		return nil
	case err == nil && n == 0:
		closeAll(fds)
		return errHungUp
	case err != nil:
		return err
	}
	m, err := decode(s.buf[:n], len(fds))
	if err != nil {
		closeAll(fds)
		return err
	}
	if m.Verb == verbHello {
		return s.hello(fds)
	}
	if !s.known {
		closeAll(fds)
		return fmt.Errorf("%w: %s before hello", errProtocol, m.Verb)
	}
	switch m.Verb {
	case verbKeep:
		for i, name := range m.Names {
			s.drop(name)
			s.held[name] = fds[i]
		}
	case verbDrop:
		for _, name := range m.Names {
			s.drop(name)
		}
	case verbTake:
		return s.handOut()
	default:
		closeAll(fds)
		return fmt.Errorf("%w: %s from a client", errProtocol, m.Verb)
	}
	return nil
}

func (s *server) drop(name string) {
	if fd, ok := s.held[name]; ok {
		_ = unix.Close(fd)
		delete(s.held, name)
	}
}

// hello answers a client that has the lock.
func (s *server) hello(fds []int) error {
	if len(fds) != 1 {
		return fmt.Errorf("%w: hello without the lock", errProtocol)
	}
	err := hasLock(fds[0], filepath.Join(s.dir, LockName))
	// The lock must not outlive its owner here.
	_ = unix.Close(fds[0])
	if err != nil {
		return fmt.Errorf("keeper: the client does not have the lock: %w", err)
	}
	s.known = true
	s.answer(message{Verb: verbHello, PID: os.Getpid()})
	return nil
}

// answer tells the client something. One that is gone, or does not read, has sent
// what it has sent all the same: that is read to its end.
func (s *server) answer(m message) { _ = sendPacket(s.conn, m, nil, 0) }

// hasLock reports whether the open file of fd is path's and has its lock.
func hasLock(fd int, path string) error {
	var theirs, ours unix.Stat_t
	if err := unix.Fstat(fd, &theirs); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if err := unix.Stat(path, &ours); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if theirs.Dev != ours.Dev || theirs.Ino != ours.Ino {
		return fmt.Errorf("the descriptor is not of %s", path)
	}
	return os.NewSyscallError("flock", unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB))
}

// handOut sends copies of all that is held. A client that does not get all knows
// it, since the last packet says that it is the last.
func (s *server) handOut() error {
	names := slices.Sorted(maps.Keys(s.held))
	for {
		n := batch(names, maxFiles)
		m := message{Verb: verbKept, Names: names[:n], Last: n == len(names)}
		var fds []int
		for _, name := range m.Names {
			fds = append(fds, s.held[name])
		}
		if err := sendPacket(s.conn, m, fds, sendWait); err != nil {
			return nil // it is gone, which the next read says, or does not read
		}
		if names = names[n:]; len(names) == 0 {
			return nil
		}
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
