package supervisor

import (
	"slices"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// LameDuck is a time in which a service still serves while the routing layer is
// told to go elsewhere. It is over when its wait has ended, and stays in the
// state: /ready is 503 until it is called off.
type LameDuck struct {
	Began     proc.Instant  `json:"began"`
	Until     string        `json:"until"`               // the loop that ends the wait: "timer", "probes", "exec", "http"
	For       time.Duration `json:"for,omitempty"`       // of the timer, counted from Announced
	Then      time.Duration `json:"then,omitempty"`      // the rest of the balancer's way, counted from Seen
	Max       proc.Instant  `json:"max"`                 // the wait ends then, whatever was seen
	Announced proc.Instant  `json:"announced,omitempty"` // the announcement was made, or has failed
	Seen      proc.Instant  `json:"seen,omitempty"`      // the balancer has seen it, or has said so
	Ended     proc.Instant  `json:"ended,omitempty"`
	By        string        `json:"by,omitempty"` // Until, or "max", "stop now"
}

// How a wait ends that its loop did not end.
const (
	lameByMax = "max"
	lameByNow = "stop now"
)

// undoLimit is how long an announcement may take to be taken back.
const undoLimit = 10 * time.Second

func (l *LameDuck) acknowledged(now proc.Instant) {
	if l.Seen == 0 && l.Ended == 0 {
		l.Seen = now
	}
}

// ends is when its loop ends the wait, as far as that is known, and Max if not.
func (l *LameDuck) ends() (at proc.Instant, by string) {
	switch {
	case l.Until == "timer" && l.Announced != 0:
		at = l.Announced.Add(l.For)
	case l.Until != "timer" && l.Seen != 0:
		at = l.Seen.Add(l.Then)
	default:
		return l.Max, lameByMax
	}
	if at > l.Max {
		return l.Max, lameByMax
	}
	return at, l.Until
}

// shorten leaves a share of what is left of the wait.
func (l *LameDuck) shorten(now proc.Instant, share float64) {
	rest := func(from proc.Instant, d time.Duration) time.Duration {
		if from == 0 {
			return scaled(d, share)
		}
		done := now.Sub(from)
		return min(d, done+scaled(max(0, d-done), share))
	}
	l.For, l.Then = rest(l.Announced, l.For), rest(l.Seen, l.Then)
	l.Max = min(l.Max, now.Add(scaled(max(0, l.Max.Sub(now)), share)))
}

func scaled(d time.Duration, share float64) time.Duration { return time.Duration(float64(d) * share) }

// lameDuck takes a request to begin or to call off the lame duck of services.
func (m *machine) lameDuck(e evLame) {
	names := e.Services
	if len(names) == 0 {
		for _, name := range m.s.Order {
			if !m.s.Services[name].Removed {
				names = append(names, name)
			}
		}
	}
	refused := RefusedNot
	switch {
	case e.Off && m.s.Stop != nil:
		refused = RefusedStopping
	case len(names) == 0, slices.ContainsFunc(names, func(name string) bool {
		return m.s.Services[name] == nil || m.s.Services[name].Removed
	}):
		refused = RefusedUnknown
	}
	m.do(acLamed{Request: e.Request, Refused: refused})
	if refused != RefusedNot {
		return
	}
	for _, name := range names {
		switch svc := m.s.Services[name]; {
		case !e.Off && svc.Lame == nil:
			m.beginLame(svc)
		case e.Off && svc.Lame != nil:
			m.note(svc, nil, "info", "lame duck called off")
			svc.Lame = nil
			m.undo(svc)
		}
	}
}

// undo has what was announced taken back, where that can be.
func (m *machine) undo(svc *Service) {
	if spec := svc.stopSpec(); spec != nil && spec.Config.Stop.Announce.undoes() {
		svc.Undo = m.now
	}
}

// beginLame tells the routing layer and those that speak the child protocol.
func (m *machine) beginLame(svc *Service) {
	var cfg LameDuckConfig
	announces := false
	if spec := svc.stopSpec(); spec != nil {
		cfg, announces = spec.Config.Stop.LameDuck, !spec.Config.Stop.Announce.empty()
	}
	l := &LameDuck{Began: m.now, Until: cfg.Until, For: cfg.For, Max: m.now.Add(cfg.Max)}
	switch l.Until {
	case "probes":
		l.Then = cfg.Probes.Then
	case "exec", "http":
	default:
		l.Until, l.Max = "timer", max(l.Max, m.now.Add(cfg.For))
	}
	if !announces {
		l.Announced = m.now
	}
	svc.Lame, svc.Undo = l, 0
	if end, _ := l.ends(); end <= m.now {
		return // there is none to speak of
	}
	m.note(svc, nil, "info", "lame duck: serves on, not ready any more")
	for _, g := range svc.Generations {
		m.tellLame(svc, g)
	}
}

func (m *machine) tellLame(svc *Service, g *Generation) {
	if g.Hello && (g.Phase == PhaseBaking || g.Phase == PhaseServing) {
		m.do(acLame{ref(svc, g)})
	}
}

// serves follows a commit: the new one is told of a lame duck that goes on, and
// what the stop of an earlier handoverd has announced is taken back.
func (m *machine) serves(svc *Service, g *Generation, first bool) {
	switch {
	case svc.Lame != nil:
		m.tellLame(svc, g)
	case first:
		m.undo(svc)
	}
}

// lame carries on the lame duck of a service, and the end of one.
func (m *machine) lame(svc *Service) bool {
	if svc.Undo != 0 && m.due(svc.Undo.Add(undoLimit)) {
		svc.Undo = 0
		m.note(svc, nil, "warn", "the announcement was not taken back within %v", undoLimit)
		return true
	}
	l := svc.Lame
	if l == nil || l.Ended != 0 {
		return false
	}
	at, by := l.ends()
	switch {
	case m.s.Stop != nil && m.s.Stop.Now:
		l.By = lameByNow
	case m.now >= at:
		l.By = by
	default:
		return false
	}
	l.Ended = m.now
	return true
}

// lameOver reports whether a wait, which was one, ended between two states.
func lameOver(before, after *LameDuck) bool {
	return after != nil && after.Ended > after.Began && (before == nil || before.Ended == 0 || before.Began != after.Began)
}

// deadlines are the times at which something about it falls due.
func (svc *Service) lameDeadlines() []proc.Instant {
	var ts []proc.Instant
	if svc.Undo != 0 {
		ts = append(ts, svc.Undo.Add(undoLimit))
	}
	if svc.Lame != nil && svc.Lame.Ended == 0 {
		at, _ := svc.Lame.ends()
		ts = append(ts, at)
	}
	return ts
}
