package supervisor

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/proc"
)

// Times that are part of the design and not of the configuration.
const (
	acceptingHold = 250 * time.Millisecond // auto and accepting: polled for that long
	aliveDefault  = time.Second            // alive, and auto where nothing can be seen
	stuckAfter    = 5 * time.Second        // after SIGKILL
	steadyAfter   = 10 * time.Second       // of serving: the back-off starts anew
	shortLife     = time.Second            // of serving: counts as a crash in init
	hardMargin    = 900 * time.Millisecond // past the deadline of a stop handoverd leaves anyway
)

// machine is one call of transition at work.
type machine struct {
	s    *State
	now  proc.Instant
	acts []action
}

// transition is the functional core: given what is known, what happened and
// the time it says what is known then and what is to be done. It is pure and
// total: every event is allowed in every state, and one that does not apply
// changes nothing. The state passed in is not changed.
//
// Facts are recorded first; then everything that follows from state and time is
// done, so that a deadline is compared at each turn and never missed.
func transition(s State, e event, now proc.Instant) (State, []action) {
	n := s.clone()
	m := &machine{s: &n, now: now}
	m.record(e)
	for m.step() {
	}
	m.finishJobs()
	return n, m.acts
}

func (m *machine) do(a action) { m.acts = append(m.acts, a) }

func (m *machine) note(svc *Service, g *Generation, level, format string, args ...any) {
	n := acNote{Level: level, Text: fmt.Sprintf(format, args...)}
	n.Service = svc.Name
	if g != nil {
		n.Gen = g.N
	}
	m.do(n)
}

func (m *machine) find(a at) (*Service, *Generation) {
	svc := m.s.Services[a.Service]
	if svc == nil {
		return nil, nil
	}
	return svc, svc.gen(a.Gen)
}

// process finds a generation whose process is known: of another there is nothing to
// see, and it says nothing.
func (m *machine) process(a at) (*Service, *Generation) {
	svc, g := m.find(a)
	if g == nil || g.PID == 0 {
		return nil, nil
	}
	return svc, g
}

func ref(svc *Service, g *Generation) at { return at{svc.Name, g.N} }

// record writes down what the event says.
func (m *machine) record(e event) {
	switch e := e.(type) {
	case evReload:
		m.reload(e)
	case evAbort:
		m.abort(e)
	case evPrepared:
		m.prepared(e)
	case evStop:
		m.stop(e)
	case evKept:
		m.kept(e.Executable)
	case evGiveUp:
		m.giveUp(e)
	case evLame:
		m.lameDuck(e)
	case evUpgrade:
		m.selfUpgrade(e)
	case evRehearsed:
		m.rehearsed(e)
	case evUpgradeFailed:
		if m.s.Self != nil && m.s.Self.ID == e.ID {
			m.endUpgrade(e.Fault)
		}
	case evDuty:
		m.dutyDone(e)
	case evProbed:
		if svc := m.s.Services[e.Service]; svc != nil && svc.Lame != nil && svc.Lame.Began == e.Began {
			svc.Lame.acknowledged(m.now)
		}
	case evQuiet:
		m.quiet(e.Service)
	case evLeft:
		m.left(e.Keys)
	case evOpen:
		if _, g := m.process(e.at); g != nil && !g.Exited {
			g.Open = e.Connections
		}
	case evSpawned:
		m.spawned(e)
	case evSpawnFailed:
		if svc, g := m.find(e.at); g != nil {
			m.spawnFailed(svc, g, e.Reason)
		}
	case evUnwritten:
		m.unwritten(e)
	case evExited:
		if svc, g := m.process(e.at); g != nil && !g.Exited {
			m.exited(svc, g, e.Status)
		}
	case evGone:
		if svc, g := m.find(e.at); g != nil {
			m.gone(svc, g)
		}
	case evSight:
		if svc, g := m.process(e.at); g != nil {
			m.sight(svc, g, e)
		}
	case evProbe:
		m.probed(e)
	case evGate:
		m.gateSaid(e)
	case evRestored:
		m.restored(e)
	default:
		m.told(e)
	}
}

