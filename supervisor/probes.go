package supervisor

import (
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// Probers are told from people by what they do: they ask again and again.
const (
	proberMemory = time.Minute // one that has not asked for longer is forgotten
	proberAsks   = 2           // who has asked that often is a prober
	proberMax    = 256         // of them are known
)

// probers are those who ask for /ready, by address, and what each has seen of the
// lame ducks that wait for them. Any handler may use it.
type probers struct {
	mu    sync.Mutex
	known map[string]*asker
}

type asker struct {
	last time.Time
	asks int
	// failed is how often it was told "not ready" in a lame duck, by its service and begin.
	failed map[lameID]int
}

type lameID struct {
	service string
	began   proc.Instant
}

// asked writes down a question.
func (p *probers) asked(who string, now time.Time) *asker {
	a := p.known[who]
	if a == nil {
		for other, o := range p.known {
			if now.Sub(o.last) > proberMemory {
				delete(p.known, other)
			}
		}
		if len(p.known) >= proberMax {
			return &asker{failed: map[lameID]int{}} // not remembered
		}
		if p.known == nil {
			p.known = map[string]*asker{}
		}
		a = &asker{failed: map[lameID]int{}}
		p.known[who] = a
	}
	a.last = now
	a.asks++
	return a
}

// saw writes down that somebody has asked, and was told "not ready" in these lame
// ducks, each of which wants that to be seen so often. It returns those that all
// probers have now seen often enough.
func (p *probers) saw(who string, now time.Time, ducks map[lameID]int) []lameID {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.asked(who, now)
	var enough []lameID
	for id, count := range ducks {
		a.failed[id]++
		if p.enough(id, count, now) {
			enough = append(enough, id)
		}
	}
	for id := range a.failed { // of lame ducks that are over
		if _, on := ducks[id]; !on {
			delete(a.failed, id)
		}
	}
	return enough
}

// enough reports whether somebody has seen a lame duck often enough, and every prober has.
func (p *probers) enough(id lameID, count int, now time.Time) bool {
	some := false
	for _, a := range p.known {
		switch {
		case a.failed[id] >= count:
			some = true
		case a.asks >= proberAsks && now.Sub(a.last) <= proberMemory:
			return false
		}
	}
	return some
}

// proberOf is the address without the port: a balancer asks on a new connection each time.
func proberOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// probed notes a question for /ready, about one service or all, and tells the loop
// when that was what a lame duck has waited for.
func (s *Supervisor) probed(r *http.Request, service string, ready bool) {
	ducks := map[lameID]int{}
	if snap := s.state.Load(); snap != nil && !ready {
		for name, svc := range snap.state.Services {
			l := svc.Lame
			if l == nil || l.Until != "probes" || l.Seen != 0 || l.Ended != 0 || service != "" && service != name {
				continue
			}
			if spec := svc.stopSpec(); spec != nil {
				ducks[lameID{name, l.Began}] = max(1, spec.Config.Stop.LameDuck.Probes.Count)
			}
		}
	}
	for _, id := range s.probers.saw(proberOf(r), time.Now(), ducks) {
		_ = s.ask(r.Context(), func(l *loop) { l.queue(evProbed{Service: id.service, Began: id.began}) }) // it has ended: nobody waits
	}
}
