package supervisor

import (
	"fmt"
	"slices"
)

// skip ends the reloads in which a service has failed that this one comes after.
// The first start is not ended by that: it waits until that service serves.
func (m *machine) skip(svc *Service) bool {
	u := svc.Upgrade
	for _, dep := range u.Spec.Config.After {
		for _, id := range u.Jobs {
			j := m.s.job(id)
			if j == nil || j.First {
				continue
			}
			if r := j.result(dep); r != nil && r.Outcome.bad() {
				var first []int
				if j := m.s.job(u.Jobs[0]); j != nil && j.First {
					first, u.Jobs = u.Jobs[:1], u.Jobs[1:]
				}
				m.conclude(svc, Result{Service: svc.Name, Outcome: OutcomeSkipped, Reason: fmt.Sprintf("comes after %s, which failed", dep)})
				if first != nil {
					u.Jobs, svc.Upgrade = first, u
				}
				return true
			}
		}
	}
	return false
}

// bad reports whether the service did not get what the reload wanted for it.
func (o Outcome) bad() bool {
	return o == OutcomeFailed || o == OutcomeSkipped || o == OutcomeRefused
}

// dependency is the service that this one has to wait for, or "": one that the
// same reload upgrades, and at the first start one that does not serve yet.
func (m *machine) dependency(svc *Service) string {
	u := svc.Upgrade
	newest := u.Jobs[len(u.Jobs)-1]
	j := m.s.job(u.Jobs[0])
	for _, dep := range u.Spec.Config.After {
		d := m.s.Services[dep]
		if d == nil || m.overtaken(svc, d) {
			continue
		}
		if d.Upgrade != nil && slices.Contains(d.Upgrade.Jobs, newest) || j != nil && j.First && d.Serving() == nil && d.wanted() {
			return dep
		}
	}
	return ""
}

// wanted reports whether something is on its way to serve.
func (svc *Service) wanted() bool {
	return svc.Upgrade != nil || svc.Restart != nil || svc.coming() != nil
}

// overtaken reports whether a newer reload wants dep to come after the service,
// and no more before it. To wait for each other would be for ever.
func (m *machine) overtaken(svc, dep *Service) bool {
	u, d := svc.Upgrade, dep.Upgrade
	return d != nil && d.Jobs[len(d.Jobs)-1] > u.Jobs[len(u.Jobs)-1] && m.comesAfter(dep, svc.Name, nil)
}

// comesAfter follows the after keys of what is wanted.
func (m *machine) comesAfter(svc *Service, name string, seen []string) bool {
	if svc == nil || svc.Upgrade == nil || slices.Contains(seen, svc.Name) {
		return false
	}
	seen = append(seen, svc.Name)
	return slices.ContainsFunc(svc.Upgrade.Spec.Config.After, func(dep string) bool {
		return dep == name || m.comesAfter(m.s.Services[dep], name, seen)
	})
}
