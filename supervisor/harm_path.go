package supervisor

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
)

// restorePaths brings the same socket back to those of the paths that a program has
// removed or replaced: Node, gunicorn and others do so when they stop listening.
func (l *loop) restorePaths(paths []string) {
	for key, s := range l.sockets.open {
		if path, ok := pathOf(s); ok && slices.Contains(paths, path) {
			l.restorePath(key, s)
		}
	}
}

// restorePath brings the socket back to its path, or binds a new one there where it
// cannot be. A directory that was renamed or removed took the path along and the hard
// link with it: the path is there again when its directory is.
func (l *loop) restorePath(key string, s *fdpass.Socket) {
	path, ok := pathOf(s)
	if !ok {
		return
	}
	missing := !s.AtPath()
	if missing && l.justMended(key) {
		return
	}
	watched := l.sockets.paths.add(path) // the directory that is there now
	err := s.Restore()
	switch {
	case errors.Is(err, fdpass.ErrNoLink):
		l.rebind(key, s, "a program has removed or replaced the path and what would bring it back")
	case err != nil:
		l.harmed(key, s, "a program has removed or replaced the path, and it could not be brought back", err)
		l.mendIn(key, mendAgain)
	case watched != nil:
		l.harmed(key, s, "it is not noticed any more if a program removes the path", watched)
	case missing:
		l.harmed(key, s, "a program has removed or replaced the path: brought back", nil)
	}
}

// rebind puts a new socket in the place of one that cannot be mended, and has a reload
// hand it to those who have the old one: no holder of that accepts from the new one.
func (l *loop) rebind(key string, s *fdpass.Socket, what string) {
	if isInet(s.Addr().Kind) { // datagrams: its port is taken as long as somebody holds it
		l.harmed(key, s, what+": it stays so until it is removed in one reload and added in the next", fdpass.ErrShutDown)
		return
	}
	fresh, err := s.Rebind()
	if err != nil {
		l.harmed(key, s, what+", and a new one could not be bound", err)
		if !s.Addr().Abstract() { // whose name is taken as long as somebody holds it
			l.mendIn(key, mendAgain)
		}
		return
	}
	l.harmed(key, s, what+": a new one was bound, and a reload hands it out", nil)
	l.sockets.harm.remove(s)
	_ = s.Close()
	delete(l.sources, key)
	delete(l.sockets.told, s)
	delete(l.sockets.open, key)
	l.sockets.add(map[string]*fdpass.Socket{key: fresh})
	l.repair()
}

// replaceDead binds a new socket in the place of fd, a UNIX socket that a program has shut down while no
// handoverd ran, and takes fd; nil: there is no way back for it. Who holds the old one is reloaded by repair.
func (l *loop) replaceDead(fd int, h heldSocket) *fdpass.Socket {
	if !isPath(h.Addr) || l.up.dry {
		return nil
	}
	fresh, err := fdpass.Replace(fd, h.Addr, h.Options)
	if err != nil {
		l.log.Error("a program has shut the socket down, which is for good, and a new one could not be bound", "socket", h.Addr.String(), "err", err)
		return nil
	}
	l.log.Warn("a program has shut the socket down, which is for good: a new one was bound, and a reload hands it out", "socket", h.Addr.String())
	_ = unix.Close(fd)
	return fresh
}
