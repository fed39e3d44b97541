package supervisor

import (
	"slices"

	"github.com/handoverd/handover/internal/proc"
)

// stop begins the stop of everything, or, the second time, ends it at once.
func (m *machine) stop(now bool) {
	if m.s.Stop != nil {
		m.s.Stop.Now = true
		m.s.Stop.Hard = min(m.s.Stop.Hard, m.now.Add(stuckAfter))
		return
	}
	st := &Stop{Began: m.now, Now: now, Hard: m.now.Add(hardMargin)}
	m.s.Stop = st
	for _, j := range m.s.Jobs {
		m.cancel(j)
	}
	for _, name := range m.s.Order {
		svc := m.s.Services[name]
		svc.Restart, svc.Upgrade = nil, nil
		svc.Stop = StopLameDuck
		svc.LameEnds = m.now
		if spec := svc.stopSpec(); spec != nil {
			svc.LameEnds = m.now.Add(spec.Config.Stop.LameDuck.For)
			st.Hard = max(st.Hard, svc.deadline(st).Add(hardMargin))
		}
		for _, g := range svc.Generations {
			m.stopGeneration(svc, g)
		}
	}
	if now {
		st.Hard = m.now.Add(stuckAfter)
	}
}

func (m *machine) stopGeneration(svc *Service, g *Generation) {
	switch g.Phase {
	case PhaseStarting:
		m.kill(svc, g, "stop")
	case PhaseBaking, PhaseServing:
		g.BakeEnds = 0 // no commit any more: both are stopped in order
		if g.Hello && svc.LameEnds > m.now {
			m.do(acLame{ref(svc, g)})
		}
	case PhaseDraining:
		m.drain(svc, g, "stop", svc.deadline(m.s.Stop)) // keeps the earlier deadline
	case PhaseEnding:
		g.KillAt = min(g.KillAt, svc.deadline(m.s.Stop))
	}
}

// cancel ends a job because of a stop.
func (m *machine) cancel(j *Job) {
	if j.Stage != JobRunning {
		j.Stage = JobRunning
		j.Results = []Result{{Outcome: OutcomeRefused, Reason: string(RefusedStopping)}}
	}
	j.Removed = nil
	for i := range j.Results {
		r := &j.Results[i]
		if r.Outcome == OutcomePending {
			r.Outcome, r.Reason, r.Waiting = OutcomeRefused, string(RefusedStopping), false
		}
		if r.Release == ReleasePending {
			r.Release = ReleaseUnknown
		}
	}
}

// stopSpec is the spec whose budgets govern the stop of the service.
func (svc *Service) stopSpec() *Spec {
	if g := svc.Serving(); g != nil {
		return g.Spec
	}
	return svc.Spec
}

// deadline is when the stop of the service ends with SIGKILL. It counts from
// the request and contains everything.
func (svc *Service) deadline(st *Stop) proc.Instant {
	spec := svc.stopSpec()
	if spec == nil {
		return st.Began
	}
	return st.Began.Add(spec.Config.Stop.Deadline)
}

// latest is when the drain of the service begins even if services that come
// after it still live: two kill graces before the deadline, so that it has one
// to drain in before its SIGTERM.
func (svc *Service) latest(st *Stop) proc.Instant {
	spec := svc.stopSpec()
	if spec == nil {
		return st.Began
	}
	return max(st.Began, svc.deadline(st).Add(-2*spec.Config.Retire.KillGrace))
}

// stopping carries a stop on.
func (m *machine) stopping() bool {
	st := m.s.Stop
	if st == nil || st.Exited {
		return false
	}
	left := 0
	for _, name := range m.s.Order {
		svc := m.s.Services[name]
		left += len(svc.Generations)
		if m.stopService(svc) {
			return true
		}
	}
	if left > 0 && m.now < st.Hard {
		return false
	}
	st.Exited = true
	code := 0
	if left > 0 || len(st.Cut) > 0 {
		code = ExitCut
	}
	m.do(acExit{code})
	return true
}

// ExitCut is handoverd's exit code when a stop had to cut something off.
const ExitCut = 3

func (m *machine) stopService(svc *Service) bool {
	st := m.s.Stop
	if st.Now {
		for _, g := range svc.Generations {
			if g.Phase != PhaseKilling {
				m.kill(svc, g, "stop now")
				return true
			}
		}
		return false
	}
	switch {
	case svc.Stop == StopLameDuck && m.now >= svc.LameEnds:
		svc.Stop = StopWaiting
	case svc.Stop == StopWaiting && (!m.needed(svc) || m.now >= svc.latest(st)):
		svc.Stop = StopDraining
		for _, g := range svc.Generations {
			if g.Phase == PhaseServing || g.Phase == PhaseBaking {
				m.drain(svc, g, "stop", svc.deadline(st))
			}
		}
	default:
		return false
	}
	return true
}

// needed reports whether a service that comes after this one still lives.
func (m *machine) needed(svc *Service) bool {
	for _, other := range m.s.Services {
		if len(other.Generations) == 0 || other == svc {
			continue
		}
		for _, g := range other.Generations {
			if slices.Contains(g.Spec.Config.After, svc.Name) {
				return true
			}
		}
	}
	return false
}
