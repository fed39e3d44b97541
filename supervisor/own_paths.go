package supervisor

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
)

// addOwn adds to what was held the sockets of generations alone that the keeper was given
// and the state was not written with any more. They go with their generations.
func (s *savedState) addOwn(taken map[string]int) {
	if s.Held.Sockets == nil {
		s.Held.Sockets = map[string]heldSocket{}
	}
	for _, svc := range s.Services {
		for _, g := range svc.Generations {
			for i, k := range g.Spec.Keys {
				key := k.at(g.N)
				fd, kept := taken[keptSocket+key]
				_, held := s.Held.Sockets[key]
				if !k.Own || !kept || held {
					continue
				}
				c := &g.Spec.Config.Sockets[i]
				if ino, err := socketInode(fd); err == nil && isPath(c.Addr) {
					s.Held.Sockets[key] = heldSocket{Addr: c.in(g.N), Options: c.Options, Inode: ino}
				}
			}
		}
	}
}

// removeOwnPaths removes the paths of the generations that have just gone whose own
// sockets are not here: the handoverd that had bound them was killed before anybody else held
// them, or together with the keeper. Nobody binds at such a path again, which a next bind
// would clear.
func (l *loop) removeOwnPaths(old, next *State) {
	for _, name := range old.Order {
		svc := next.Services[name]
		for _, g := range old.Services[name].Generations {
			if svc == nil || svc.gen(g.N) == nil {
				l.removeOwnPathsOf(g)
			}
		}
	}
}

func (l *loop) removeOwnPathsOf(g *Generation) {
	for i, k := range g.Spec.Keys {
		key := k.at(g.N)
		if !k.Own || l.sockets.open[key] != nil || l.sockets.leaving[key] != nil {
			continue
		}
		l.removeStale(g.Spec.Config.Sockets[i].in(g.N))
	}
}

// removeHeldPaths removes the paths of what the state says was held that is not here: of
// what was a generation's alone and, where nothing is gone on with, of everything.
func (l *loop) removeHeldPaths(saved *savedState, fresh bool) {
	for key, h := range saved.Held.Sockets {
		if (fresh || isOwn(key)) && l.sockets.open[key] == nil {
			l.removeStale(h.Addr)
		}
	}
	if !fresh {
		return // those of its generations go with them
	}
	for _, svc := range saved.Services {
		for _, g := range svc.Generations {
			l.removeOwnPathsOf(g)
		}
	}
}

// isOwn reports whether a key is that of a generation's own socket, as SocketKey.at makes
// them. A path may look so as well; it is bound again, or nothing is behind it.
func isOwn(key string) bool {
	i := strings.LastIndexByte(key, '#')
	_, err := strconv.Atoi(key[i+1:])
	return i >= 0 && err == nil
}

// removeStale removes a path behind which nothing is. What somebody holds is looked at again for
// a while: a shim whose handoverd was killed ends when it sees that.
func (l *loop) removeStale(addr fdpass.Addr) { l.removeStaleBy(addr, proc.Now().Add(stuckAfter)) }

func (l *loop) removeStaleBy(addr fdpass.Addr, until proc.Instant) {
	switch removed, err := fdpass.RemoveStale(addr); {
	case errors.Is(err, unix.EADDRINUSE):
		if proc.Now() < until {
			time.AfterFunc(lookAgain, func() { l.call(func() { l.removeStaleBy(addr, until) }) }) // does not hang after the end
		}
	case err != nil:
		l.log.Warn("path of a socket that nobody holds not removed", "socket", addr.String(), "err", err)
	case removed:
		l.log.Info("path of a socket that nobody holds removed", "socket", addr.String())
	}
}