// told records what a generation says of itself.
func (m *machine) told(e event) {
	switch e := e.(type) {
	case evHello:
		if svc, g := m.process(e.at); g != nil && !g.Hello {
			g.Hello = true
			m.lateHello(svc, g)
		}
	case evNotify:
		if _, g := m.process(e.at); g != nil {
			g.Notify = true
		}
	case evRead:
		if svc, g := m.process(e.at); g != nil && g.Phase == PhaseDraining && !g.Untold {
			m.read(svc, g)
		}
	case evAnswered:
		// Unasked it is no answer: who says it while it serves is told and signalled all the same.
		if _, g := m.process(e.at); g != nil && g.Phase == PhaseDraining && !g.Untold {
			g.Answered = true
		}
	case evReady:
		_, g := m.process(e.at)
		if g == nil || g.Phase != PhaseStarting || g.ReadyAt != 0 || !heeds(g, e.By) {
			return
		}
		g.ReadyAt, g.ReadyBy = m.now, e.By
	case evUnheld: // its pidfd says so
		if _, g := m.process(e.at); g != nil && g.Unheld == 0 {
			g.Unheld = e.Until
		}
	case evExtend:
		if _, g := m.process(e.at); g != nil && g.Phase == PhaseStarting && e.By > 0 {
			g.GraceEnds = max(g.GraceEnds, m.now.Add(e.By))
		}
	}
}

// lateHello tells a generation that took its time to say hello what it has missed.
// Without it a library child would never accept.
func (m *machine) lateHello(svc *Service, g *Generation) {
	if g.Phase == PhaseBaking || g.Phase == PhaseServing {
		g.AcceptSent = true
		m.do(acAccept{ref(svc, g)})
	}
	if g.Phase == PhaseServing {
		m.do(acAck{ref(svc, g)})
	}
	if svc.Lame != nil && (g.Phase == PhaseBaking || g.Phase == PhaseServing) {
		m.do(acLame{ref(svc, g)})
	}
	if g.Phase == PhaseDraining && !g.Untold {
		m.message(svc, g, g.DrainWhy)
	}
}

// heeds reports whether a signal by that way counts for the generation.
func heeds(g *Generation, by string) bool {
	switch when := g.Spec.Config.Ready.When; when {
	case "auto":
		return by == "native" || !g.Hello
	default:
		return when == by
	}
}

func (m *machine) spawned(e evSpawned) {
	svc, g := m.find(e.at)
	if g == nil || g.PID != 0 {
		return
	}
	g.PID, g.StartTime, g.Token, g.Executable = e.PID, e.StartTime, e.Token, e.Executable
	g.Begun = m.now // alive counts from here
	if g.Phase == PhaseStarting {
		m.do(acGo{ref(svc, g)})
	} else { // given up meanwhile: it never runs
		m.do(acKill{ref(svc, g), sigKill})
	}
}

func (m *machine) spawnFailed(svc *Service, g *Generation, reason string) {
	if g.Phase == PhaseStarting {
		m.failed(svc, g, reason)
	}
	if g.PID == 0 { // no process: nothing to wait for
		m.drop(svc, g)
	}
}

// sight records what a look showed; which part counts depends on the phase.
func (m *machine) sight(svc *Service, g *Generation, e evSight) {
	switch g.Phase {
	case PhaseStarting, PhaseBaking:
		if e.Blind && !g.Blind {
			m.note(svc, g, "warn", "its processes cannot be looked at: accepting is not verified")
		}
		g.Blind = e.Blind
		switch {
		case !e.Polls:
			g.Accepting = 0
		case g.Accepting == 0:
			g.Accepting = m.now
		}
		g.AdoptFault, g.Idle = e.Fault, e.Idle
		g.Adopted = e.Fault == "" && (e.Blind || e.Polls)
	case PhaseDraining:
		if g.Release != ReleasePending {
			return
		}
		g.StaleEpoll = e.Stale
		switch {
		case e.Blind:
			g.Release = ReleaseUnknown
			m.note(svc, g, "warn", "release unknown: its processes cannot be looked at")
		case !e.Polls:
			g.Release = ReleaseYes
			if e.Stale {
				m.note(svc, g, "warn", "released, but a stale epoll entry is left: it may be woken for nothing")
			}
		}
	}
}

