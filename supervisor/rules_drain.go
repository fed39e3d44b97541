package supervisor

import (
	"slices"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// exclusive is why the old generation drains before the new one is spawned.
const exclusive = "exclusive"

// emptyLimit is how long a generation may take to empty the queue of a socket that
// leaves. Clients that come meanwhile wait, and are refused then.
const emptyLimit = 2 * time.Second

// grace is the time between a generation's SIGTERM and SIGKILL: a stop at short notice has less.
func (svc *Service) grace(g *Generation) time.Duration {
	grace := g.Spec.Config.Retire.KillGrace
	if svc.Budget != nil {
		return scaled(grace, svc.Budget.Scale)
	}
	return grace
}

// before says whether a draining generation has something to do before it is told:
// to accept what is in the queues of sockets that leave with it, since nobody else
// will. Where it is held it has to be silent afterwards as well.
func (m *machine) before(svc *Service, g *Generation) bool {
	needed := neededSockets(m.s)
	for _, k := range sharedKeys(g.Spec) {
		if !needed[k.Key] && !slices.Contains(g.Leaving, k.Key) {
			g.Leaving = append(g.Leaving, k.Key)
		}
	}
	if len(g.Leaving) == 0 {
		return false
	}
	g.Untold, g.Held = true, g.DrainWhy == "stop" && svc.hold() > 0
	g.EmptyBy = max(m.now, min(m.now.Add(emptyLimit), svc.lastTold(g)))
	return true
}

// leavingNames are the names of the sockets that leave with a generation, as the configuration has them.
func leavingNames(g *Generation) []string {
	var names []string
	for _, k := range sharedKeys(g.Spec) {
		if slices.Contains(g.Leaving, k.Key) {
			names = append(names, k.Name)
		}
	}
	return names
}

// lastTold is when a generation is told that it drains, whatever it has to do before.
func (svc *Service) lastTold(g *Generation) proc.Instant {
	return g.KillAt.Add(-svc.grace(g))
}

// untold tells a generation as soon as what stands before that is done.
func (m *machine) untold(svc *Service, g *Generation) bool {
	switch {
	case len(g.Leaving) > 0 && !m.due(g.EmptyBy):
		return false
	case len(g.Leaving) > 0:
		m.note(svc, g, "warn", "the queue of %v was not seen empty: connections in it may be reset", leavingNames(g))
		g.Leaving, g.EmptyBy = nil, 0
	case g.Held && m.now < svc.lastTold(g):
		return false
	case g.Held:
		g.Held = false
		m.force(svc, g)
	default:
		m.tell(svc, g)
	}
	return true
}

// force notes that a generation is told though its connections are not silent.
func (m *machine) force(svc *Service, g *Generation) {
	g.Forced = true
	m.note(svc, g, "warn", "hold: its connections were not silent for %v: it drains all the same", svc.hold())
}

// left: sockets that leave have been closed.
func (m *machine) left(keys []string) {
	for _, name := range m.s.Order {
		for _, g := range m.s.Services[name].Generations {
			g.Leaving = slices.DeleteFunc(g.Leaving, func(k string) bool { return slices.Contains(keys, k) })
			if len(g.Leaving) == 0 {
				g.Leaving, g.EmptyBy = nil, 0
			}
		}
	}
}

// quiet: every connection of a service that is held is silent.
func (m *machine) quiet(service string) {
	svc := m.s.Services[service]
	if svc == nil {
		return
	}
	if svc.Stop == StopHolding && svc.Budget != nil {
		svc.Budget.Quiet = true
	}
	for _, g := range svc.Generations {
		if g.Untold && len(g.Leaving) == 0 {
			g.Held = false
		}
	}
}

// open counts the connections that a generation had at the last look before it
// exited while it drained: they were cut, or closed in the last moment, and nothing
// else tells. One that ended by itself, with status 0, knew what it had: to say it is
// enough. One that a signal has ended, or that failed, has cut them.
func (m *machine) open(svc *Service, g *Generation, status uint32) {
	if g.Open <= 0 || g.DrainBegan == 0 {
		return
	}
	svc.OpenAtExit += g.Open
	level := "warn"
	if status == 0 {
		level = "info"
	}
	m.note(svc, g, level, "connections open at its exit: %d", g.Open)
}

// old counts what an exclusive start has to wait for: all of the service that can end.
func (svc *Service) old() int {
	n := 0
	for _, g := range svc.Generations {
		if !g.Stuck {
			n++
		}
	}
	return n
}

// exclusively reports whether no two generations of the service may live beside
// each other.
func (svc *Service) exclusively() bool {
	is := func(s *Spec) bool { return s != nil && s.Config.Handoff == exclusive }
	return is(svc.Spec) || svc.Upgrade != nil && is(svc.Upgrade.Spec) ||
		slices.ContainsFunc(svc.Generations, func(g *Generation) bool { return is(g.Spec) })
}

// drainFirst drains the old generation before a new one is spawned. It reports
// whether the new one has to wait, and whether that is new.
func (m *machine) drainFirst(svc *Service) (waits, news bool) {
	u := svc.Upgrade
	if !svc.exclusively() || svc.old() == 0 {
		return false, false
	}
	if g := svc.coming(); g != nil { // it serves nothing yet, and is replaced
		g.Reason = "replaced by a reload before it served"
		m.kill(svc, g, g.Reason)
		// Nothing else is on its way to serve: the upgrade may not be skipped any more.
		u.Drained, news = true, true
	}
	if g := svc.Serving(); g != nil {
		u.Drained = true
		m.drain(svc, g, exclusive, m.now.Add(g.Spec.Config.Retire.ParentShutdown))
		news = true
	}
	return true, m.wait(svc, true, `waits for the end of the old generation (handoff = "exclusive")`) || news
}
