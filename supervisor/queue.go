package supervisor

import (
	"time"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
)

// A socket that nobody is given any more leaves in three steps, so that no connection
// that the kernel has completed is reset. New connections stop coming: a filter on a TCP
// socket drops their SYNs, whose senders try again, and the path of a UNIX socket is
// removed. Then the old generation, which was told nothing yet, accepts what is in the
// queue. When it has been empty for emptyFor, or after emptyLimit, the socket is closed
// here, and the old generation is told to drain. Who comes meanwhile is refused in the
// end: at his next SYN, once the old generation has closed its listener.
//
// An abstract UNIX socket has neither path nor filter: clients that come last are reset.
const (
	emptyFor  = 200 * time.Millisecond
	emptyStep = 20 * time.Millisecond
)

// leaving is a socket on its way out.
type leaving struct {
	s        *fdpass.Socket
	next     proc.Instant // it is looked at again
	until    proc.Instant
	since    proc.Instant // its queue has been empty since then; 0: it was not
	filtered bool
	pathGone bool // it cannot be kept any more
}

// keep begins the leave of every socket that is not needed, and ends it for one
// that is needed again.
// emptied are those of which an old generation may still empty the queue: where
// none does a wait would only gather clients for the reset.
func (t *socketTable) keep(needed, emptied map[string]bool, now proc.Instant) {
	for key := range needed {
		t.back(key)
	}
	for key, s := range t.open {
		if needed[key] {
			continue
		}
		delete(t.open, key)
		l := &leaving{s: s, next: now, until: now.Add(emptyLimit)}
		t.leaving[key] = l
		if emptied[key] && !s.Addr().Kind.Datagram() {
			t.seal(l)
		} else {
			l.until = now
		}
	}
	for key, l := range t.leaving {
		if !emptied[key] { // who accepted has gone meanwhile
			l.next, l.until = now, now
		}
	}
	t.leave(now)
}

// seal has no new connections come.
func (t *socketTable) seal(l *leaving) {
	name := l.s.Addr().String()
	if _, ok := pathOf(l.s); ok {
		l.pathGone = true
		if err := t.removePath(l.s); err != nil {
			t.log.Warn("path not removed: its last clients may be reset", "socket", name, "err", err)
		}
		return
	}
	if !isInet(l.s.Addr().Kind) {
		return
	}
	if err := dropConnections(l.s.FD()); err != nil {
		t.log.Warn("new connections are not held off: its last clients may be reset", "socket", name, "err", err)
		return
	}
	l.filtered = true
}

// back brings a socket back that is on its way out.
func (t *socketTable) back(key string) {
	l := t.leaving[key]
	if l == nil || l.pathGone || t.open[key] != nil {
		return
	}
	delete(t.leaving, key)
	t.open[key] = l.s
	if !l.filtered {
		return
	}
	if err := takeConnections(l.s.FD()); err != nil {
		t.log.Error("it takes no new connections: its filter was not removed", "socket", l.s.Addr().String(), "err", err)
	}
}

// leave closes the sockets on their way out whose time has come.
func (t *socketTable) leave(now proc.Instant) {
	coming := t.halfOpen(now)
	for key, l := range t.leaving {
		if now < l.next {
			continue
		}
		if now < l.until && !l.isEmpty(now, coming[l.s.Addr().Port]) {
			l.next = min(l.until, now.Add(emptyStep))
			continue
		}
		t.closeLeaving(key, "no longer handed out")
	}
}

func (t *socketTable) closeLeaving(key, why string) {
	l := t.leaving[key]
	delete(t.leaving, key)
	if l.pathGone {
		t.closed(l.s, why, nil)
		return
	}
	t.close(l.s, why)
}

// isEmpty reports whether nobody has waited in its queue for emptyFor, and no
// handshake that would end there, of which coming are under way, was.
func (l *leaving) isEmpty(now proc.Instant, coming int) bool {
	if queued(l.s) > 0 || coming > 0 {
		l.since = 0
		return false
	}
	if l.since == 0 {
		l.since = now
	}
	return now >= l.since.Add(emptyFor)
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
// known it is taken as 1, so that they are given all the time there is.
func queued(s *fdpass.Socket) int {
	if s.Addr().Kind.Datagram() {
		return 0
	}
	n, err := 0, error(nil)
	if isInet(s.Addr().Kind) {
		n, err = acceptQueue(s.FD())
	} else {
		n, err = proc.UnixQueue(s.Inode())
	}
	if err != nil {
		return 1
	}
	return n
}

// halfOpen is how many handshakes are under way with the sockets that are to be
// looked at now, by port; none where that cannot be known.
func (t *socketTable) halfOpen(now proc.Instant) map[uint16]int {
	var ports []uint16
	for _, l := range t.leaving {
		if a := l.s.Addr(); now >= l.next && now < l.until && isInet(a.Kind) && !a.Kind.Datagram() {
			ports = append(ports, a.Port)
		}
	}
	if len(ports) == 0 {
		return nil
	}
	n, err := proc.HalfOpen(ports)
	if err != nil {
		return nil
	}
	return n
}

// leftSockets tells the state which of the sockets that it waits for are gone.
func (l *loop) leftSockets() {
	var left []string
	for _, svc := range l.state.Services {
		for _, g := range svc.Generations {
			for _, key := range g.Leaving {
				if l.sockets.open[key] == nil && l.sockets.leaving[key] == nil {
					left = append(left, key)
				}
			}
		}
	}
	if len(left) > 0 {
		l.queue(evLeft{left})
	}
}