// exited: the main process has ended, and with it the generation. What else it
// started is ended too.
func (m *machine) exited(svc *Service, g *Generation, status uint32) {
	g.Exited, g.Status = true, status
	was := g.Phase
	sig, grace := sigTerm, svc.grace(g)
	m.open(svc, g, status)
	switch was {
	case PhaseKilling:
		return // SIGKILL is at work on all of it already
	case PhaseStarting, PhaseBaking:
		m.failed(svc, g, exitReason(g, was))
		sig, grace = sigKill, 0
	case PhaseServing:
		g.Phase = PhaseEnding
		m.died(svc, g)
	case PhaseDraining:
		if g.Release == ReleasePending {
			g.Release = ReleaseYes
		}
		// SIGTERM at the end of the ladder ends a program that does not handle
		// it, with whatever it had in hand.
		switch {
		case g.Termed && killedBy(status, sigTerm):
			g.Reason = fmt.Sprintf("%s, near the deadline of its drain (%s)", describeStatus(status), g.DrainWhy)
			m.cut(svc, g)
		case g.Forced && killedBy(status, g.Spec.Drain):
			g.Reason = fmt.Sprintf("%s, and its connections had not been silent (%s)", describeStatus(status), g.DrainWhy)
			m.cut(svc, g)
		case g.Answered && unix.WaitStatus(status).Exited() && status != 0:
			// It was told its deadline, and leaves by itself before the signal.
			g.Reason = fmt.Sprintf("%s: it had not finished its drain (%s)", describeStatus(status), g.DrainWhy)
			m.cut(svc, g)
		}
	}
	g.Phase = PhaseEnding
	end := m.now.Add(grace)
	if was == PhaseDraining { // the deadline is for everything that it started
		end = min(end, g.KillAt)
	}
	if m.s.Stop != nil {
		end = min(end, svc.deadline(m.s.Stop))
	}
	g.SignalAt, g.TermAt, g.KillAt, g.Hook, g.Untold = 0, 0, end, false, false
	if g.DrainBegan == 0 {
		g.DrainBegan = m.now
	}
	m.settleRelease(svc, g)
	m.do(acKill{ref(svc, g), sig})
}

func exitReason(g *Generation, p Phase) string {
	how := describeStatus(g.Status)
	switch {
	case p == PhaseBaking:
		return how + " while baking"
	case g.ReadyAt != 0:
		return how + " after it had said ready, inside settle"
	case g.Status == 0:
		return how + " before it was ready: it finished, or put itself into the background"
	}
	return how + " before it was ready"
}

func (m *machine) gone(svc *Service, g *Generation) {
	if !g.Exited && (g.PID == 0 || g.Phase != PhaseKilling) {
		return // it cannot be: its main process lives, or is about to
	}
	m.drop(svc, g)
}

// drop forgets a generation of which nothing is left.
func (m *machine) drop(svc *Service, g *Generation) {
	i := slices.Index(svc.Generations, g)
	svc.Generations = slices.Delete(svc.Generations, i, i+1)
	if st := m.s.Stop; st != nil && g.Cut {
		st.Cut = append(st.Cut, fmt.Sprintf("%s generation %d", svc.Name, g.N))
	}
	m.settleRelease(svc, g)
	m.do(acReap{ref(svc, g)})
}

// settleRelease tells the reload that retired g how that ended.
func (m *machine) settleRelease(svc *Service, g *Generation) {
	for _, j := range m.s.Jobs {
		r := j.result(svc.Name)
		if r == nil || r.Old != g.N || r.Release != ReleasePending {
			continue
		}
		if r.Release = g.Release; r.Release == ReleasePending || r.Release == ReleaseNone {
			r.Release = ReleaseYes // gone is released
		}
	}
}
