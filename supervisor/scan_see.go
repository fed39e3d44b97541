package supervisor

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// see looks once at a generation's processes and says what that means, if it
// means anything new.
func (s *scanner) see(w *watch) (e evSight, news bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := s.spent()
	if !w.release && !w.wide {
		// Most programs accept in their main process, on all they were given.
		e := s.seeThese(w, []int{w.leader})
		w.next = time.Now().Add(w.pause(s.spent()-began, halfShare))
		if e.Polls && len(e.Idle) == 0 {
			return e, true
		}
		if time.Now().Before(w.nextWide) {
			return e, false
		}
		began = s.spent()
	}
	members, err := s.members(w)
	if err == nil {
		e = s.seeThese(w, members)
	} else {
		e = w.unseen(err)
	}
	w.wideLooks++
	w.wide = w.wide || e.Polls
	if w.release || w.wide {
		w.next = time.Now().Add(w.pause(s.spent()-began, lookShare))
	} else {
		w.nextWide = time.Now().Add(w.pause(s.spent()-began, halfShare))
	}
	return e, true
}

// spent is what looking has cost: the processor time of this thread, and all the
// time in which a helper ran. Time in which this thread waited for a processor
// counts for nothing: on a busy machine, where a server is seldom seen to wait,
// the pauses would become seconds.
func (s *scanner) spent() time.Duration { return proc.ThreadTime() + s.helped }

// seeThese looks at some processes of the generation.
func (s *scanner) seeThese(w *watch, pids []int) evSight {
	e := evSight{at: w.at}
	inodes := w.inodes()
	s.looker.Deep = w.deepAt != 0 && proc.Now() >= w.deepAt
	sight, err := s.looker.Look(pids, inodes)
	if err != nil {
		return w.unseen(err)
	}
	if len(sight.Blind) > 0 && !w.sameUser && os.Geteuid() == 0 {
		s.lookAs(w, &sight)
	}
	w.busy = len(sight.Busy) > 0
	for _, sock := range w.sockets {
		switch {
		case sight.Waiting(sock.inode):
			e.Polls = true
		case sight.Stale[sock.inode]:
			e.Stale = true
		}
		if !sight.Waiting(sock.inode) {
			e.Idle = append(e.Idle, sock.name)
		}
	}
	if !e.Polls {
		e.Blind = len(sight.Blind) > 0
	}
	if w.release {
		// What it does not hold it cannot accept on; what it holds and was not
		// seen to wait on it may wait on in a moment, or out of sight.
		if !e.Polls && len(sight.Held) > 0 && (len(sight.Busy) > 0 || len(sight.Skipped) > 0) {
			e.Polls = true
		}
		return e
	}
	e = w.between(e, sight)
	if !e.Blind {
		e.Fault = w.fault(pids, e)
	}
	return e
}

// unseen is a look that could not be made. For want of descriptors or memory it says
// nothing: who is to be adopted is not yet, and who is to let go has not yet.
// Otherwise nobody can look here at all.
func (w *watch) unseen(err error) evSight {
	if proc.Starved(err) {
		return evSight{at: w.at, Polls: w.release, Fault: fmt.Sprintf("its processes cannot be looked at now: %v", err)}
	}
	return evSight{at: w.at, Blind: true}
}

// between keeps what was seen before when a look found the processes at work. A
// thread that runs shows no wait, and those of a server under load mostly run: such
// a look does not say that nobody accepts any more.
func (w *watch) between(e evSight, sight proc.Sight) evSight {
	if !e.Polls && w.last.Polls && len(sight.Held) > 0 && len(sight.Busy) > 0 {
		e.Polls, e.Blind, e.Idle = true, false, w.last.Idle
	}
	return e
}

// members are all processes of the generation. Strays, which are found by
// reading every environment, are looked for less often while it starts. The error
// says that they cannot be found now.
func (s *scanner) members(w *watch) ([]int, error) {
	var ps []proc.Process
	var err error
	if !w.release && w.wideLooks%memberEvery != memberEvery-1 {
		ps, err = proc.Descendants(w.leader)
	} else {
		ps, err = proc.Members(w.leader, w.token)
	}
	switch {
	case proc.Starved(err):
		return nil, err
	case err != nil:
		return []int{w.leader}, nil
	}
	pids := make([]int, 0, len(ps))
	for _, p := range ps {
		pids = append(pids, p.PID)
	}
	return pids, nil
}

