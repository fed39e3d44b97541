package supervisor

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
)

// How a socket leaves that nobody is given any more: when its queue is empty,
// looked at each lingerStep, or after linger.
const (
	linger     = time.Second
	lingerStep = 20 * time.Millisecond
)

// socketTable owns every socket, by key. Only the loop uses it.
type socketTable struct {
	log     *slog.Logger
	paths   *pathWatcher // tells when somebody touches the path of a UNIX socket
	open    map[string]*fdpass.Socket
	leaving map[string]leaving // still open, on its way out
}

type leaving struct {
	until, next proc.Instant
	emptied     bool // somebody may still accept what is in its queue
}

func newSocketTable(log *slog.Logger, paths *pathWatcher) *socketTable {
	return &socketTable{log: log, paths: paths, open: map[string]*fdpass.Socket{}, leaving: map[string]leaving{}}
}

// add takes ownership of newly bound sockets.
func (t *socketTable) add(bound map[string]*fdpass.Socket) {
	maps.Copy(t.open, bound)
	for _, s := range bound {
		path, ok := pathOf(s)
		if !ok {
			continue
		}
		if err := t.paths.add(path); err != nil {
			t.log.Error("not noticed if a program removes the path", "socket", s.Addr().String(), "err", err)
		}
	}
}

// pathOf is where a UNIX socket is found, if it has a path.
func pathOf(s *fdpass.Socket) (path string, ok bool) {
	path = s.Addr().Path
	return path, path != "" && !s.Addr().Abstract()
}

// restore brings the same socket back to those of the paths that a program has
// removed or replaced: Node, gunicorn and others do so when they stop listening.
func (t *socketTable) restore(paths []string) {
	for key, s := range t.open {
		path, ok := pathOf(s)
		if _, goes := t.leaving[key]; goes || !ok || !slices.Contains(paths, path) {
			continue
		}
		before, _ := os.Lstat(path)
		err := s.Restore()
		after, _ := os.Lstat(path)
		switch {
		case err != nil:
			t.log.Error("path not brought back", "socket", s.Addr().String(), "err", err)
		case before == nil || after == nil || !os.SameFile(before, after):
			t.log.Warn("a program has removed or replaced the path: brought back", "socket", s.Addr().String())
		}
	}
}

// known is a copy of the table for the preparation of a reload, which runs
// beside the loop. The sockets are borrowed.
func (t *socketTable) known() map[string]*fdpass.Socket { return maps.Clone(t.open) }

// descriptors lists the sockets of a generation in the order they are handed out.
func (t *socketTable) descriptors(g *Generation) ([]int, []uint64, error) {
	var fds []int
	var inodes []uint64
	for _, k := range g.keys() {
		s := t.open[k.Key]
		if s == nil {
			return nil, nil, fmt.Errorf("socket %q (%s) is not open", k.Name, k.Key)
		}
		fds, inodes = append(fds, s.FD()), append(inodes, s.Inode())
	}
	return fds, inodes, nil
}

// apply gives the kept sockets the options of a spec that has just been
// committed, the backlog again in any case (a child's listen(2) changes it for
// every holder), and sets right what a child has changed.
func (t *socketTable) apply(spec *Spec) {
	for i, k := range spec.Keys {
		s := t.open[k.Key]
		if s == nil {
			continue
		}
		if kept, _ := s.Options().Diff(spec.Config.Sockets[i].Options); len(kept) > 0 {
			if err := s.Apply(spec.Config.Sockets[i].Options); err != nil {
				t.log.Error("socket options not applied", "socket", k.Name, "err", err)
			}
		} else if err := s.Relisten(); err != nil {
			t.log.Error("backlog not set", "socket", k.Name, "err", err)
		}
	}
	t.checkFlags()
}

// checkFlags sets O_NONBLOCK again where a child has cleared it for everybody.
func (t *socketTable) checkFlags() {
	for _, s := range t.open {
		if on := s.Options().Nonblocking; on != nil && !*on {
			continue
		}
		if nb, err := s.Nonblocking(); err != nil || nb {
			continue
		}
		t.log.Warn("O_NONBLOCK was cleared by a child, set again", "socket", s.Addr().String(), "err", s.SetNonblocking())
	}
}

