package supervisor

import "time"

// Event is one thing that happened, for whoever follows.
type Event struct {
	Time time.Time `json:"time"`
	// Seq numbers the events of one process of handoverd, also over its upgrades: each
	// has one more than the one before it. 0: it is of one stream alone.
	Seq        int           `json:"seq,omitempty"`
	Kind       string        `json:"kind"` // "transition", "note", "reload", "lame duck", "upgrade", "lost", "taken"
	Service    string        `json:"service,omitempty"`
	Generation int           `json:"generation,omitempty"`
	PID        int           `json:"pid,omitempty"`
	From       Phase         `json:"from,omitempty"`
	To         Phase         `json:"to,omitempty"` // "gone" at the end
	Why        string        `json:"why,omitempty"`
	Level      string        `json:"level,omitempty"`
	Text       string        `json:"text,omitempty"`
	Report     *ReloadReport `json:"report,omitempty"`
	// LameDuck is of kind "lame duck": its wait has ended.
	LameDuck *LameDuckStatus `json:"lame_duck,omitempty"`
	// Upgrade is of kind "upgrade": one of handoverd itself has got somewhere.
	Upgrade *UpgradeStatus `json:"upgrade,omitempty"`
	Lost    int            `json:"lost,omitempty"` // events that this follower was too slow for
	// Job is of kind "taken", which comes once the request of a stream was taken: the
	// job that it waits for. Aborted is what an abort has rolled back before.
	Job     int             `json:"job,omitempty"`
	Aborted []ServiceResult `json:"aborted,omitempty"`
}

// PhaseGone is where a generation ends. No living one is in it.
const PhaseGone Phase = "gone"

// Follow returns the events from now on, until end is called or Run returns.
func (s *Supervisor) Follow() (events <-chan Event, end func()) { return s.hub.follow() }

// report writes one line for each generation whose phase has changed, and reports
// whether there was one.
func (l *loop) report(old, next *State) (moved bool) {
	l.reportEnds(old, next)
	for _, name := range next.Order {
		svc := next.Services[name]
		was := old.Services[name]
		for _, g := range svc.Generations {
			var before *Generation
			if was != nil {
				before = was.gen(g.N)
			}
			if before == nil || before.Phase != g.Phase {
				l.transitioned(svc, before, g, g.Phase)
				moved = true
			}
		}
	}
	return moved
}

// reportEnds writes what has ended, before what follows from that.
func (l *loop) reportEnds(old, next *State) {
	for _, name := range next.Order {
		svc, was := next.Services[name], old.Services[name]
		if was != nil && lameOver(was.Lame, svc.Lame) {
			l.lameEnded(svc)
		}
	}
	for _, name := range old.Order {
		svc := next.Services[name]
		for _, g := range old.Services[name].Generations {
			if svc == nil || svc.gen(g.N) == nil {
				l.transitioned(old.Services[name], g, lastKnown(svc, g), PhaseGone)
			}
		}
	}
}

// lastKnown is g with the reason that it ended for in the same step, as one that
// could not be started does: it is in no state with its reason.
func lastKnown(next *Service, g *Generation) *Generation {
	if next == nil || next.Failure == nil || next.Failure.Generation != g.N || g.Reason != "" {
		return g
	}
	last := *g
	last.Reason = next.Failure.Reason
	return &last
}

func (l *loop) transitioned(svc *Service, before, g *Generation, to Phase) {
	e := Event{Kind: "transition", Service: svc.Name, Generation: g.N, PID: g.PID, To: to, Why: g.explain(to)}
	if before != nil {
		e.From = before.Phase
	}
	attrs := []any{"service", svc.Name, "gen", g.N, "from", string(e.From), "to", string(to)}
	if g.PID != 0 {
		attrs = append(attrs, "pid", g.PID)
	}
	if e.Why != "" {
		attrs = append(attrs, "why", e.Why)
	}
	bad := to == PhaseKilling || to == PhaseEnding || to == PhaseDraining || to == PhaseGone && e.From == PhaseStarting
	if bad && g.Reason != "" && g.Reason != "stop" {
		l.log.Warn("generation", attrs...)
	} else {
		l.log.Info("generation", attrs...)
	}
	l.s.hub.send(e)
}

// explain says why the generation is where it is.
func (g *Generation) explain(p Phase) string {
	switch {
	case p == PhaseStarting:
		return string(g.Why)
	case p == PhaseServing:
		return "ready by " + g.ReadyBy
	case p == PhaseDraining && g.Reason != "":
		return g.DrainWhy + ": " + g.Reason
	case p == PhaseDraining:
		return g.DrainWhy
	case g.Reason != "":
		return g.Reason
	case g.Exited:
		return describeStatus(g.Status)
	}
	return ""
}

// failedOutput is the last output of a generation that failed.
func (l *loop) failedOutput(a at) []string { return l.output.tail(a) }

// said notes a child's free text; it changes the status, not the state.
func (l *loop) said(c *child, text string) {
	l.call(func() {
		if l.children[c.at] == c {
			l.texts[c.at] = text
			l.publish()
		}
	})
}
