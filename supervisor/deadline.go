package supervisor

import "github.com/handoverd/handover/internal/proc"

// nextDeadline is the earliest time after now at which something falls due, or
// 0. It is what the loop's one timer is set to. Now is the time of the last
// transition, which has done all that was due then.
func nextDeadline(s *State, now proc.Instant) proc.Instant {
	var next proc.Instant
	consider := func(ts ...proc.Instant) {
		for _, t := range ts {
			if t > now && (next == 0 || t < next) {
				next = t
			}
		}
	}
	for _, svc := range s.Services {
		if svc.Restart != nil {
			consider(svc.Restart.At)
		}
		consider(svc.lameDeadlines()...)
		consider(svc.steadyAt())
		for _, g := range svc.Generations {
			consider(g.deadlines()...)
			if g.Untold && g.Held && len(g.Leaving) == 0 {
				consider(svc.lastTold(g))
			}
		}
		if s.Stop != nil && !s.Stop.Exited {
			switch svc.Stop {
			case StopWaiting:
				consider(svc.latest(s.Stop))
			case StopHolding:
				consider(svc.holdEnds(s.Stop))
			}
		}
	}
	if s.Stop != nil && !s.Stop.Exited {
		consider(s.Stop.Hard)
	}
	if s.Self != nil {
		consider(s.Self.Until)
		if s.Self.Checked {
			consider(s.Self.restarts())
		}
	}
	return next
}

// deadlines are the times at which something about the generation falls due.
func (g *Generation) deadlines() []proc.Instant {
	switch g.Phase {
	case PhaseStarting:
		ts := []proc.Instant{g.GraceEnds}
		if g.ReadyAt != 0 {
			ts = append(ts, g.ReadyAt.Add(g.Spec.Config.Ready.Settle))
		} else if g.PID != 0 {
			alive := g.Spec.Config.Ready.AliveFor
			if alive == 0 {
				alive = aliveDefault
			}
			ts = append(ts, g.Begun.Add(alive))
			if g.Accepting != 0 {
				ts = append(ts, g.Accepting.Add(acceptingHold))
			}
		}
		return ts
	case PhaseBaking:
		return []proc.Instant{g.BakeEnds}
	case PhaseDraining:
		ts := []proc.Instant{g.KillAt, g.TermAt, g.SignalAt}
		if len(g.Leaving) > 0 {
			ts = append(ts, g.EmptyBy)
		}
		if g.Release == ReleasePending && !g.Untold {
			ts = append(ts, g.ReleaseBy, g.AgainAt)
		}
		return ts
	case PhaseEnding:
		return []proc.Instant{g.KillAt}
	case PhaseKilling:
		if !g.Stuck {
			return []proc.Instant{g.Killed.Add(stuckAfter)}
		}
	}
	return nil
}
