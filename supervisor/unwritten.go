package supervisor

import (
	"fmt"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// tryAgain is how long after a write of the state that failed, or after descriptors
// that could not be sent to the keeper, there is another turn, if there was none before.
const tryAgain = time.Second

// decide is the first half of a turn: what follows from the event, and the state
// written down. Where it cannot be written, for want of space or descriptors, an
// upgrade does not go on: nothing is spawned, told to go or committed beside a
// generation that serves, since a handoverd that came after this one would not know
// of it. All else is done all the same: a program that has died is started again,
// and a deadline fires, whatever the disk is like.
func (l *loop) decide(e event, now proc.Instant) []action {
	old := l.state
	next, actions := transition(old, e, now)
	err := l.save(&next)
	if err == nil {
		return l.decided(next, actions)
	}
	reason := fmt.Sprintf("the state could not be written: %v", err)
	if given := upgraded(&old, &next); len(given) > 0 {
		// The commit is not taken back, it does not come about.
		next, actions = old, nil
		for _, a := range given {
			next, actions = follow(next, actions, evUnwritten{a, reason}, now)
		}
		next, actions = follow(next, actions, e, now)
	}
	var kept []action
	var late []event
	for _, a := range actions {
		if g, ok := begins(a); ok && beside(&next, g) {
			late = append(late, evUnwritten{g, reason})
			continue
		}
		kept = append(kept, a)
	}
	for _, e := range late {
		next, kept = follow(next, kept, e, now)
	}
	_ = l.save(&next) // noted, and tried again
	return l.decided(next, kept)
}

func (l *loop) decided(next State, actions []action) []action {
	l.state = next
	return actions
}

// follow is transition for one more event of the same turn.
func follow(s State, actions []action, e event, now proc.Instant) (State, []action) {
	next, more := transition(s, e, now)
	return next, append(actions, more...)
}

// upgraded are the generations that take the place of another one between the two
// states.
func upgraded(old, next *State) []at {
	var out []at
	for _, name := range next.Order {
		before := old.Services[name]
		if before == nil || before.Serving() == nil {
			continue
		}
		if g := next.Services[name].Serving(); g != nil && g.N != before.Serving().N {
			out = append(out, at{name, g.N})
		}
	}
	return out
}

// begins is the generation that the action has spawned or told to go, if it does.
func begins(a action) (at, bool) {
	switch a := a.(type) {
	case acSpawn:
		return a.at, true
	case acGo:
		return a.at, true
	}
	return at{}, false
}

// beside reports whether the generation is one that another one serves beside.
func beside(s *State, a at) bool {
	svc := s.Services[a.Service]
	return svc != nil && svc.Serving() != nil && svc.Serving().N != a.Gen
}

// unwritten gives up a generation of which the state file cannot tell.
func (m *machine) unwritten(e evUnwritten) {
	svc, g := m.find(e.at)
	if g == nil {
		return
	}
	if g.Phase == PhaseStarting || g.Phase == PhaseBaking {
		m.failed(svc, g, e.Reason)
	}
	if g.PID == 0 { // it was not spawned
		m.drop(svc, g)
	}
}