// lookAs has a helper of the generation's user look where handoverd may not.
func (s *scanner) lookAs(w *watch, sight *proc.Sight) {
	h := proc.Helper{
		Args: []string{LookHelperName}, UID: w.uid, GID: w.gid, Groups: w.groups,
		Reaper: s.reaper, Deep: s.looker.Deep,
	}
	began := time.Now()
	defer func() { s.helped += time.Since(began) }()
	asked := sight.Blind
	if more, err := h.Look(asked, w.inodes()); err == nil {
		sight.Merge(more, asked)
	}
}

// LookHelperName is argv[0] of handoverd when it is run to look at the processes
// of another user: main then calls proc.LookHelper and nothing else.
const LookHelperName = "handoverd-look"

// fault says what speaks against the adoption of the sockets, or "".
func (w *watch) fault(pids []int, e evSight) string {
	others, err := proc.Listening(pids)
	if proc.Starved(err) {
		return fmt.Sprintf("its processes cannot be looked at now: %v", err)
	}
	if err != nil && len(others) == 0 {
		return ""
	}
	ours := map[uint64]bool{}
	for _, s := range w.sockets {
		ours[s.inode] = true
	}
	for _, inode := range w.own {
		ours[inode] = true
	}
	for _, l := range others {
		if ours[l.Inode] {
			continue
		}
		for _, s := range w.sockets {
			if s.port != 0 && s.port == l.Addr.Port() {
				return fmt.Sprintf("process %d listens on %v itself instead of on the socket %q it was given", l.PID, l.Addr, s.name)
			}
		}
		if !e.Polls {
			return fmt.Sprintf("process %d listens on %v and on none of the sockets it was given", l.PID, l.Addr)
		}
	}
	if !e.Polls {
		return w.spins()
	}
	if w.adoptAll && len(e.Idle) > 0 {
		return "nobody polls " + strings.Join(e.Idle, ", ") + ` (adopt = "all")`
	}
	return ""
}

// spins recognises a program that calls accept in a loop on a non-blocking
// socket as if it were a blocking one: it waits nowhere. On a busy machine it
// gets less than the core that it would use, so what counts is that it is
// always ready to run.
func (w *watch) spins() string {
	lived := time.Since(w.began)
	runnable, err := proc.Runnable(w.leader)
	if err != nil || lived < time.Second || runnable < lived*8/10 {
		return ""
	}
	return "it uses a whole core and waits on none of its sockets, as a blocking accept loop does on a " +
		"non-blocking socket; remedy: nonblocking = false for the socket"
}

// watches derives from the state which generations are to be looked at.
func (l *loop) watches() []watchItem {
	var out []watchItem
	for _, name := range l.state.Order {
		for _, g := range l.state.Services[name].Generations {
			if c := l.children[at{name, g.N}]; c != nil && g.watched() {
				out = append(out, l.watchItem(c, g))
			}
		}
	}
	return out
}

// watched reports whether what the generation's processes do matters now.
func (g *Generation) watched() bool {
	if g.PID == 0 || g.Exited || !g.Spec.shares() {
		return false
	}
	switch g.Phase {
	case PhaseStarting:
		// A library child polls nothing before it is told to accept.
		return !g.Hello || g.AcceptSent
	case PhaseDraining:
		return g.Release == ReleasePending
	}
	return false
}

func (l *loop) watchItem(c *child, g *Generation) watchItem {
	w := watchItem{
		at: c.at, leader: c.pid, token: c.token, release: g.Phase == PhaseDraining,
		ready:    g.ReadyBy != "",
		adoptAll: g.Spec.Config.Adopt == "all", sameUser: g.Spec.UID == nil,
	}
	if w.release {
		w.deepAt = g.ReleaseBy.Add(-deepMargin)
	}
	if g.Spec.UID != nil {
		w.uid, w.gid, w.groups = *g.Spec.UID, *g.Spec.GID, g.Spec.Groups
	}
	keys := g.keys()
	for i, inode := range c.inodes {
		if keys[i].Own { // says nothing of whether it takes its share of the clients
			w.own = append(w.own, inode)
			continue
		}
		s := watchedSocket{name: c.names[i], inode: inode}
		if sock := l.sockets.open[keys[i].Key]; sock != nil && isInet(sock.Addr().Kind) {
			s.addr = sock.Addr().String()
			if !sock.Addr().Kind.Datagram() {
				s.port = sock.Addr().Port
			}
		}
		w.sockets = append(w.sockets, s)
	}
	return w
}
