package supervisor

import (
	"fmt"
	"slices"
	"strings"
)

// order puts the services into the order they start in: each after those
// it names in After, otherwise as the file has them. Unknown names and
// circles are reported, and the order of the file is then left.
func (b *builder) order(c *Config) {
	byName := map[string]*ServiceConfig{}
	var names []string
	for _, s := range c.Services {
		byName[s.Name] = s
		names = append(names, s.Name)
	}
	good := true
	for _, s := range c.Services {
		good = b.checkAfter(s, names) && good
	}
	if !good {
		return
	}
	var sorted []*ServiceConfig
	done := map[string]bool{}
	for len(sorted) < len(c.Services) {
		i := slices.IndexFunc(c.Services, func(s *ServiceConfig) bool {
			return !done[s.Name] && !slices.ContainsFunc(s.After, func(a string) bool { return !done[a] })
		})
		if i < 0 {
			b.circle(c.Services, byName, done)
			return
		}
		done[c.Services[i].Name] = true
		sorted = append(sorted, c.Services[i])
	}
	c.Services = sorted
}

func (b *builder) checkAfter(s *ServiceConfig, names []string) bool {
	path := []string{"service", s.Name, "after"}
	for i, a := range s.After {
		var err error
		switch {
		case a == s.Name:
			err = fmt.Errorf("%q is this service itself", a)
		case !slices.Contains(names, a):
			err = fmt.Errorf("there is no service %q%s", a, didYouMean(a, names))
		case slices.Contains(s.After[:i], a):
			err = fmt.Errorf("%q is named twice", a)
		}
		if err != nil {
			b.src.fail(path, err)
			return false
		}
	}
	return true
}

// circle walks from any service that cannot start along what it waits for
// until it meets one again, and reports that ring.
func (b *builder) circle(services []*ServiceConfig, byName map[string]*ServiceConfig, done map[string]bool) {
	i := slices.IndexFunc(services, func(s *ServiceConfig) bool { return !done[s.Name] })
	var walk []string
	for name := services[i].Name; ; {
		if start := slices.Index(walk, name); start >= 0 {
			ring := append(walk[start:], name)
			b.src.fail([]string{"service", name, "after"}, fmt.Errorf("a circle: %s", strings.Join(ring, " after ")))
			return
		}
		walk = append(walk, name)
		after := byName[name].After
		name = after[slices.IndexFunc(after, func(a string) bool { return !done[a] })]
	}
}
