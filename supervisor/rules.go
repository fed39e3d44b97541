package supervisor

import (
	"fmt"
	"syscall"

	"github.com/handoverd/handover/drain"
	"github.com/handoverd/handover/internal/proc"
)

// step does the first thing that follows from the state and the time, and
// reports whether there was one. It is called until there is none.
func (m *machine) step() bool {
	for _, name := range m.s.Order {
		svc := m.s.Services[name]
		for _, g := range svc.Generations {
			if m.generation(svc, g) {
				return true
			}
		}
		if m.loopOver(svc) || m.restart(svc) || m.lame(svc) {
			return true
		}
	}
	return m.upgradeDue() || m.stopping() || m.jobs()
}

func (m *machine) due(t proc.Instant) bool { return t != 0 && m.now >= t }

// generation does what is due for one generation.
func (m *machine) generation(svc *Service, g *Generation) bool {
	switch g.Phase {
	case PhaseStarting:
		return m.starting(svc, g)
	case PhaseBaking:
		return m.baking(svc, g)
	case PhaseDraining:
		return m.draining(svc, g)
	case PhaseEnding:
		if m.due(g.KillAt) {
			m.kill(svc, g, "")
			return true
		}
	case PhaseKilling:
		if !g.Stuck && m.now >= g.Killed.Add(stuckAfter) {
			g.Stuck = true
			if g.Release == ReleasePending {
				g.Release = ReleaseNo
			}
			m.settleRelease(svc, g)
			text := "stuck: the kernel has not ended it within %v of SIGKILL"
			if g.Exited {
				text = "stuck: what it started is not seen to have ended within %v of SIGKILL"
			}
			m.note(svc, g, "error", text, stuckAfter)
			return true
		}
	}
	return false
}

// starting advances a generation from spawn to commit.
func (m *machine) starting(svc *Service, g *Generation) bool {
	if g.PID == 0 {
		return false // being spawned
	}
	cfg := &g.Spec.Config
	if g.ReadyAt == 0 {
		if by, ok := m.inferReady(g); ok {
			g.ReadyAt, g.ReadyBy = m.now, by
		}
	}
	settled := g.ReadyAt != 0 && m.now >= g.ReadyAt.Add(cfg.Ready.Settle)
	// A library child accepts only when told: after settle, or at once where
	// nothing serves, since then there is nobody else to accept.
	if g.Hello && !g.AcceptSent && (settled || svc.Serving() == nil) {
		g.AcceptSent = true
		m.do(acAccept{ref(svc, g)})
		return true
	}
	switch {
	case g.ReadyAt != 0 && g.ProbeBad:
		m.failed(svc, g, g.probeReason())
		return true
	case settled && g.adopted() && m.atGate(svc, g):
		return m.knock(svc, g)
	case settled && g.adopted():
		if len(g.Idle) > 0 {
			m.note(svc, g, "warn", "sockets that nobody polls: %v", g.Idle)
		}
		if cfg.Ready.Bake > 0 && svc.Serving() != nil {
			g.Phase, g.BakeEnds, g.GraceEnds = PhaseBaking, m.now.Add(cfg.Ready.Bake), 0
		} else {
			m.commit(svc, g)
		}
		return true
	case m.due(g.GraceEnds):
		m.failed(svc, g, graceReason(g))
		return true
	}
	return false
}

func (g *Generation) adopted() bool { return g.Adopted || !g.Spec.shares() }

// inferReady decides for programs that say nothing.
func (m *machine) inferReady(g *Generation) (by string, ok bool) {
	alive := g.Spec.Config.Ready.AliveFor
	if alive == 0 {
		alive = aliveDefault
	}
	lived := m.now >= g.Begun.Add(alive)
	held := g.Accepting != 0 && m.now >= g.Accepting.Add(acceptingHold)
	switch g.Spec.Config.Ready.When {
	case "alive":
		return "alive", lived
	case "accepting":
		return "accepting", held
	case "http", "tcp", "exec":
		return g.Spec.Config.Ready.When, g.Probed
	case "native", "notify", "newline":
		return "accepting", g.Deaf && held // it may have said so to nobody
	case "auto":
		switch {
		case (g.Hello || g.Notify) && !g.Deaf:
			return "", false // it has to say so itself
		case g.Blind || !g.Spec.shares():
			return "alive", lived
		}
		return "accepting", held
	}
	return "", false
}

func graceReason(g *Generation) string {
	over := fmt.Sprintf("init grace of %v is over", g.Spec.Config.Ready.InitGrace)
	when := g.Spec.Config.Ready.When
	switch {
	case g.GateBegan != 0 && !g.GateOpen:
		return fmt.Sprintf("%s: ready by %s, but the gate has not opened: %s", over, g.ReadyBy, orNothing(g.GateSaid))
	case g.ReadyAt == 0 && when == "newline":
		return over + ": not ready (waited for newline)"
	case g.ReadyAt == 0 && isProbe(when):
		return fmt.Sprintf("%s: not ready (waited for %s): %s", over, when, orNothing(g.ProbeSaid))
	case g.ReadyAt != 0:
		return fmt.Sprintf("%s: ready by %s, but %s", over, g.ReadyBy, g.lacks())
	case g.Hello:
		return over + ": it said hello, but not ready"
	case g.Notify:
		return over + ": it sent sd_notify messages, but no READY=1"
	case when == "accepting", when == "auto", g.AdoptFault != "":
		return fmt.Sprintf("%s: not ready (waited for %s): %s", over, when, g.lacks())
	}
	return fmt.Sprintf("%s: not ready (waited for %s)", over, when)
}

