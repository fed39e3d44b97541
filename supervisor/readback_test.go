package supervisor

import (
	"encoding/json"
	"maps"
	"slices"
)

// slimJSON is the state as it is written, but for its specs, which are by far the
// largest part of it. It is what a failure shows.
func slimJSON(s *State) []byte {
	c := s.clone()
	var digests []byte
	for _, name := range slices.Sorted(maps.Keys(c.Services)) {
		svc := c.Services[name]
		for _, p := range svc.specs() {
			if *p != nil {
				digests = append(digests, (*p).Digest...)
			}
			digests = append(digests, '|')
			*p = nil
		}
	}
	return append(append(mustJSON(&c), '\n'), digests...)
}

// specs are the places of the service that hold a spec.
func (svc *Service) specs() []**Spec {
	places := []**Spec{&svc.Spec}
	if svc.Upgrade != nil {
		places = append(places, &svc.Upgrade.Spec)
	}
	for _, g := range svc.Generations {
		places = append(places, &g.Spec)
	}
	return places
}

// readBack is next after JSON. One time of 64, another one in each walk, it is the file
// as handoverd writes it. Else it is put together: the value of a part depends on the text of this part
// alone, so one that has not changed since prev, of which w.read was read, is taken
// from there, and so are the specs, which never change.
func (w *walk) readBack(prev, next *State) (State, error) {
	if (w.seed+uint64(w.steps))%64 == 0 {
		var read State
		if err := json.Unmarshal(mustJSON(next), &read); err != nil {
			return read, err
		}
		return read, read.validate()
	}
	read, changed := w.read, false
	if !sameTop(prev, next) {
		top := *next
		top.Services = nil
		read, changed = State{}, true
		if err := json.Unmarshal(mustJSON(&top), &read); err != nil {
			return read, err
		}
	}
	read.Services = make(map[string]*Service, len(next.Services))
	for name, svc := range next.Services {
		back, news, err := readService(prev.Services[name], svc, w.read.Services[name])
		if err != nil {
			return read, err
		}
		read.Services[name], changed = back, changed || news
	}
	if !changed && len(prev.Services) == len(next.Services) {
		return w.read, nil
	}
	return read, read.validate()
}

// readService is svc after JSON; old is what it was before, and read is old after
// JSON. It reports whether it has changed.
func readService(old, svc, read *Service) (back *Service, changed bool, err error) {
	if old == nil {
		old, read = &Service{}, &Service{}
	}
	back = read
	if !sameService(old, svc) {
		c := *svc
		c.Generations, c.Spec = nil, nil
		if c.Upgrade != nil {
			u := *c.Upgrade
			u.Spec, c.Upgrade = nil, &u
		}
		back, changed = new(Service), true
		if err := json.Unmarshal(mustJSON(&c), back); err != nil {
			return nil, true, err
		}
		back.Spec = svc.Spec
		if back.Upgrade != nil {
			back.Upgrade.Spec = svc.Upgrade.Spec
		}
	}
	var list []*Generation
	for _, g := range svc.Generations {
		if was := old.gen(g.N); was != nil && same(was, g) {
			list = append(list, read.gen(g.N))
			continue
		}
		c := *g
		c.Spec, changed = nil, true
		b := new(Generation)
		if err := json.Unmarshal(mustJSON(&c), b); err != nil {
			return nil, true, err
		}
		b.Spec = g.Spec
		list = append(list, b)
	}
	if !changed && len(svc.Generations) == len(old.Generations) {
		return read, false, nil
	}
	whole := *back
	whole.Generations = list
	return &whole, true, nil
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
