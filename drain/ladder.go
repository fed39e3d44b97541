package drain

import (
	"slices"
	"syscall"
	"time"
)

// AnswerTimeout is the default of how long a generation that speaks the child
// protocol has to answer the drain message that it has received before it gets
// the drain signal as well.
const AnswerTimeout = time.Second

// An Action is what a step of a ladder does.
type Action string

// The actions, in the order in which a ladder takes them.
const (
	// Message sends the drain message of the child protocol.
	Message Action = "message"

	// Signal sends Step.Signal to the main process.
	Signal Action = "signal"

	// Kill sends SIGKILL to the process group and everything it started.
	Kill Action = "kill"
)

// A Step is one rung. It can be stored as JSON.
type Step struct {
	// After is when, counted from the begin of the drain. 0 is at once.
	After time.Duration `json:"after"`

	// Action is what.
	Action Action `json:"action"`

	// Signal is which signal; SIGKILL for Kill, 0 for Message.
	Signal syscall.Signal `json:"signal,omitempty"`

	// UnlessAnswered means that the step is left out when the generation has
	// answered the drain message by then. handoverd counts it from when the
	// message was received: who has not run is not silent.
	UnlessAnswered bool `json:"unless_answered,omitempty"`
}

// A Ladder is the way down of one generation: steps in order of time, the last
// one Kill. It is data; who walks it sends the signals.
type Ladder []Step

// Reload is the ladder of an old generation after a commit: the drain signal at
// once, SIGTERM at parentShutdown - killGrace unless that was the drain signal,
// SIGKILL at parentShutdown, whatever it does. Times that Budget refuses give a
// ladder all the same, with no step before 0 or after parentShutdown.
//
// If drainSignal is SIGKILL, killing is the drain and the only step.
func Reload(drainSignal syscall.Signal, parentShutdown, killGrace time.Duration) Ladder {
	return ladder(drainSignal, parentShutdown, killGrace)
}

// Stop is the ladder of the serving generation when its service stops. deadline
// is what is left of the stop's deadline when the drain begins: a lame duck
// phase and a hold have been taken off it. The steps are those of Reload.
func Stop(deadline, killGrace time.Duration, drainSignal syscall.Signal) Ladder {
	return ladder(drainSignal, deadline, killGrace)
}

func ladder(drain syscall.Signal, limit, grace time.Duration) Ladder {
	limit = max(limit, 0)
	kill := Step{After: limit, Action: Kill, Signal: syscall.SIGKILL}
	if drain == syscall.SIGKILL {
		kill.After = 0
		return Ladder{kill}
	}
	l := Ladder{{Action: Signal, Signal: drain}}
	if drain != syscall.SIGTERM {
		at := min(max(limit-grace, 0), limit)
		l = append(l, Step{After: at, Action: Signal, Signal: syscall.SIGTERM})
	}
	return append(l, kill)
}

// Native returns the ladder for a generation that said hello: the drain message
// at once, and the drain signal only if no answer came within answerTimeout; 0 or
// less: not at all, so that SIGTERM and SIGKILL are what is left for one that
// does not listen. Sending both at once would end a program that has no handler
// for the signal, with everything it has in flight. l itself is not changed.
//
// SIGTERM stands killGrace before the kill also where it is the drain signal,
// since one that answered has not had it. What such a generation is told as its
// deadline is therefore the time of that step, and not of the kill.
func (l Ladder) Native(killGrace, answerTimeout time.Duration) Ladder {
	native := Ladder{{Action: Message}}
	for i, s := range l {
		if s.Action == Kill && i == 1 {
			at := min(max(s.After-killGrace, 0), s.After)
			native = append(native, Step{After: at, Action: Signal, Signal: syscall.SIGTERM})
		}
		native = append(native, s)
	}
	switch {
	case len(l) < 2:
	case answerTimeout <= 0:
		return slices.Delete(native, 1, 2)
	default:
		native[1].UnlessAnswered = true
		native[1].After = min(answerTimeout, native[2].After)
	}
	return native
}

// Deadline returns when the last step is due, counted from the begin of the
// drain; 0 for an empty ladder.
func (l Ladder) Deadline() time.Duration {
	if len(l) == 0 {
		return 0
	}
	return l[len(l)-1].After
}

// Due returns the steps that are due at elapsed among those from number taken
// on, and how many are taken with them. Steps that an answer makes needless are
// counted and not returned. It holds no state, so a supervisor that was away
// catches up by asking once.
func (l Ladder) Due(elapsed time.Duration, taken int, answered bool) (due []Step, now int) {
	now = max(taken, 0)
	for now < len(l) && l[now].After <= elapsed {
		if !l[now].UnlessAnswered || !answered {
			due = append(due, l[now])
		}
		now++
	}
	return due, now
}

// Next returns when the first step from number taken on is due, counted from
// the begin of the drain. ok is false when all have been taken.
func (l Ladder) Next(taken int) (at time.Duration, ok bool) {
	taken = max(taken, 0)
	if taken >= len(l) {
		return 0, false
	}
	return l[taken].After, true
}
