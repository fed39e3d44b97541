package supervisor

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
)

// What a program can do to a socket that it was given, for every holder of it, and what
// is done about it:
//
//	shutdown(2), connect(2) with AF_UNSPEC   TCP: it listens again, with its queue lost;
//	                                         UNIX: it is dead for good, a new one is bound
//	                                         and a reload hands it out
//	the path of a UNIX socket is gone        the same socket is put back (harm_path.go)
//	O_NONBLOCK cleared                       set again; nothing tells of it, so it is
//	                                         looked at when a generation changes its phase
//
// mendPause is how long a socket is left alone after it was mended: a program that
// harms it in a loop does not make handoverd one. mendAgain is after how long it is
// tried again where it could not be: for want of descriptors, space, or a directory.
const (
	mendPause = 100 * time.Millisecond
	mendAgain = time.Second
)

// followHarm has sockets mended that a program has shut down. Run waits for it.
func (l *loop) followHarm() {
	defer l.readers.Done()
	for {
		harmed, err := l.sockets.harm.wait()
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				l.log.Error("not noticed any more if a program shuts a socket down", "err", err)
			}
			return
		}
		l.call(func() {
			for _, s := range harmed {
				l.mend(s)
			}
		})
	}
}

// keyOf finds an open socket in the table.
func (t *socketTable) keyOf(s *fdpass.Socket) (string, bool) {
	for key, other := range t.open {
		if other == s {
			return key, true
		}
	}
	return "", false
}

// mend has a socket listen again that does not.
func (l *loop) mend(s *fdpass.Socket) {
	key, open := l.sockets.keyOf(s)
	if !open {
		return // on its way out, or replaced
	}
	if ok, err := s.Listening(); ok || err != nil {
		return
	}
	if l.justMended(key) {
		return
	}
	err := s.Relisten()
	switch {
	case err == nil && s.Addr().Kind.Datagram():
		l.harmed(key, s, "a program has connected the socket, which then takes from one peer alone: undone", nil)
	case err == nil:
		l.harmed(key, s, "a program has shut the socket down or disconnected it: it listens again, who was in its queue is lost", nil)
	case errors.Is(err, fdpass.ErrShutDown):
		l.rebind(key, s, "a program has shut the socket down, which is for good")
	default:
		l.harmed(key, s, "a program has shut the socket down or disconnected it, and it does not listen again", err)
		l.mendIn(key, mendAgain)
	}
}

// justMended reports whether the socket was mended a moment ago. Then it is looked at
// after that; else it is taken to be mended now.
func (l *loop) justMended(key string) bool {
	now := proc.Now()
	if wait := l.sockets.mended[key].Add(mendPause); now < wait {
		l.mendIn(key, wait.Sub(now))
		return true
	}
	l.sockets.mended[key] = now
	return false
}

// mendIn has a socket looked at after a while, or earlier if that was asked for.
func (l *loop) mendIn(key string, after time.Duration) {
	due, m := proc.Now().Add(after), l.sockets.mending[key]
	if m.timer != nil && m.due <= due {
		return
	}
	if m.timer != nil {
		m.timer.Stop() // one that runs already looks once more
	}
	l.sockets.mending[key] = mending{due, time.AfterFunc(after, func() { l.call(func() { l.mendLater(key) }) })}
}

// mending is when a socket is looked at again.
type mending struct {
	due   proc.Instant
	timer *time.Timer
}

func (l *loop) mendLater(key string) {
	delete(l.sockets.mending, key)
	if s := l.sockets.open[key]; s != nil {
		l.mend(s)
	}
	if s := l.sockets.open[key]; s != nil {
		l.restorePath(key, s)
	}
}

// rebindPathless does so for the sockets that were taken back without a path: it was removed while no handoverd ran, or
// by a stop that has been called off. It waits for the turn that says who serves.
func (l *loop) rebindPathless() {
	keys := l.pathless
	l.pathless = nil
	needed := neededSockets(&l.state)
	for _, key := range keys {
		if s := l.sockets.open[key]; s != nil && needed[key] {
			l.rebind(key, s, "the path was removed while no handoverd ran, with what would bring it back")
		}
	}
}

// having are the living generations that were given the socket.
func (l *loop) having(key string) []at {
	var out []at
	for _, name := range l.state.Order {
		svc := l.state.Services[name]
		for _, g := range svc.Generations {
			if g.PID != 0 && !g.Exited && slices.ContainsFunc(g.keys(), func(k SocketKey) bool { return k.Key == key }) {
				out = append(out, ref(svc, g))
			}
		}
	}
	return out
}

// harmed tells what was done to a socket, and by whom, as far as that can be known: the
// kernel does not tell, so it is one of those who have the socket.
func (l *loop) harmed(key string, s *fdpass.Socket, text string, err error) {
	if err != nil {
		if l.sockets.told[s] {
			return // each look finds it so
		}
		l.sockets.told[s] = true
	} else {
		delete(l.sockets.told, s)
	}
	who := l.having(key)
	var names []string
	for _, a := range who {
		names = append(names, a.Service+" generation "+strconv.Itoa(a.Gen))
	}
	by := "nobody here has it"
	if len(names) > 0 {
		by = strings.Join(names, " or ")
	}
	attrs := []any{"socket", s.Addr().String(), "by", by}
	level := "warn"
	if err != nil {
		attrs, level = append(attrs, "err", err), "error"
		l.log.Error(text, attrs...)
	} else {
		l.log.Warn(text, attrs...)
	}
	e := Event{Kind: "note", Level: level, Text: s.Addr().String() + ": " + text + "; by " + by}
	if len(who) > 0 {
		e.Service = who[0].Service
	}
	if len(who) == 1 {
		e.Generation = who[0].Gen
	}
	l.s.hub.send(e)
}

// setRight sets right what a child has changed and nothing has told of.
func (l *loop) setRight() {
	for key, s := range l.sockets.open {
		l.mend(s)
		if l.sockets.open[key] == s && !s.AtPath() { // as nobody tells of a directory above it
			l.restorePath(key, s)
		}
		if on := s.Options().Nonblocking; on != nil && !*on || l.sockets.open[key] != s {
			continue
		}
		if nb, err := s.Nonblocking(); err != nil || nb {
			continue
		}
		l.harmed(key, s, "O_NONBLOCK was cleared by a program: set again", s.SetNonblocking())
	}
	l.repair()
}
