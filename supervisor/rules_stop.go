package supervisor

import (
	"slices"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// StopBudget is how much time the stop of a service has left.
type StopBudget struct {
	By    proc.Instant `json:"by"`              // SIGKILL to what still lives
	Scale float64      `json:"scale"`           // of its other times; 1: as they are configured
	Quiet bool         `json:"quiet,omitempty"` // hold: its connections were silent
}

// stop begins the stop of everything, shortens it, or, the second time, ends it at once.
func (m *machine) stop(e evStop) {
	switch {
	case m.s.Stop == nil:
		m.beginStop(e)
	case e.Within > 0 && !e.Now:
		m.shorten(e.Within)
	default:
		m.s.Stop.Now = true
		m.s.Stop.Hard = min(m.s.Stop.Hard, m.now.Add(stuckAfter))
	}
}

func (m *machine) beginStop(e evStop) {
	st := &Stop{Began: m.now, Now: e.Now, Keeps: e.Keeps, Hard: m.now.Add(hardMargin)}
	m.s.Stop = st
	m.endUpgrade(string(RefusedStopping))
	for _, j := range m.s.Jobs {
		m.cancel(j)
	}
	for _, name := range m.s.Order {
		svc := m.s.Services[name]
		svc.Restart, svc.Upgrade = nil, nil
		svc.Stop = StopLameDuck
		svc.Budget = &StopBudget{By: m.now, Scale: 1}
		if spec := svc.stopSpec(); spec != nil {
			svc.Budget.By = m.now.Add(spec.Config.Stop.Deadline)
			st.Hard = max(st.Hard, svc.Budget.By.Add(hardMargin))
		}
		if svc.Lame == nil { // else a command has begun it
			m.beginLame(svc)
		}
	}
	if e.Within > 0 {
		m.shorten(e.Within)
	}
	for _, name := range m.s.Order {
		svc := m.s.Services[name]
		for _, g := range svc.Generations {
			m.stopGeneration(svc, g)
		}
	}
	if e.Now {
		st.Hard = m.now.Add(stuckAfter)
	}
}

// shorten brings the end of a stop forward, and scales all that comes before it.
func (m *machine) shorten(within time.Duration) {
	st, hard := m.s.Stop, m.now.Add(hardMargin)
	for _, name := range m.s.Order {
		svc := m.s.Services[name]
		by := m.now.Add(within)
		if left := svc.Budget.By.Sub(m.now); by < svc.Budget.By {
			share := float64(within) / float64(left)
			svc.Budget.By, svc.Budget.Scale = by, svc.Budget.Scale*share
			if l := svc.Lame; l != nil && l.Ended == 0 {
				l.shorten(m.now, share)
			}
			for _, g := range svc.Generations {
				if g.Phase == PhaseDraining || g.Phase == PhaseEnding {
					m.stopGeneration(svc, g)
				}
			}
		}
		hard = max(hard, svc.Budget.By.Add(hardMargin))
	}
	st.Hard = min(st.Hard, hard)
}

func (m *machine) stopGeneration(svc *Service, g *Generation) {
	switch g.Phase {
	case PhaseStarting:
		m.kill(svc, g, "stop")
	case PhaseBaking:
		g.BakeEnds = 0 // no commit any more: both are stopped in order
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
	if svc.Budget == nil {
		return st.Began
	}
	return svc.Budget.By
}

// latest is when the drain of the service begins even if services that come
// after it still live: two kill graces before the deadline, so that it has one
// to drain in before its SIGTERM.
func (svc *Service) latest(st *Stop) proc.Instant {
	return max(st.Began, svc.deadline(st).Add(-2*svc.stopGrace()))
}

// stopGrace is the kill grace of the service's stop.
func (svc *Service) stopGrace() time.Duration {
	spec := svc.stopSpec()
	if spec == nil || svc.Budget == nil {
		return 0
	}
	return scaled(spec.Config.Retire.KillGrace, svc.Budget.Scale)
}

// hold is how long the connections of the service have to be silent before its
// drain; 0: not at all.
func (svc *Service) hold() time.Duration {
	spec := svc.stopSpec()
	if spec == nil || svc.Budget == nil {
		return 0
	}
	return scaled(spec.Config.Stop.Quiet, svc.Budget.Scale)
}

// holdEnds is when the hold ends if its connections do not fall silent: the queue
// has to be emptied before the signal.
func (svc *Service) holdEnds(st *Stop) proc.Instant {
	return max(st.Began, svc.deadline(st).Add(-svc.stopGrace()-emptyLimit))
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
	if st.CrashLoop != "" {
		code = ExitCrashLoop
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
	case svc.Stop == StopLameDuck && (svc.Lame == nil || svc.Lame.Ended != 0):
		svc.Stop = StopWaiting
	case svc.Stop == StopWaiting && (!m.needed(svc) || m.now >= svc.latest(st)):
		svc.Stop = StopHolding
	case svc.Stop == StopHolding && (svc.hold() == 0 || svc.Budget.Quiet || svc.in(PhaseServing, PhaseBaking) == nil || m.now >= svc.holdEnds(st)):
		m.drainService(svc)
	default:
		return false
	}
	return true
}

// drainService ends the hold of a service.
func (m *machine) drainService(svc *Service) {
	svc.Stop = StopDraining
	for _, g := range svc.Generations {
		if g.Phase == PhaseServing || g.Phase == PhaseBaking {
			if svc.hold() > 0 && !svc.Budget.Quiet {
				m.force(svc, g)
			}
			m.drain(svc, g, "stop", svc.deadline(m.s.Stop))
		}
	}
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
