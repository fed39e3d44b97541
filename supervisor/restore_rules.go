package supervisor

import (
	"slices"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// evRestored begins the life of a handoverd that goes on with the state of one
// that was killed. All of it is one event: what is gone is known before anything
// that has fallen due meanwhile is done.
type evRestored struct {
	// Gone are the generations without a living main process.
	Gone []at
	// Deaf are the living ones whose messages, of now and of before, are lost.
	Deaf []at
	// Passed are the keys of the sockets that a service manager has passed again.
	Passed []string
	// Whole: nothing was lost. It is the same process after an upgrade of handoverd
	// itself: all that the state says was carried out, and who asked is remembered.
	Whole bool
	// Fault is why the new image has gone back to this one; "" if it has not.
	Fault string
}

func (evRestored) isEvent() {}

// evUnheld: the process of an adopted generation has ended, and its number was surely its own until then.
type evUnheld struct {
	at
	Until proc.Instant
}

func (evUnheld) isEvent() {}

// statusUnknown is the wait status of a process that was nobody's child here: its
// end is seen, and how it ended is not. It is no status that wait(2) returns.
const statusUnknown = ^uint32(0)

// againAfter is how long a generation that had been signalled may still poll before
// it is signalled again: the signal may have been lost with the old handoverd, and
// a second one makes some programs quit at once.
const againAfter = time.Second

// lookAfter is how long after a restore a draining generation may at least still be
// seen to have let go: there is time for a look, a second signal and another look.
const lookAfter = 2 * againAfter

// restored takes the state up where it was left. Actions are carried out at least
// once: the state says that they were to be, and not whether they were.
func (m *machine) restored(e evRestored) {
	m.s.Passed = e.Passed
	m.s.Jobs = slices.DeleteFunc(m.s.Jobs, func(j *Job) bool { return j.forgotten(e.Whole) })
	if e.Whole {
		m.endUpgrade(e.Fault)
	} else {
		m.endUpgrade("handoverd was killed meanwhile")
	}
	if m.s.Stop != nil {
		m.unstop(e.Gone)
	}
	m.forgive()
	ended := slices.Clone(e.Gone) // meanwhile
	for _, a := range e.Gone {
		svc, g := m.find(a)
		switch {
		case g == nil:
		case g.Exited: // before
			ended = slices.DeleteFunc(ended, func(b at) bool { return a == b })
		case g.PID == 0: // the shim was not told to go, and has ended
			m.spawnFailed(svc, g, "handoverd was killed while it started this one")
		case g.Phase == PhaseKilling:
			m.exited(svc, g, statusUnknown)
			m.resume(svc, g) // who was at work on what else it has started is gone as well
		default:
			m.exited(svc, g, statusUnknown)
		}
	}
	for _, name := range m.s.Order {
		svc := m.s.Services[name]
		for _, g := range svc.Generations {
			if !slices.Contains(ended, ref(svc, g)) {
				g.Deaf = g.Deaf || slices.Contains(e.Deaf, ref(svc, g))
				if e.Whole {
					m.goOn(svc, g)
				} else {
					m.resume(svc, g)
				}
			}
		}
		if svc.Spec != nil && !svc.Removed && svc.Restart == nil && svc.Upgrade == nil &&
			svc.Serving() == nil && svc.coming() == nil {
			svc.Restart = &Restart{At: m.now, Failures: svc.Failures}
		}
	}
}

// forgotten reports whether a reload is not gone on with: who asked for it is gone, and nothing was begun for it. A
// repair nobody has asked for, and what it is to repair is still so: it is prepared anew.
func (j *Job) forgotten(whole bool) bool {
	switch {
	case j.Stage == JobRunning:
		return false
	case j.Why == WhyRepair:
		j.Stage = JobRemembered
		return false
	}
	return !whole || j.Stage != JobRemembered
}

// resume repeats what may not have been done for a generation.
func (m *machine) resume(svc *Service, g *Generation) {
	a := ref(svc, g)
	if g.Phase == PhaseBaking && g.BakeEnds == 0 && svc.Serving() != nil {
		// A stop had ended its bake, and its reload was told so: nobody waits for a commit.
		m.failed(svc, g, "the reload was refused: "+string(RefusedStopping))
		return
	}
	switch g.Phase {
	case PhaseStarting:
		if g.Hello && g.AcceptSent {
			m.do(acAccept{a})
		}
	case PhaseBaking, PhaseServing:
		if g.Hello {
			m.lateHello(svc, g)
		}
	case PhaseDraining:
		switch {
		case g.Untold, g.Exited:
		case g.Hello && !g.Answered && !g.Signalled && !g.Termed && g.Deaf: // nothing can be said to it
			m.read(svc, g)
		case g.Hello && !g.Answered && !g.Signalled && !g.Termed:
			m.message(svc, g, g.DrainWhy)
			if g.SignalAt != 0 {
				g.SignalAt = max(g.SignalAt, m.now.Add(g.Spec.Config.Retire.AnswerTimeout))
			}
		case g.Signalled && g.Release == ReleasePending:
			g.AgainAt = m.now.Add(againAfter)
		}
		if g.Release == ReleasePending { // it may have let go long ago, and nobody looked
			g.ReleaseBy = max(g.ReleaseBy, m.now.Add(lookAfter))
		}
	case PhaseEnding:
		m.do(acKill{a, sigTerm}) // SIGKILL follows at its KillAt
	case PhaseKilling:
		g.Killed = m.now
		m.do(acKill{a, sigKill})
	}
}

// goOn begins anew what was under way beside the loop when it was executed anew:
// nothing else was lost.
func (m *machine) goOn(svc *Service, g *Generation) {
	switch g.Phase {
	case PhaseDraining:
		if g.Hello && !g.Untold && !g.Read && !g.Answered {
			m.do(acAwaitRead{ref(svc, g)})
		}
	case PhaseEnding:
		m.do(acKill{ref(svc, g), sigTerm})
	case PhaseKilling:
		m.do(acKill{ref(svc, g), sigKill})
	}
}

// again signals a generation once more that still polls, as if it had never been told.
func (m *machine) again(svc *Service, g *Generation) {
	g.AgainAt = 0
	if g.Answered || g.Termed {
		return
	}
	m.note(svc, g, "info", "it still accepts: signalled again, the signal may have been lost with the old handoverd")
	m.do(acSignal{ref(svc, g), g.Spec.Drain})
}

// unstop ends a stop that a handoverd was killed in: whoever starts another one
// wants the services to run. What was told to drain drains on under its deadline;
// what was not told yet and has not died meanwhile serves again.
func (m *machine) unstop(gone []at) {
	m.s.Stop = nil
	for _, name := range m.s.Order {
		svc := m.s.Services[name]
		svc.Stop, svc.Budget = StopNone, nil
		if svc.Lame != nil {
			svc.Lame = nil
			m.undo(svc)
		}
		for _, g := range slices.Backward(svc.Generations) {
			switch {
			case g.Phase != PhaseDraining:
			case g.Untold && g.Committed != 0 && g.DrainWhy != "reload" && // that one's successor has died
				svc.Serving() == nil && !svc.Removed && !slices.Contains(gone, ref(svc, g)):
				m.note(svc, g, "info", "the stop is called off: it serves on")
				g.Phase, g.DrainBegan, g.DrainWhy, g.KillAt = PhaseServing, 0, "", 0
				g.Untold, g.Held, g.Leaving, g.EmptyBy, g.Release = false, false, nil, 0, ReleaseNone
			case g.Untold:
				g.Held, g.Leaving, g.EmptyBy = false, nil, 0
				fallthrough
			case g.DrainWhy == "stop" && g.Spec.shares() && g.Release == ReleaseNone:
				g.Release, g.ReleaseBy = ReleasePending, m.now.Add(g.Spec.Config.Retire.ReleaseTimeout)
			}
		}
	}
}
