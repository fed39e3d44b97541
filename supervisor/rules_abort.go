package supervisor

import "slices"

// abortedReason is why a generation was given up that somebody did not want any
// more.
const abortedReason = "aborted"

// abort gives up what has not been committed of the services named, or of all: what
// is starting or baking is rolled back, what waits is dropped. Only where an old
// generation serves: elsewhere there is nothing to go back to. A reload that was
// remembered meanwhile begins as after every other end of the one before it.
func (m *machine) abort(e evAbort) {
	out := acAborted{Request: e.Request, Refused: RefusedNothing}
	if m.s.Stop != nil {
		out.Refused = RefusedStopping
		m.do(out)
		return
	}
	var jobs []int
	for _, name := range m.s.Order {
		svc := m.s.Services[name]
		u := svc.Upgrade
		if u == nil || svc.Serving() == nil || len(e.Services) > 0 && !slices.Contains(e.Services, name) {
			continue
		}
		jobs = append(jobs, u.Jobs...)
		out.Results = append(out.Results, m.abortUpgrade(svc))
		out.Refused = RefusedNot
	}
	for _, j := range m.s.Jobs {
		if len(e.Services) == 0 && slices.Contains(jobs, j.ID) {
			j.Removed = nil // what it would have retired at its end goes on as well
		}
		if out.Refused == RefusedNot && j.Stage != JobRunning {
			out.Job = j.ID
		}
	}
	m.do(out)
}

// abortUpgrade ends the upgrade of one service.
func (m *machine) abortUpgrade(svc *Service) Result {
	if g := svc.gen(svc.Upgrade.Gen); g != nil {
		was := g.Phase
		m.failed(svc, g, abortedReason)
		return Result{Service: svc.Name, Outcome: OutcomeFailed, Generation: g.N, Phase: was, Reason: g.Reason}
	}
	r := Result{Service: svc.Name, Outcome: OutcomeRefused, Reason: abortedReason}
	m.conclude(svc, r)
	return r
}
