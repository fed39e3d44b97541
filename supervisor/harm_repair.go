package supervisor

import (
	"slices"
	"time"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
)

// A program that holds a socket which was bound anew since serves nobody on it, and a
// reload to the spec that serves repairs that. It may fail, and a program that harms its
// socket in its init would be replaced for ever. So after a repair the service is left
// alone for mendPause, and after each that follows within steadyAfter for twice as long,
// up to repairMost. Clients wait in the queue of the new socket meanwhile.
const repairMost = time.Minute

// repairs is when a service was repaired last, and for how long it is left alone then.
type repairs struct {
	at    proc.Instant
	pause time.Duration
	later *time.Timer // it is looked at again
}

// repair has those services reloaded whose programs hold a socket that was bound anew.
func (l *loop) repair() {
	if l.state.Stop != nil {
		return
	}
	now := proc.Now()
	var services []string
	for _, name := range l.state.Order {
		if svc := l.state.Services[name]; svc.Upgrade == nil && !l.repairUnderWay(name) && l.outdated(svc) && l.repairDue(name, now) {
			services = append(services, name)
		}
	}
	if len(services) > 0 {
		l.queue(evReload{Services: services, Why: WhyRepair})
	}
}

// repairDue reports whether the service may be repaired now. Else it is looked at again
// when it may.
func (l *loop) repairDue(name string, now proc.Instant) bool {
	r := l.sockets.repairs[name]
	switch due := r.at.Add(r.pause); {
	case r.at == 0, now >= due.Add(steadyAfter):
		r.pause = mendPause
	case now >= due:
		r.pause = min(2*r.pause, repairMost)
	default:
		if r.later == nil {
			r.later = time.AfterFunc(due.Sub(now), func() { l.call(func() { l.repairLater(name) }) })
			l.sockets.repairs[name] = r
		}
		return false
	}
	r.at = now
	l.sockets.repairs[name] = r
	return true
}

func (l *loop) repairLater(name string) {
	r := l.sockets.repairs[name]
	r.later = nil
	l.sockets.repairs[name] = r
	l.repair()
}

// repairUnderWay reports whether a repair of the service was asked for and has no outcome yet.
func (l *loop) repairUnderWay(name string) bool {
	return slices.ContainsFunc(l.state.Jobs, func(j *Job) bool {
		r := j.result(name)
		return j.Why == WhyRepair && slices.Contains(j.Services, name) && (r == nil || r.Outcome == OutcomePending)
	})
}

// outdated reports whether what serves holds another socket than the one that is handed out now.
func (l *loop) outdated(svc *Service) bool {
	g := svc.Serving()
	if g == nil || g.Exited {
		return false
	}
	c := l.children[ref(svc, g)]
	if c == nil || c.outdated {
		return c != nil
	}
	for i, k := range g.keys() { // whose order c.inodes has
		s := l.sockets.open[k.Key]
		if s != nil && i < len(c.inodes) && c.inodes[i] != 0 && c.inodes[i] != s.Inode() {
			return true
		}
	}
	return false
}

// lacks reports whether a generation that an earlier handoverd has started does not hold one of
// its UNIX sockets, but the one that was bound there before: handoverd was killed before it
// had handed the new one out. What cannot be looked at is taken to hold what it was given.
func (c *child) lacks() bool {
	for i, a := range c.addrs {
		if !isPath(a) {
			continue
		}
		bound := fdpass.BoundTo(a.Path)
		if !slices.Contains(bound, c.inodes[i]) || len(bound) == 1 {
			continue
		}
		members, err := proc.MembersBefore(c.pid, c.token, c.bound())
		if err != nil {
			return false
		}
		var pids []int
		for _, m := range members {
			pids = append(pids, m.PID)
		}
		held, err := proc.Holds(pids, bound)
		if err == nil && len(held) > 0 && !held[c.inodes[i]] {
			return true
		}
	}
	return false
}
