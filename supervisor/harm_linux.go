package supervisor

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
)

// harmWatcher tells when somebody has shut a socket down or disconnected it, which ends
// its listening for every holder. It is an epoll set in which each socket is armed for
// EPOLLRDHUP alone, edge-triggered; EPOLLHUP and EPOLLERR always are (epoll_ctl(2)).
// A connection wakes it neither: the kernel compares the events of a wake-up with those
// that are armed before anything else (ep_poll_callback, fs/eventpoll.c).
type harmWatcher struct {
	f *os.File // the epoll set, which waits in the runtime's poller

	mu      sync.Mutex
	last    int32
	sockets map[int32]*fdpass.Socket // by what epoll tells
	ids     map[*fdpass.Socket]int32
	woken   int // how often wait was
	closed  bool
}

func newHarmWatcher() (*harmWatcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // else it would not go to the poller
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return &harmWatcher{
		f: os.NewFile(uintptr(fd), "epoll"), sockets: map[int32]*fdpass.Socket{}, ids: map[*fdpass.Socket]int32{},
	}, nil
}

func (w *harmWatcher) add(s *fdpass.Socket) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	id := w.last
	err := control(w.f, func(fd int) error {
		e := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET, Fd: id}
		return os.NewSyscallError("epoll_ctl", unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, s.FD(), &e))
	})
	if err != nil {
		return err
	}
	w.sockets[id], w.ids[s] = s, id
	return nil
}

// remove has to come before the socket is closed: the entry is one of the open file
// description, which lives on in the programs (epoll(7)).
func (w *harmWatcher) remove(s *fdpass.Socket) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id, ok := w.ids[s]
	if !ok {
		return
	}
	delete(w.ids, s)
	delete(w.sockets, id)
	_ = control(w.f, func(fd int) error { // fails if it is gone by itself
		return unix.EpollCtl(fd, unix.EPOLL_CTL_DEL, s.FD(), nil)
	})
}

// wait blocks until something may have been done to sockets. After close it is
// os.ErrClosed.
func (w *harmWatcher) wait() ([]*fdpass.Socket, error) {
	raw, err := w.f.SyscallConn()
	if err != nil {
		return nil, err
	}
	events, n := make([]unix.EpollEvent, 64), 0
	var waitErr error
	err = raw.Read(func(fd uintptr) bool {
		n, waitErr = unix.EpollWait(int(fd), events, 0)
		if errors.Is(waitErr, unix.EINTR) {
			waitErr = nil
		}
		w.mu.Lock()
		w.woken++
		w.mu.Unlock()
		return n > 0 || waitErr != nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed: // a RawConn does not say so in a way that could be recognised
		return nil, os.ErrClosed
	case err != nil:
		return nil, fmt.Errorf("epoll: %w", err)
	case waitErr != nil:
		return nil, os.NewSyscallError("epoll_wait", waitErr)
	}
	var harmed []*fdpass.Socket
	for _, e := range events[:n] {
		if s := w.sockets[e.Fd]; s != nil { // else it was closed meanwhile
			harmed = append(harmed, s)
		}
	}
	return harmed, nil
}

func (w *harmWatcher) close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	return w.f.Close()
}