// keep begins the leave of every socket that is not needed, and ends it for one
// that is needed again.
// emptied are those of which an old generation may still empty the queue: where
// none does a wait would only gather clients for the reset.
func (t *socketTable) keep(needed, emptied map[string]bool, now proc.Instant) {
	for key := range t.open {
		l, goes := t.leaving[key]
		switch {
		case needed[key] && goes:
			delete(t.leaving, key)
		case !needed[key] && !goes:
			t.leaving[key] = leaving{until: now.Add(linger), next: now, emptied: emptied[key]}
		case goes && l.emptied && !emptied[key]:
			t.leaving[key] = leaving{next: now}
		}
	}
	t.leave(now)
}

// leave closes the sockets on their way out whose time has come.
func (t *socketTable) leave(now proc.Instant) {
	for key, l := range t.leaving {
		if now < l.next {
			continue
		}
		s := t.open[key]
		if l.emptied && now < l.until && queued(s) > 0 {
			l.next = min(l.until, now.Add(lingerStep))
			t.leaving[key] = l
			continue
		}
		delete(t.leaving, key)
		delete(t.open, key)
		t.close(s, "no longer handed out")
	}
}

func (t *socketTable) close(s *fdpass.Socket, why string) {
	if path, ok := pathOf(s); ok {
		t.paths.remove(path)
	}
	// The path goes first: a client that still finds it would be reset.
	if err := errors.Join(s.Unlink(), s.Close()); err != nil {
		t.log.Warn("socket closed", "socket", s.Addr().String(), "why", why, "err", err)
		return
	}
	t.log.Info("socket closed", "socket", s.Addr().String(), "why", why)
}

// closeAll is the end.
func (t *socketTable) closeAll() {
	for key, s := range t.open {
		delete(t.open, key)
		t.close(s, "stop")
	}
}

// next is when leave has to be called again, or 0.
func (t *socketTable) next() proc.Instant {
	var next proc.Instant
	for _, l := range t.leaving {
		if next == 0 || l.next < next {
			next = l.next
		}
	}
	return next
}

// queued is how many connections wait in the accept queue. Where that is not
// known, as for UNIX sockets, it is taken as 1, so that they are given the whole
// linger.
func queued(s *fdpass.Socket) int {
	if s.Addr().Kind.Datagram() {
		return 0
	}
	n, err := acceptQueue(s.FD())
	if err != nil {
		return 1
	}
	return n
}

// neededSockets are those that some generation is or will be given. What an old
// generation has is not among them: a removed socket leaves at the commit.
func neededSockets(s *State) map[string]bool {
	need := map[string]bool{}
	add := func(spec *Spec) {
		if spec != nil {
			for _, k := range sharedKeys(spec) {
				need[k.Key] = true
			}
		}
	}
	for _, svc := range s.Services {
		for _, g := range svc.Generations { // its own go with it
			for _, k := range g.ownKeys() {
				need[k.Key] = true
			}
		}
		if svc.Removed || svc.Stop == StopDraining {
			continue
		}
		add(svc.Spec)
		if svc.Upgrade != nil {
			add(svc.Upgrade.Spec)
		}
		for _, g := range svc.Generations {
			if slices.Contains([]Phase{PhaseStarting, PhaseBaking, PhaseServing}, g.Phase) {
				add(g.Spec)
			}
		}
	}
	return need
}

// emptiedSockets are those that a retired generation has not been seen to let go.
func emptiedSockets(s *State) map[string]bool {
	emptied := map[string]bool{}
	for _, svc := range s.Services {
		for _, g := range svc.Generations {
			if g.Phase != PhaseDraining || g.Release == ReleaseYes {
				continue
			}
			for _, k := range sharedKeys(g.Spec) {
				emptied[k.Key] = true
			}
		}
	}
	return emptied
}
