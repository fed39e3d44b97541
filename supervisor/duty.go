package supervisor

import (
	"slices"

	"github.com/handoverd/handover/internal/proc"
)

// duty is a hook that the state wants to be carried out now: it is begun when it
// appears in the state, and ended with everything it has started when it is gone
// from it, done or not. So no deadline of a hook is kept but those of the state.
type duty struct {
	Kind    string
	Service string
	Gen     int          // of dutyDrain
	Began   proc.Instant // of what it belongs to: the next lame duck is another duty
}

// The kinds of duties.
const (
	dutyAnnounce = "announce" // the lame duck, to the routing layer
	dutyUndo     = "undo"     // take the announcement back
	dutyAsk      = "ask"      // the balancer, until it says that it has seen the lame duck
	dutyDrain    = "drain"    // in place of the drain signal
)

// duties are what is to be carried out now, in the order of the services.
func (s *State) duties() []duty {
	var out []duty
	for _, name := range s.Order {
		svc := s.Services[name]
		if l := svc.Lame; l != nil && l.Ended == 0 {
			if l.Announced == 0 {
				out = append(out, duty{Kind: dutyAnnounce, Service: name, Began: l.Began})
			}
			if l.Seen == 0 && (l.Until == "exec" || l.Until == "http") {
				out = append(out, duty{Kind: dutyAsk, Service: name, Began: l.Began})
			}
		}
		if svc.Undo != 0 {
			out = append(out, duty{Kind: dutyUndo, Service: name, Began: svc.Undo})
		}
		for _, g := range svc.Generations {
			if g.Hook {
				out = append(out, duty{Kind: dutyDrain, Service: name, Gen: g.N, Began: g.DrainBegan})
			}
		}
	}
	return out
}

// dutyDone records how a hook has ended. One that is not wanted any more is
// passed over.
func (m *machine) dutyDone(e evDuty) {
	if !slices.Contains(m.s.duties(), e.duty) {
		return
	}
	svc := m.s.Services[e.Service]
	switch e.Kind {
	case dutyAnnounce:
		svc.Lame.Announced = m.now
		if e.Fault != "" {
			m.note(svc, nil, "error", "lame duck not announced: %s", e.Fault)
		}
	case dutyAsk:
		if e.Fault == "" {
			svc.Lame.acknowledged(m.now)
		}
	case dutyUndo:
		svc.Undo = 0
		if e.Fault != "" {
			m.note(svc, nil, "error", "announcement not taken back: %s", e.Fault)
		}
	case dutyDrain:
		g := svc.gen(e.Gen)
		g.Hook = false
		if e.Fault != "" {
			m.note(svc, g, "error", "drain hook: %s; SIGTERM follows a kill grace before its deadline", e.Fault)
		} else {
			m.note(svc, g, "info", "drain hook done")
		}
	}
}
