package supervisor

import (
	"cmp"
	"fmt"
	"slices"
)

// reload takes a request: as a new job, into the one that is remembered, or not.
func (m *machine) reload(e evReload) {
	if len(e.Services) == 0 {
		e.Services = nil // all, also after JSON, which knows no empty list here
	}
	if e.Why == WhyReload {
		e.Why = ""
	}
	if e.Why == WhyRollback {
		e.Services = m.backTo(e.Services)
	}
	switch busy := m.busy() || m.s.Self != nil; {
	case m.s.Stop != nil:
		m.do(acAnswer{Request: e.Request, Refused: RefusedStopping})
	case e.Why == WhyRollback && len(e.Services) == 0:
		m.do(acAnswer{Request: e.Request, Refused: RefusedNoBack})
	case e.NoQueue && (busy || m.full(e.Services)):
		m.do(acAnswer{Request: e.Request, Refused: RefusedBusy})
	case m.remembered(e.Why) != nil:
		j := m.remembered(e.Why)
		j.Services = union(j.Services, e.Services)
		m.do(acAnswer{Request: e.Request, Job: j.ID})
		if m.replaces(j) {
			m.prepare(j)
		}
	default:
		m.s.LastJob++
		j := &Job{
			ID: m.s.LastJob, Why: e.Why, Stage: JobRemembered, Services: e.Services,
			First: e.First, NoQueue: e.NoQueue, Began: m.now,
		}
		m.s.Jobs = append(m.s.Jobs, j)
		m.do(acAnswer{Request: e.Request, Job: j.ID})
		if busy && m.replaces(j) {
			m.prepare(j)
		}
	}
}

func (m *machine) prepare(j *Job) {
	j.Stage = JobPreparing
	m.do(acPrepare{j.ID})
}

// busy reports whether a reload is under way that a new one has to wait for.
func (m *machine) busy() bool { return slices.ContainsFunc(m.s.Jobs, (*Job).busy) }

// remembered is the job of this kind that waits for its turn, or nil: a reload does not
// join a rollback.
func (m *machine) remembered(why Why) *Job {
	for _, j := range m.s.Jobs {
		if j.Stage == JobRemembered && j.Why == why {
			return j
		}
	}
	return nil
}

// full reports whether a service has no place below max_draining.
func (m *machine) full(names []string) bool {
	for name, svc := range m.s.Services {
		if (names == nil || slices.Contains(names, name)) && svc.Serving() != nil &&
			svc.retired() >= svc.Spec.Config.Retire.MaxDraining {
			return true
		}
	}
	return false
}

// replaces reports whether a new job need not wait: what is being started
// serves nothing else yet, so an operator's fix does not wait for its grace.
func (m *machine) replaces(j *Job) bool {
	under := m.underWay()
	return j.Why != WhyRepair && !m.preparing() && under != nil && under.Serving() == nil &&
		(j.Services == nil || slices.Contains(j.Services, under.Name))
}

// underWay is the service whose upgrade has been spawned and has not ended.
func (m *machine) underWay() *Service {
	for _, name := range m.s.Order {
		if svc := m.s.Services[name]; svc.Upgrade != nil && svc.Upgrade.Gen != 0 {
			return svc
		}
	}
	return nil
}

// isNext reports whether the upgrade of the service can be spawned now.
func (m *machine) isNext(svc *Service) bool {
	return svc.Upgrade.Gen == 0 && m.underWay() == nil && !m.preparing()
}

// preparing reports whether a newer reload is being prepared. Nothing is spawned
// meanwhile that it would replace at once.
func (m *machine) preparing() bool {
	return slices.ContainsFunc(m.s.Jobs, func(j *Job) bool { return j.Stage == JobPreparing })
}

