package supervisor

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
)

// socketTable owns every socket, by key. Only the loop uses it.
type socketTable struct {
	log     *slog.Logger
	paths   *pathWatcher // tells when somebody touches the path of a UNIX socket
	harm    *harmWatcher // tells when somebody shuts a socket down
	open    map[string]*fdpass.Socket
	leaving map[string]*leaving // still open, on its way out, and not in open

	mended  map[string]proc.Instant // by key: when it was mended last
	mending map[string]mending      // by key: it is looked at again
	told    map[*fdpass.Socket]bool // that they cannot be mended
	repairs map[string]repairs      // by service
}

func newSocketTable(log *slog.Logger, paths *pathWatcher, harm *harmWatcher) *socketTable {
	return &socketTable{
		log: log, paths: paths, harm: harm, open: map[string]*fdpass.Socket{}, leaving: map[string]*leaving{},
		mended: map[string]proc.Instant{}, mending: map[string]mending{}, told: map[*fdpass.Socket]bool{},
		repairs: map[string]repairs{},
	}
}

// add takes ownership of newly bound sockets.
func (t *socketTable) add(bound map[string]*fdpass.Socket) {
	maps.Copy(t.open, bound)
	for _, s := range bound {
		if err := t.harm.add(s); err != nil {
			t.log.Error("not noticed if a program shuts it down", "socket", s.Addr().String(), "err", err)
		}
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
	return s.Addr().Path, isPath(s.Addr())
}

// isPath reports whether the address is a path.
func isPath(a fdpass.Addr) bool { return a.Path != "" && !a.Abstract() }

// known is a copy of the table for the preparation of a reload, which runs
// beside the loop, with those that could be kept although they are on their way
// out. The sockets are borrowed.
func (t *socketTable) known() map[string]*fdpass.Socket {
	known := maps.Clone(t.open)
	for key, l := range t.leaving {
		if known[key] == nil && !l.pathGone {
			known[key] = l.s
		}
	}
	return known
}

// descriptors lists the sockets of a generation in the order they are handed out.
func (t *socketTable) descriptors(g *Generation) ([]int, []uint64, error) {
	var fds []int
	var inodes []uint64
	for _, k := range g.keys() {
		t.back(k.Key)
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
// every holder).
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
}

func (t *socketTable) close(s *fdpass.Socket, why string) {
	// The path goes first: a client that still finds it would be reset.
	t.closed(s, why, t.removePath(s))
}

func (t *socketTable) removePath(s *fdpass.Socket) error {
	if path, ok := pathOf(s); ok {
		t.paths.remove(path)
	}
	return s.Unlink()
}

func (t *socketTable) closed(s *fdpass.Socket, why string, err error) {
	t.harm.remove(s)
	delete(t.told, s)
	if err := errors.Join(err, s.Close()); err != nil {
		t.log.Warn("socket closed", "socket", s.Addr().String(), "why", why, "err", err)
		return
	}
	t.log.Info("socket closed", "socket", s.Addr().String(), "why", why)
}

// held are the sockets, by key, that outlive this handoverd: the open ones, and of
// those on their way out the ones that may still come back.
func (t *socketTable) held() iter.Seq2[string, *fdpass.Socket] {
	return func(yield func(string, *fdpass.Socket) bool) {
		for key, s := range t.open {
			if !yield(key, s) {
				return
			}
		}
		for key, l := range t.leaving {
			if t.open[key] == nil && !l.pathGone && !yield(key, l.s) {
				return
			}
		}
	}
}

// closeAll is the end. Of those that outlive handoverd, by key, only the descriptors
// here are closed: paths stay, and who waits in a queue waits on.
func (t *socketTable) closeAll(outlives func(key string) bool) {
	for key := range t.leaving {
		t.closeLeaving(key, "stop")
	}
	for key, s := range t.open {
		delete(t.open, key)
		if outlives(key) {
			t.closed(s, "stop: it stays open for the next start", nil)
			continue
		}
		t.close(s, "stop")
	}
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
	for _, key := range s.Passed { // systemd holds them as well
		need[key] = true
	}
	keeps := s.Stop != nil && s.Stop.Keeps
	for _, svc := range s.Services {
		for _, g := range svc.Generations { // its own go with it
			for _, k := range g.ownKeys() {
				need[k.Key] = true
			}
		}
		if svc.Removed || svc.Stop == StopDraining && !keeps {
			continue
		}
		if !svc.closed() {
			add(svc.Spec)
		}
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
