package supervisor

import "cmp"

// probed records what a generation's probe has found.
func (m *machine) probed(e evProbe) {
	_, g := m.process(e.at)
	if g == nil || g.Phase != PhaseStarting && g.Phase != PhaseBaking || g.Spec.Config.Ready.Probe == nil {
		return
	}
	g.ProbeSaid = e.Text
	switch {
	case e.OK:
		g.Probed, g.ProbeBad, g.ProbeSaid = true, false, ""
	case e.Bad:
		g.Probed, g.ProbeBad = false, true
	}
}

// isProbed reports whether the probe of the generation is to be asked now: from the
// start where it says that the generation is ready, and while it bakes. A stop ends
// that: nothing is rolled back any more.
func (g *Generation) isProbed() bool {
	if g.Spec.Config.Ready.Probe == nil || g.PID == 0 || g.Exited {
		return false
	}
	return g.Phase == PhaseStarting && isProbe(g.Spec.Config.Ready.When) || g.Phase == PhaseBaking && g.BakeEnds != 0
}

func (g *Generation) probeReason() string { return "its probe fails: " + orNothing(g.ProbeSaid) }

// orNothing is said of a question that nobody has answered yet.
func orNothing(said string) string { return cmp.Or(said, "no answer yet") }

// atGate reports whether the outside has to agree before the generation is
// committed, and has not. Where nothing serves nobody is asked: a balancer that
// waits for /ready, which waits for a serving generation, would wait for ever.
func (m *machine) atGate(svc *Service, g *Generation) bool {
	return g.Spec.Config.Ready.Gate != nil && !g.GateOpen && svc.Serving() != nil
}

// knock has the outside asked from now on, or gives the generation up at the end of
// its grace. It accepts by now, beside the one that serves: the outside may well
// judge it by what it answers.
func (m *machine) knock(svc *Service, g *Generation) bool {
	switch {
	case m.due(g.GraceEnds):
		m.failed(svc, g, graceReason(g))
	case g.GateBegan == 0:
		g.GateBegan = m.now
		m.note(svc, g, "info", "ready by %s, waits for the gate", g.ReadyBy)
	default:
		return false
	}
	return true
}

// gateSaid records what the outside has answered.
func (m *machine) gateSaid(e evGate) {
	svc, g := m.find(e.at)
	if g == nil || !g.isAtGate() {
		return
	}
	if g.GateOpen, g.GateSaid = e.OK, e.Text; e.OK {
		g.GateSaid = ""
		m.note(svc, g, "info", "the gate is open")
	}
}

// isAtGate reports whether the outside is to be asked now.
func (g *Generation) isAtGate() bool {
	return g.Spec.Config.Ready.Gate != nil && g.Phase == PhaseStarting && g.GateBegan != 0 && !g.GateOpen && g.PID != 0 && !g.Exited
}

func (g *Generation) gateStatus() string {
	switch {
	case g.GateOpen:
		return "open"
	case g.isAtGate():
		return orNothing(g.GateSaid)
	}
	return ""
}

// baking ends a bake: by a commit when its time is over, or at once when nobody
// else serves any more; by a roll-back when its probe fails, or has never succeeded.
func (m *machine) baking(svc *Service, g *Generation) bool {
	if cut := m.s.Stop != nil && m.s.Stop.Now; cut {
		return false // both are being killed
	}
	unproved := g.Spec.Config.Ready.Probe != nil && !g.Probed
	switch {
	case svc.Serving() == nil:
		m.commit(svc, g)
	case m.s.Stop == nil && g.ProbeBad:
		m.failed(svc, g, g.probeReason())
	case m.due(g.BakeEnds) && unproved:
		m.failed(svc, g, "its probe has not succeeded while baking: "+orNothing(g.ProbeSaid))
	case m.due(g.BakeEnds):
		m.commit(svc, g)
	default:
		return false
	}
	return true
}