// lacks says what the looks at a generation's processes found missing.
func (g *Generation) lacks() string {
	switch {
	case g.AdoptFault != "":
		return g.AdoptFault
	case g.Blind:
		return "its processes cannot be looked at"
	case g.Accepting != 0:
		return fmt.Sprintf("it has accepted for less than %v", acceptingHold)
	}
	return "it accepts on none of its sockets"
}

// draining climbs the ladder: drain message or signal at the begin, SIGTERM a
// kill grace before the deadline, SIGKILL at the deadline.
func (m *machine) draining(svc *Service, g *Generation) bool {
	switch {
	case m.due(g.KillAt):
		m.kill(svc, g, deadlineReason(g))
	case g.Untold:
		return m.untold(svc, g)
	case g.SignalAt != 0 && g.Answered:
		g.SignalAt = 0 // the library drains: the signal would end it
	case m.due(g.SignalAt):
		g.SignalAt = 0
		if g.Hello && !g.Read {
			m.note(svc, g, "warn", "the drain message has not been read for %v: it has not run since, or hangs; it is not signalled before it has, or %v before its deadline",
				g.Spec.Config.Retire.AnswerTimeout, svc.grace(g))
			break
		}
		if g.Hello {
			m.note(svc, g, "warn", "no answer to the drain message within %v: %s", g.Spec.Config.Retire.AnswerTimeout, g.drainedBy())
		}
		if g.hooked() {
			g.Hook = true
			break
		}
		g.Signalled = true
		m.do(acSignal{ref(svc, g), g.Spec.Drain})
	case g.Release == ReleasePending && m.due(g.AgainAt):
		m.again(svc, g)
	case m.due(g.TermAt):
		g.SignalAt, g.TermAt, g.Termed = 0, 0, true // no softer one after it
		m.do(acSignal{ref(svc, g), sigTerm})
	case g.Release == ReleasePending && m.due(g.ReleaseBy):
		m.notReleased(svc, g)
	default:
		if g.Release != ReleasePending && g.Release != ReleaseNone {
			m.settleRelease(svc, g)
		}
		return false
	}
	return true
}

// hooked reports whether a hook takes the place of the drain signal.
func (g *Generation) hooked() bool { return !g.Spec.Config.Retire.Drain.empty() }

func (g *Generation) drainedBy() string {
	if g.hooked() {
		return "its drain hook is run"
	}
	return "signalled"
}

func deadlineReason(g *Generation) string {
	if g.Release == ReleaseNo {
		return fmt.Sprintf("deadline of its drain (%s), not released", g.DrainWhy)
	}
	return fmt.Sprintf("deadline of its drain (%s)", g.DrainWhy)
}

func (m *machine) notReleased(svc *Service, g *Generation) {
	g.Release = ReleaseNo
	cfg := &g.Spec.Config.Retire
	m.note(svc, g, "warn", "serving, not released: generation %d still accepts %v after its drain began; "+
		"remedy: a drain signal that it obeys (retire.signal), or on_no_release = \"terminate\"", g.N, cfg.ReleaseTimeout)
	if cfg.OnNoRelease == "terminate" {
		g.TermAt = m.now
		g.KillAt = min(g.KillAt, m.now.Add(cfg.KillGrace))
	}
}

// kill sends SIGKILL to everything of a generation.
func (m *machine) kill(svc *Service, g *Generation, reason string) {
	if !g.Exited && (g.Phase == PhaseBaking || g.Phase == PhaseServing || g.Phase == PhaseDraining) {
		g.Cut = true
	}
	if g.Reason == "" {
		g.Reason = reason
	}
	if g.Cut { // it goes without an exit of its own that could tell
		m.cut(svc, g)
	}
	g.Phase, g.Killed = PhaseKilling, m.now
	g.SignalAt, g.TermAt, g.KillAt, g.GraceEnds, g.BakeEnds = 0, 0, 0, 0, 0
	g.Untold, g.Hook, g.Leaving, g.EmptyBy = false, false, nil, 0
	if g.PID != 0 {
		m.do(acKill{ref(svc, g), sigKill})
	}
}

// cut writes down that a generation was ended before it had finished.
func (m *machine) cut(svc *Service, g *Generation) {
	g.Cut = true
	svc.Failure = &Failure{Generation: g.N, Phase: g.Phase, Reason: g.Reason, Status: g.Status, Exited: g.Exited, At: m.now}
}

