package supervisor

import (
	"slices"
	"time"
)

// crash kills handoverd and starts it again: what the world has on its way to it is lost but for what lies in the
// channels, and some programs end meanwhile.
func (w *world) crash(s *State) evRestored {
	var e evRestored
	w.now = w.now.Add(pick(w, 0, 0, 500*time.Millisecond, 5*time.Second))
	deaf := w.chance(25) // no keeper: the channels are lost
	w.inbox = slices.DeleteFunc(w.inbox, func(e event) bool {
		switch e.(type) {
		case evHello, evNotify, evReady, evAnswered, evExtend:
			return deaf
		case evReload, evStop, evLame, evAbort:
			return false // of those who ask the next one
		}
		return true
	})
	clear(w.hooks)
	for _, name := range s.Order {
		for _, g := range s.Services[name].Generations {
			a := at{name, g.N}
			p := w.programs[a]
			if p == nil || p.exited || g.Exited || g.PID == 0 || !w.kind && w.chance(15) {
				e.Gone = append(e.Gone, a)
				if p != nil {
					p.exited = true
				}
				continue
			}
			if deaf {
				e.Deaf = append(e.Deaf, a)
			}
			if p.spec.shares() { // it is looked at anew
				w.send(evSight{at: a, Polls: !p.blind, Blind: p.blind})
			}
		}
	}
	w.crashes++
	return e
}

// crashed corrects what the checks remember: who asked for what had not begun is gone, and what serves on although its
// drain had begun has no deadline any more.
func (w *walk) crashed(prev, next *State, acts []action) {
	for name, svc := range next.Services { // who was at work on them is gone
		for _, g := range svc.Generations {
			if (g.Phase == PhaseEnding || g.Phase == PhaseKilling) && g.PID != 0 &&
				!slices.ContainsFunc(acts, func(a action) bool { k, ok := a.(acKill); return ok && k.at == at{name, g.N} }) {
				w.fail("%s generation %d is %s after a restore, and nobody ends it", name, g.N, g.Phase)
			}
		}
	}
	for _, j := range prev.Jobs {
		if j.Stage != JobRunning && j.Why != WhyRepair {
			w.ledger.done[j.ID]++
		}
	}
	for name, svc := range next.Services {
		if g := svc.Serving(); g != nil && w.ledger.lives[at{name, g.N}] != nil {
			w.ledger.lives[at{name, g.N}].bound = 0
		}
	}
	w.seen["restored"] = true
	if prev.Stop != nil {
		w.seen["restored in a stop"] = true
		for name, svc := range prev.Services {
			was, now := svc.in(PhaseDraining), next.Services[name].Serving()
			if was != nil && now != nil && was.N == now.N {
				w.seen["serves on after a stop"] = true
			}
		}
	}
}
