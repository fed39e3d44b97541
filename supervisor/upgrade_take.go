package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
	"github.com/handoverd/handover/internal/shim"
)

func processID() int { return os.Getpid() }

// greetLimit is how long an upgrade waits for the keeper, of which nothing is needed: one that
// is slower is replaced.
const greetLimit = time.Second

// takeOver goes on with what the image before this one has handed over: the same
// process, so that its children are this one's, and nothing has to be asked for. It returns the
// event that the loop begins with. In a pre-flight it does all but what changes something.
//
// It runs before the first turn, and before the reaper, which would take the children for
// strangers. What was handed over stays open until that turn: an error here means that
// the image before is executed again.
func (l *loop) takeOver() (*evRestored, error) {
	h := l.up.handed
	if h == nil {
		return nil, nil // it is another life
	}
	saved := l.found
	back := &evRestored{Whole: true, Fault: h.fault, Passed: saved.Passed}
	l.found = nil
	taken, err := h.takeKept()
	if err != nil {
		return back, err
	}
	defer func() { closeFDs(taken) }() // what nobody wants
	sockets, err := l.takeSockets(saved, taken)
	if err != nil {
		return back, err
	}
	l.state, l.manager.restored = saved.State, true
	l.config = l.running()
	if l.passed, err = h.takePassed(); err != nil {
		return back, err
	}
	l.sockets.add(sockets)
	l.takePrograms(taken)
	l.sources, l.missing = orEmpty(h.Sources), orEmpty(h.Missing)
	l.outcomes = h.Outcomes
	l.s.hub.goOn(h.Events, h.LastEvent)
	l.lookout.goOn(h.Tails)
	for _, name := range saved.Order {
		svc := l.state.Services[name]
		for _, g := range svc.Generations {
			c := l.takeChild(ref(svc, g), g, saved)
			if c.proc.Pidfd() < 0 && c.adopted {
				back.Gone = append(back.Gone, c.at)
			}
			if fd, ok := taken[keptReady+c.String()]; ok {
				c.ready = os.NewFile(uintptr(fd), "newline")
				delete(taken, keptReady+c.String())
			}
			l.adopt(g, c, saved, taken)
			if text := h.Texts[c.String()]; text != "" {
				l.texts[c.at] = text
			}
		}
	}
	slices.SortFunc(back.Gone, compareAt)
	if !l.up.dry {
		l.found = saved // a keeper that does not answer is the one that it names
		closeFDs(l.takeFromKeeper(greetLimit))
		l.endOrphan()
		l.found = nil
	}
	return back, nil
}

func orEmpty[M ~map[string]V, V any](m M) M {
	if m == nil {
		return M{}
	}
	return m
}

// takeSockets makes sockets of what was handed over. Every one of the state has to be
// there, and to be the one that it was.
func (l *loop) takeSockets(saved *savedState, taken map[string]int) (map[string]*fdpass.Socket, error) {
	out := map[string]*fdpass.Socket{}
	for key, h := range saved.Held.Sockets {
		fd, ok := taken[keptSocket+key]
		if !ok {
			return nil, fmt.Errorf("socket %s was not handed over", h.Addr)
		}
		delete(taken, keptSocket+key)
		var s *fdpass.Socket
		var err error
		if l.up.dry {
			s, err = lookAtSocket(fd, h)
		} else if s = l.adoptSocket(fd, key, h, "the handoverd before"); s == nil {
			err = errors.New("the log says why")
		}
		if err != nil {
			return nil, fmt.Errorf("socket %s: %w", h.Addr, err)
		}
		out[key] = s
	}
	return out, nil
}

// lookAtSocket takes fd, and changes nothing about the socket, which others share. One
// that was shut down is repaired when it is taken over.
func lookAtSocket(fd int, h heldSocket) (*fdpass.Socket, error) {
	if ino, err := socketInode(fd); err != nil || ino != h.Inode {
		return nil, errors.Join(err, errors.New("it is another socket than the one in the state"), unix.Close(fd))
	}
	s, err := fdpass.Adopt(fd, h.Addr, h.Options)
	if errors.Is(err, fdpass.ErrShutDown) {
		return fdpass.AdoptDead(fd, h.Addr, h.Options)
	}
	return s, err
}

// takeChild is what is held of a generation. A child that has ended meanwhile is a
// zombie, and its end is reported as ever; one that was adopted by an image before is nobody's
// child here either.
func (l *loop) takeChild(a at, g *Generation, saved *savedState) *child {
	if g.PID == 0 || l.up.dry || !proc.IsChild(g.PID) {
		return verified(a, g, saved.Saved)
	}
	fd, err := proc.OpenPidfd(g.PID)
	if err != nil {
		fd = -1
	}
	c := &child{at: a, token: g.Token, pid: g.PID, proc: shim.Adopted(g.PID, g.StartTime, fd)}
	_, _ = l.reaper.Start(func() (int, error) { return g.PID, nil }, func(e proc.Exit) { l.childExited(c, e) })
	return c
}

// findHanded reads the state that was handed over.
func (l *loop) findHanded(boot string) error {
	saved, err := l.up.handed.saved(boot, l.pidns)
	l.found = saved
	return err
}

// arrive is the first turn of an image that has taken over: it is written, and about to
// be carried out. From here on there is no way back.
func (l *loop) arrive() {
	h := l.up.handed
	if h == nil {
		return
	}
	l.up.handed = nil
	h.arrive()
	showName(h.Comm)
	l.publish() // before anybody asks whether it is ready
	l.s.resumeServers()
	l.reloadEdited(l.s.cfg.Digest)
}

// reloadEdited reloads where the configuration's file is another one than the one that was
// applied: signals were ignored for a moment.
func (l *loop) reloadEdited(digest string) {
	if l.state.Digest == digest || l.state.Stop != nil {
		return
	}
	l.log.Info("the configuration was edited meanwhile: reloaded, as a SIGHUP may have been lost", "running", l.state.Digest, "file", digest)
	l.queue(evReload{})
}

// lookAtConfig makes good a SIGHUP that was ignored for an execve which was not to be. Run waits for it.
func (l *loop) lookAtConfig() {
	defer l.readers.Done()
	if cfg, err := l.opts.Load(); err == nil { // a reload would be refused
		l.call(func() { l.reloadEdited(cfg.Digest) })
	}
}

// runtimeDir opens the runtime directory, or goes on with its lock.
func (s *Supervisor) runtimeDir() (*runtimeDir, error) {
	if h := s.opts.Self.Handed; h != nil {
		return h.runtimeDir(s.cfg.RuntimeDir)
	}
	return openRuntimeDir(s.cfg.RuntimeDir)
}

// notBegun ends a Run that has not come to its first turn. One that was to take over
// leaves everything as it is: the image before goes on with it.
func (s *Supervisor) notBegun(l *loop, err error) error {
	if s.opts.Self.Handed.Pending() {
		return err
	}
	s.finish()
	if l != nil {
		err = errors.Join(err, l.dir.close(false))
	}
	return err
}

// Rehearse is the pre-flight of an upgrade: all that this image would do to take over, on
// copies of what the running one has, up to where it would change something. It
// returns why it could not.
func (s *Supervisor) Rehearse() error {
	l, err := newLoop(s)
	if err != nil {
		return err
	}
	if err := errors.Join(s.serveControl(), s.serveHTTP()); err != nil {
		return err
	}
	l.ctx = context.Background()
	e, err := l.takeOver()
	if err != nil {
		return err
	}
	next, _ := transition(l.state, *e, proc.Now())
	_, err = encodeState(&next, l.held())
	return err
}