// drain begins the retirement of a generation under a deadline, or brings the
// deadline of one under way forward. It is told at once, unless it has to empty
// the queues of sockets that leave first.
func (m *machine) drain(svc *Service, g *Generation, why string, deadline proc.Instant) {
	if g.Phase == PhaseDraining {
		m.hurry(svc, g, why, deadline)
		return
	}
	g.Phase, g.DrainBegan, g.DrainWhy = PhaseDraining, m.now, why
	g.GraceEnds, g.BakeEnds, g.KillAt = 0, 0, deadline
	if g.Spec.shares() && why != "stop" && why != exclusive { // those two end with its exit
		g.Release, g.ReleaseBy = ReleasePending, m.now.Add(g.Spec.Config.Retire.ReleaseTimeout)
	}
	if !m.before(svc, g) {
		m.tell(svc, g)
	}
}

// tell puts a draining generation on its ladder: from now on it is to finish.
func (m *machine) tell(svc *Service, g *Generation) {
	grace := svc.grace(g)
	g.Untold, g.Leaving, g.EmptyBy = false, nil, 0
	ladder := drain.Reload(syscall.Signal(g.Spec.Drain), g.KillAt.Sub(m.now), grace)
	if g.Hello {
		ladder = ladder.Native(grace, g.Spec.Config.Retire.AnswerTimeout)
	}
	for i, step := range ladder {
		at := m.now.Add(step.After)
		switch {
		case step.Action == drain.Kill:
			g.KillAt = at
		case step.Action == drain.Signal && (step.UnlessAnswered || i == 0):
			g.SignalAt = at
		case step.Action == drain.Signal:
			g.TermAt = at
		}
	}
	if g.hooked() && g.TermAt == 0 { // SIGTERM was its drain signal, and it does not get that
		g.TermAt = max(m.now, g.KillAt.Add(-grace))
	}
	if g.Hello {
		m.message(svc, g, g.DrainWhy)
	}
}

// hurry gives a draining generation an earlier deadline; it keeps an earlier one.
func (m *machine) hurry(svc *Service, g *Generation, why string, deadline proc.Instant) {
	if deadline >= g.KillAt {
		return
	}
	g.KillAt = deadline
	last := max(deadline.Add(-svc.grace(g)), m.now)
	if g.TermAt != 0 {
		g.TermAt = min(g.TermAt, last)
	}
	if g.EmptyBy != 0 {
		g.EmptyBy = min(g.EmptyBy, last)
	}
	if g.Hello && !g.Untold && !g.Signalled && !g.Termed { // one that was signalled did not listen
		m.message(svc, g, why)
	}
}

// message sends the drain message to a generation that speaks the child protocol.
func (m *machine) message(svc *Service, g *Generation, why string) {
	g.Read = false
	m.do(acDrain{ref(svc, g), why, g.undisturbed()})
}

// read: a generation has received the drain message, and has its time to answer from now on. It is not counted from the
// message: one that did not run meanwhile, on a machine that is busy or was stopped, is not silent, and the signal, which
// ends a program that has no handler for it, would cost all that it has accepted.
func (m *machine) read(svc *Service, g *Generation) {
	if g.Read || !g.Hello || g.Answered {
		return
	}
	g.Read = true
	timeout := g.Spec.Config.Retire.AnswerTimeout
	if timeout <= 0 || g.Signalled || g.Termed || g.Hook {
		return
	}
	g.SignalAt = m.now.Add(timeout)
	if g.TermAt != 0 {
		g.SignalAt = min(g.SignalAt, g.TermAt)
	}
}

// undisturbed is until when a draining generation may work: the deadline that it
// is told. After it the next signal comes.
func (g *Generation) undisturbed() proc.Instant {
	if g.TermAt != 0 {
		return g.TermAt
	}
	return g.KillAt
}

// commit makes the coming generation the serving one.
func (m *machine) commit(svc *Service, g *Generation) {
	// Commit: before this line every failure rolls back to the old generation,
	// after it everything only goes forward.
	old := svc.Serving()
	g.Phase, g.Committed = PhaseServing, m.now
	g.GraceEnds, g.BakeEnds, g.Reason = 0, 0, ""
	first := !svc.Good
	m.succeeds(svc, g)
	svc.Spec, svc.Good, svc.Restart = g.Spec, true, nil
	m.do(acCommit{ref(svc, g)})
	m.do(acAck{ref(svc, g)})
	m.serves(svc, g, first)
	result := Result{Service: svc.Name, Outcome: OutcomeServing, Generation: g.N}
	if old != nil {
		m.drain(svc, old, "reload", m.now.Add(old.Spec.Config.Retire.ParentShutdown))
		result.Old, result.Release = old.N, old.Release
	}
	if u := svc.Upgrade; u != nil && u.Gen == g.N {
		if g.Why == WhyReload {
			svc.Reloads++
		}
		if g.Why != WhyRepair {
			svc.steady() // another program
		}
		m.conclude(svc, result)
	}
}
