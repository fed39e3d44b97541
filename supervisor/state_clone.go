package supervisor

import (
	"maps"
	"slices"
)

// clone copies all that transition may change. Specs are shared: they are
// never changed once made.
func (s *State) clone() State {
	n := *s
	n.Services = make(map[string]*Service, len(s.Services))
	for name, svc := range s.Services {
		n.Services[name] = svc.clone()
	}
	n.Order, n.Numbers, n.Passed = slices.Clone(s.Order), maps.Clone(s.Numbers), slices.Clone(s.Passed)
	n.Jobs = cloneEach(s.Jobs, func(j *Job) {
		j.Results = slices.Clone(j.Results)
		j.Removed = slices.Clone(j.Removed)
	})
	if s.Stop != nil {
		st := *s.Stop
		st.Cut = slices.Clone(st.Cut)
		n.Stop = &st
	}
	if s.Self != nil {
		up := *s.Self
		n.Self = &up
	}
	if s.Upgraded != nil {
		r := *s.Upgraded
		n.Upgraded = &r
	}
	return n
}

func (svc *Service) clone() *Service {
	c := *svc
	c.Generations = cloneEach(svc.Generations, func(g *Generation) {
		g.Idle, g.Leaving = slices.Clone(g.Idle), slices.Clone(g.Leaving)
	})
	if svc.Budget != nil {
		b := *svc.Budget
		c.Budget = &b
	}
	if svc.Lame != nil {
		l := *svc.Lame
		c.Lame = &l
	}
	if svc.Upgrade != nil {
		u := *svc.Upgrade
		u.Jobs = slices.Clone(u.Jobs)
		c.Upgrade = &u
	}
	if svc.Previous != nil {
		p := *svc.Previous
		c.Previous = &p
	}
	if svc.Restart != nil {
		r := *svc.Restart
		c.Restart = &r
	}
	if svc.Failure != nil {
		f := *svc.Failure
		c.Failure = &f
	}
	return &c
}

func cloneEach[T any](in []*T, deepen func(*T)) []*T {
	if in == nil {
		return nil
	}
	out := make([]*T, len(in))
	for i, p := range in {
		v := *p
		deepen(&v)
		out[i] = &v
	}
	return out
}
