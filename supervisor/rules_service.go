package supervisor

import (
	"fmt"
	"hash/fnv"
	"time"
)

// begin makes a new generation and has it spawned, with this executable or, nil, with
// what is at the spec's path.
func (m *machine) begin(svc *Service, spec *Spec, exe *Executable, why Why) *Generation {
	svc.LastN++
	g := &Generation{
		N: svc.LastN, Spec: spec, Executable: exe, Phase: PhaseStarting, Why: why, Begun: m.now,
		GraceEnds: m.now.Add(spec.Config.Ready.InitGrace),
	}
	svc.Generations = append(svc.Generations, g)
	m.do(acSpawn{ref(svc, g)})
	return g
}

// replacedReason is why a generation that was starting was given up for a newer
// reload.
const replacedReason = "replaced by a newer reload before it served"

// failed gives up a generation that has not been committed. One that may have
// taken connections after it was told to is drained, every other is killed.
func (m *machine) failed(svc *Service, g *Generation, reason string) {
	replaced := reason == replacedReason
	if g.Reason == "" {
		g.Reason = reason
	}
	was := g.Phase
	svc.Failure = &Failure{Generation: g.N, Phase: was, Reason: g.Reason, Status: g.Status, Exited: g.Exited, At: m.now}
	result := Result{
		Service: svc.Name, Outcome: OutcomeFailed, Generation: g.N, Phase: was,
		Reason: g.Reason, Status: g.Status, Exited: g.Exited,
	}
	switch {
	case g.Exited: // the caller ends what is left of it
		g.Phase = PhaseEnding
	case was == PhaseBaking || svc.Serving() != nil || replaced:
		m.dismiss(svc, g)
	default:
		m.kill(svc, g, g.Reason)
	}
	if u := svc.Upgrade; u != nil && u.Gen == g.N {
		m.conclude(svc, result)
	}
	if svc.Serving() != nil || m.s.Stop != nil || svc.Removed {
		return
	}
	if g.Why.asked() && svc.Good || replaced {
		// The old one died while this one started: the last good spec
		// starts at once, unless a back-off was under way before. To be
		// replaced is no crash.
		if svc.Restart == nil {
			svc.Restart = &Restart{At: m.now, Failures: svc.Failures}
		}
		return
	}
	m.backOff(svc, g)
}

// dismiss drains one that is given up before the commit and may have something in hand, and kills every other.
func (m *machine) dismiss(svc *Service, g *Generation) {
	if g.Phase == PhaseBaking || g.hasAccepted() {
		m.drain(svc, g, "rolled back", m.now.Add(min(g.Spec.Config.Stop.Deadline, g.Spec.Config.Retire.ParentShutdown)))
		return
	}
	m.kill(svc, g, g.Reason)
}

// hasAccepted reports whether a generation that is given up before the commit may
// have taken connections, and can be trusted to finish them: it was ready, and told
// to accept or seen to; or nothing speaks against it but that it is not wanted.
func (g *Generation) hasAccepted() bool {
	return g.GateBegan != 0 || g.ReadyAt != 0 && (g.AcceptSent || !g.Hello && g.Adopted) ||
		g.Reason == abortedReason && g.Accepting != 0
}

// died: the serving generation has ended by itself.
func (m *machine) died(svc *Service, g *Generation) {
	g.Reason = describeStatus(g.Status) + " while serving"
	svc.Failure = &Failure{Generation: g.N, Phase: PhaseServing, Reason: g.Reason, Status: g.Status, Exited: true, At: m.now}
	if m.s.Stop != nil || svc.Removed {
		return
	}
	served := m.now.Sub(g.Committed)
	if served >= steadyAfter {
		svc.steady()
	}
	if svc.coming() != nil {
		return // the starting one goes on alone
	}
	at := m.now // it served for longer than the delay: replaced at once
	delay := svc.delay()
	if served < shortLife {
		m.double(svc)
	}
	if served <= delay {
		at = m.now.Add(jitter(delay, svc.Name, g.N))
	}
	svc.Restart = &Restart{At: at, Failures: svc.Failures}
}

// backOff plans the next start of the last good spec after a delay that doubles.
func (m *machine) backOff(svc *Service, g *Generation) {
	if svc.Spec == nil {
		return
	}
	at := m.now.Add(jitter(m.double(svc), svc.Name, g.N))
	svc.Restart = &Restart{At: at, Failures: svc.Failures}
}

// double counts a death before or soon after ready. It returns the delay that
// stands now and doubles the next one.
func (m *machine) double(svc *Service) time.Duration {
	now := svc.delay()
	m.crashes(svc)
	svc.Delay = min(2*now, svc.Spec.Config.Restart.BackoffMax)
	return now
}

// delay is the back-off that stands now, within the bounds of the present spec.
func (svc *Service) delay() time.Duration {
	cfg := &svc.Spec.Config.Restart
	return min(max(svc.Delay, cfg.BackoffMin), cfg.BackoffMax)
}

// jitter spreads a delay over 90 to 110 %. It is computed and not drawn, so that
// transition stays pure; it only has to differ between services and attempts.
func jitter(d time.Duration, service string, n int) time.Duration {
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%s/%d", service, n)
	return d*9/10 + time.Duration(h.Sum32()%1000)*(d/5)/1000
}

// restart starts the last good spec when its wait is over and nothing serves.
func (m *machine) restart(svc *Service) bool {
	if svc.Restart == nil || !m.due(svc.Restart.At) || m.s.Stop != nil || svc.Removed {
		return false
	}
	if svc.Serving() != nil || svc.coming() != nil || m.holdsRestart(svc) {
		return false
	}
	if svc.exclusively() && svc.old() > 0 {
		return false // what is left of it may still have the lock
	}
	if svc.Upgrade != nil && (svc.Upgrade.Drained || !svc.Upgrade.Waiting) && m.isNext(svc) {
		return false // an upgrade is about to be started instead
	}
	svc.Restart = nil
	m.begin(svc, svc.Spec, svc.Executable, WhyRestart)
	return true
}

// conclude hands the result of an upgrade to all reloads that wait for it.
func (m *machine) conclude(svc *Service, r Result) {
	u := svc.Upgrade
	svc.Upgrade = nil
	for _, id := range u.Jobs {
		if j := m.s.job(id); j != nil {
			if slot := j.result(svc.Name); slot != nil && slot.Outcome == OutcomePending {
				*slot = r
			}
		}
	}
}