func union(a, b []string) []string {
	if a == nil || b == nil {
		return nil // all
	}
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// prepared begins the running part of a job, or ends it with nothing touched.
func (m *machine) prepared(e evPrepared) {
	j := m.s.job(e.Job)
	if j == nil || j.Stage != JobPreparing {
		return
	}
	j.Stage = JobRunning
	fault := e.Fault
	if m.s.Stop != nil {
		fault = string(RefusedStopping)
	}
	if fault != "" {
		j.Results = []Result{{Outcome: OutcomeRefused, Reason: fault}}
		return
	}
	m.s.Digest = e.Digest
	m.s.Passed = append(m.s.Passed, e.Passed...) // each was not open before
	order := slices.Clone(e.Order)
	for _, name := range m.s.Order {
		if !slices.Contains(order, name) {
			if !m.s.Services[name].Removed {
				j.Removed = append(j.Removed, name)
			}
			order = append(order, name)
		}
	}
	// One that was removed while this was being prepared does not come back
	// without a spec.
	m.s.Order = slices.DeleteFunc(order, func(name string) bool {
		return m.s.Services[name] == nil && e.Specs[name] == nil
	})
	for _, name := range m.s.Order {
		if m.s.Services[name] == nil {
			m.s.Services[name] = &Service{Name: name, LastN: m.s.Numbers[name]}
		}
		if spec := e.Specs[name]; spec != nil {
			m.want(j, m.s.Services[name], spec, e.Executables[name])
		}
	}
}

// want puts a new spec before a service.
func (m *machine) want(j *Job, svc *Service, spec *Spec, exe *Executable) {
	svc.Removed = false
	for _, other := range m.s.Jobs { // a removal that has not begun is overtaken
		if i := slices.Index(other.Removed, svc.Name); i >= 0 {
			other.Removed = slices.Delete(other.Removed, i, i+1)
		}
	}
	j.Results = append(j.Results, Result{Service: svc.Name, Outcome: OutcomePending})
	if !svc.Good {
		svc.Spec = spec // nothing better is known for restarts
	}
	if u := svc.Upgrade; u != nil && u.Gen != 0 && j.Why != WhyRepair {
		m.failed(svc, svc.gen(u.Gen), replacedReason)
	}
	if svc.Upgrade != nil && j.Why == WhyRollback { // who waits for it is not to be told that it serves
		m.conclude(svc, Result{Service: svc.Name, Outcome: OutcomeFailed, Reason: "replaced by a rollback before it was begun"})
	}
	u := svc.Upgrade
	if u == nil {
		u = &Upgrade{Since: m.now}
		svc.Upgrade = u
	}
	if svc.Serving() == nil {
		m.wait(svc, false, "") // an operator's fix does not wait
	}
	if u.Waiting {
		for _, id := range u.Jobs { // it joins those that wait, for the same reason
			if other := m.s.job(id); other != nil && other.result(svc.Name) != nil {
				j.result(svc.Name).Waiting, j.result(svc.Name).Reason = true, other.result(svc.Name).Reason
			}
		}
	}
	u.Jobs = append(u.Jobs, j.ID)
	if j.Why == WhyRepair && len(u.Jobs) > 1 {
		return // what starts a new generation is a repair as well
	}
	u.Spec, u.Executable, u.Why = spec, exe, j.Why
}

// jobs starts what may be started.
func (m *machine) jobs() bool {
	if m.s.Stop != nil {
		return false
	}
	if m.underWay() == nil && !m.preparing() && m.s.Self == nil {
		for _, name := range m.s.Order {
			if svc := m.s.Services[name]; svc.Upgrade != nil && m.upgrade(svc) {
				return true
			}
		}
	}
	for _, j := range m.s.Jobs {
		if j.Stage == JobRemembered && !m.busy() && m.s.Self == nil {
			m.prepare(j)
			return true
		}
		if len(j.Removed) > 0 && !j.pending() {
			for _, name := range j.Removed {
				j.Results = append(j.Results, Result{Service: name, Outcome: OutcomeRemoved})
				if svc := m.s.Services[name]; svc != nil { // else an earlier one removed it
					m.remove(svc)
				}
			}
			j.Removed = nil
			return true
		}
	}
	return m.forget()
}

// pending reports whether a service of the job has no final result yet.
func (j *Job) pending() bool {
	return slices.ContainsFunc(j.Results, func(r Result) bool { return r.Outcome == OutcomePending })
}

// upgrade spawns the new generation of a service if its turn has come. It
// reports whether it changed anything.
func (m *machine) upgrade(svc *Service) bool {
	u := svc.Upgrade
	if !u.Drained { // else it starts, whatever becomes of the others: nothing serves
		if m.skip(svc) {
			return true
		}
		if dep := m.dependency(svc); dep != "" {
			return m.wait(svc, true, fmt.Sprintf("waits for %s", dep))
		}
	}
	if waits, news := m.drainFirst(svc); waits {
		return news
	}
	cfg := &u.Spec.Config.Retire
	// Where nothing serves a reload does not wait; one that waits already leaves
	// it to the restart.
	if n := svc.retired(); !u.Drained && (svc.Serving() != nil || u.Waiting) && n >= cfg.MaxDraining {
		return m.noPlace(svc, n)
	}
	m.wait(svc, false, "")
	if g := svc.coming(); g != nil { // a restart that serves nothing yet
		g.Reason = "replaced by a reload before it served"
		m.dismiss(svc, g)
	}
	why := cmp.Or(u.Why, WhyReload)
	if !svc.Good && svc.LastN == 0 {
		why = WhyStart
	}
	u.Gen = m.begin(svc, u.Spec, u.Executable, why).N
	return true
}

// noPlace applies on_max_draining.
func (m *machine) noPlace(svc *Service, n int) bool {
	u := svc.Upgrade
	cfg := &u.Spec.Config.Retire
	full := fmt.Sprintf("%d old generations are draining (max_draining %d)", n, cfg.MaxDraining)
	if cfg.OnMaxDraining == "refuse" || m.noneQueues(u) {
		m.conclude(svc, Result{Service: svc.Name, Outcome: OutcomeRefused, Reason: full})
		return true
	}
	if cfg.OnMaxDraining == "kill-oldest" && svc.count(PhaseDraining) >= cfg.MaxDraining {
		oldest := svc.Generations[slices.IndexFunc(svc.Generations, func(g *Generation) bool { return g.Phase == PhaseDraining })]
		m.kill(svc, oldest, "oldest of max_draining: a newer one needs its place")
		return true
	}
	return m.wait(svc, true, "waits for a place: "+full)
}

// noneQueues reports whether all who want the upgrade want it now or not at all.
func (m *machine) noneQueues(u *Upgrade) bool {
	return !slices.ContainsFunc(u.Jobs, func(id int) bool {
		j := m.s.job(id)
		return j != nil && !j.NoQueue
	})
}

// wait marks an upgrade as waiting or not, for the status and its reloads.
func (m *machine) wait(svc *Service, waiting bool, why string) bool {
	u := svc.Upgrade
	if u.Waiting == waiting {
		return false
	}
	u.Waiting = waiting
	for _, id := range u.Jobs {
		if j := m.s.job(id); j != nil {
			if r := j.result(svc.Name); r != nil {
				r.Waiting, r.Reason = waiting, why
			}
		}
	}
	if waiting {
		m.note(svc, nil, "warn", "the new generation %s", why)
	}
	return true
}

// remove retires a service that is no longer configured.
func (m *machine) remove(svc *Service) {
	// Its spec is good no more: if it comes back, its sockets do not.
	svc.Removed, svc.Good, svc.Restart = true, false, nil
	svc.steady()
	if svc.Upgrade != nil {
		m.conclude(svc, Result{Service: svc.Name, Outcome: OutcomeRemoved, Reason: "no longer configured"})
	}
	for _, g := range svc.Generations {
		switch g.Phase {
		case PhaseStarting:
			m.kill(svc, g, "service removed")
		case PhaseBaking, PhaseServing:
			m.drain(svc, g, "removed", m.now.Add(g.Spec.Config.Retire.ParentShutdown))
		}
	}
}

// forget drops removed services of which nothing is left.
func (m *machine) forget() bool {
	for i, name := range m.s.Order {
		if svc := m.s.Services[name]; svc.Removed && len(svc.Generations) == 0 {
			if m.s.Numbers == nil {
				m.s.Numbers = map[string]int{}
			}
			m.s.Numbers[name] = svc.LastN
			delete(m.s.Services, name)
			m.s.Order = slices.Delete(m.s.Order, i, i+1)
			return true
		}
	}
	return false
}

// finishJobs reports and drops the jobs whose every result is final.
func (m *machine) finishJobs() {
	m.s.Jobs = slices.DeleteFunc(m.s.Jobs, func(j *Job) bool {
		if !j.done() {
			return false
		}
		m.do(acJobDone{*j})
		return true
	})
}
