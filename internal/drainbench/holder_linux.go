package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/wire"
)

// holder holds a socket and runs one generation of the server after the other with it: what handoverd does, without anything
// that could make up for how the server leaves.
type holder struct {
	socket *fdpass.Socket // nil: the program has none
	exe    string
	args   []string
	limit  time.Duration // what an old generation is given

	number  int
	current *generation
	leaving sync.WaitGroup

	mu    sync.Mutex
	exits map[string]int // how generations ended
}

// generation is one run of the server.
type generation struct {
	conn *wire.Conn
	pid  int
	over chan struct{} // closed when it has been waited for
}

// newHolder binds a socket if listens. The caller calls close.
func newHolder(exe string, listens bool, limit time.Duration, args ...string) (*holder, error) {
	h := &holder{exe: exe, args: append([]string{exe, serverVerb}, args...), limit: limit, exits: map[string]int{}}
	if !listens {
		return h, nil
	}
	addr, options, err := fdpass.ParseAddr("tcp4://127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h.socket, err = fdpass.Bind(addr, options)
	return h, err
}

// addr is where clients connect to.
func (h *holder) addr() string {
	if h.socket == nil {
		return ""
	}
	return strings.TrimPrefix(h.socket.Addr().String(), "tcp4://")
}

// replace starts a generation, waits until it accepts, and tells the one before to leave.
func (h *holder) replace(ctx context.Context) error {
	old := h.current
	fresh, err := h.start(ctx)
	if err != nil {
		return err
	}
	h.current = fresh
	if old == nil {
		return nil
	}
	h.retire(old)
	return nil
}

// start returns when the generation accepts.
func (h *holder) start(ctx context.Context) (*generation, error) {
	conn, childEnd, err := wire.Pair()
	if err != nil {
		return nil, err
	}
	h.number++
	attr := &syscall.ProcAttr{
		Env:   []string{wire.EnvFD + "=3", fmt.Sprintf("%s=%d", wire.EnvGeneration, h.number)},
		Files: []uintptr{0, 1, 2, uintptr(childEnd)},
	}
	if h.socket != nil {
		attr.Env = append(attr.Env, wire.EnvSocketPrefix+"HTTP=4")
		attr.Files = append(attr.Files, uintptr(h.socket.FD()))
	}
	pid, err := syscall.ForkExec(h.exe, h.args, attr)
	err = errors.Join(err, unix.Close(childEnd))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	g := &generation{conn: conn, pid: pid, over: make(chan struct{})}
	// Waited for by close, through over.
	go h.reap(g)
	unwatch := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer unwatch()
	for {
		m, _, err := conn.Recv()
		switch {
		case errors.Is(err, os.ErrClosed) || err != nil:
			_ = unix.Kill(pid, unix.SIGKILL) // it has ended, or is of no use
			return nil, fmt.Errorf("generation %d, process %d, is not ready: %w", h.number, pid, err)
		case m.Verb == wire.Ready:
			return g, errors.Join(conn.Send(wire.Message{Verb: wire.Accept}), conn.Send(wire.Message{Verb: wire.Ack}))
		}
	}
}

// reap takes note of how a generation ends.
func (h *holder) reap(g *generation) {
	var status unix.WaitStatus
	_, err := unix.Wait4(g.pid, &status, 0, nil)
	for err == unix.EINTR {
		_, err = unix.Wait4(g.pid, &status, 0, nil)
	}
	how := fmt.Sprintf("exit %d", status.ExitStatus())
	if status.Signaled() {
		how = status.Signal().String()
	}
	h.mu.Lock()
	h.exits[how]++
	h.mu.Unlock()
	close(g.over)
}

// retire tells a generation to leave, and ends it when its time is over. close waits for that.
func (h *holder) retire(g *generation) {
	h.leaving.Add(1)
	go h.see(g, tellToDrain(g.conn, h.limit))
}

// tellToDrain sends the message. Its deadline is of CLOCK_BOOTTIME.
func tellToDrain(c *wire.Conn, limit time.Duration) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return err
	}
	return c.Send(wire.Message{Verb: wire.Drain, DeadlineNS: now.Nano() + int64(limit)})
}

// see ends with the generation.
func (h *holder) see(g *generation, told error) {
	defer h.leaving.Done()
	timer := time.NewTimer(h.limit)
	defer timer.Stop()
	if told == nil {
		select {
		case <-g.over:
		case <-timer.C:
		}
	}
	g.kill()
}

// kill ends a generation that has not ended, and forgets it.
func (g *generation) kill() {
	select {
	case <-g.over:
	default:
		_ = unix.Kill(g.pid, unix.SIGKILL)
		<-g.over
	}
	_ = g.conn.Close()
}

// close lets the last generation leave like the others, and waits for all. It returns how they ended.
func (h *holder) close() map[string]int {
	if h.current != nil {
		h.retire(h.current)
	}
	h.leaving.Wait()
	if h.socket != nil {
		_ = h.socket.Close() // nobody uses it any more
	}
	return h.exits
}
