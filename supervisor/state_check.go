package supervisor

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// errState is wrapped by every error of validate.
var errState = errors.New("not a state that handoverd writes")

// validate refuses a state that was read and that transition could not have made:
// what transition relies on, and what would make it panic, run for ever or start
// something that nobody configured. It is called before a state file is used.
func (s *State) validate() error {
	if s.Version != StateVersion {
		return fmt.Errorf("%w: version %d, this build reads %d and %d", errState, s.Version, OldestState, StateVersion)
	}
	if !s.Self.validate() || s.LastUpgrade < 0 {
		return fmt.Errorf("%w: the upgrade of handoverd", errState)
	}
	if len(s.Order) != len(s.Services) {
		return fmt.Errorf("%w: %d services, %d of them in order", errState, len(s.Services), len(s.Order))
	}
	for i, name := range s.Order {
		svc := s.Services[name]
		if svc == nil || svc.Name != name || slices.Contains(s.Order[:i], name) {
			return fmt.Errorf("%w: service %q is in order, but not there or named twice", errState, name)
		}
		if err := svc.validate(s); err != nil {
			return fmt.Errorf("%w: service %q: %w", errState, name, err)
		}
	}
	for i, j := range s.Jobs {
		if j == nil || j.ID <= 0 || j.ID > s.LastJob || i > 0 && j.ID <= s.Jobs[i-1].ID {
			return fmt.Errorf("%w: jobs are not in order", errState)
		}
	}
	if s.Stop != nil && !sound(s.Stop.Began, s.Stop.Hard) {
		return fmt.Errorf("%w: times of the stop", errState)
	}
	return nil
}

// latest time and longest duration that are believed: sums of some of them do
// not overflow.
const soundLimit = math.MaxInt64 / 16

func sound[T ~int64](ts ...T) bool {
	return !slices.ContainsFunc(ts, func(t T) bool { return t < 0 || t > soundLimit })
}

func (svc *Service) validate(s *State) error {
	if !sound(svc.Undo) || !sound(svc.Delay) || svc.LastN < 0 {
		return errors.New("times or numbers")
	}
	if l := svc.Lame; l != nil && (!sound(l.Began, l.Max, l.Announced, l.Seen, l.Ended) || !sound(l.For, l.Then)) {
		return errors.New("times of the lame duck")
	}
	if b := svc.Budget; (b != nil) != (s.Stop != nil && svc.Stop != StopNone) || b != nil && (!sound(b.By) || !(b.Scale >= 0 && b.Scale <= 1)) {
		return errors.New("budget of the stop")
	}
	if svc.Spec == nil && (svc.Good || svc.Restart != nil || len(svc.Generations) > 0 || svc.Upgrade != nil) {
		return errors.New("no spec")
	}
	if err := svc.Spec.validate(); svc.Spec != nil && err != nil {
		return err
	}
	if p := svc.Previous; p != nil {
		if err := p.Spec.validate(); err != nil || p.Gen < 0 || p.Job < 0 {
			return fmt.Errorf("what a rollback goes to: %w", errors.Join(err, errors.New("its numbers")))
		}
	}
	last, coming, serving := 0, 0, 0
	for _, g := range svc.Generations {
		if g == nil || g.N <= last || g.N > svc.LastN {
			return errors.New("generations are not in order")
		}
		last = g.N
		if err := g.validate(); err != nil {
			return fmt.Errorf("generation %d: %w", g.N, err)
		}
		switch g.Phase {
		case PhaseStarting, PhaseBaking:
			coming++
		case PhaseServing:
			serving++
		}
	}
	if coming > 1 || serving > 1 {
		return fmt.Errorf("%d starting and %d serving", coming, serving)
	}
	if svc.Restart != nil && !sound(svc.Restart.At) {
		return errors.New("time of the restart")
	}
	u := svc.Upgrade
	if u == nil {
		return nil
	}
	if len(u.Jobs) == 0 || slices.ContainsFunc(u.Jobs, func(id int) bool { return s.job(id) == nil }) {
		return errors.New("an upgrade that no job asked for")
	}
	if g := svc.gen(u.Gen); u.Gen != 0 && (g == nil || g != svc.coming()) {
		return errors.New("the upgrade is to a generation that does not start")
	}
	return u.Spec.validate()
}

func (g *Generation) validate() error {
	switch g.Phase {
	case PhaseStarting:
		if g.GraceEnds == 0 {
			return errors.New("starts without an init grace")
		}
	case PhaseBaking, PhaseServing:
		if g.PID <= 0 || g.Exited {
			return errors.New("serves without a process")
		}
	case PhaseDraining, PhaseEnding:
		if g.KillAt == 0 {
			return errors.New("drains without a deadline")
		}
		if g.Phase == PhaseDraining && g.PID == 0 {
			return errors.New("drains without a process")
		}
	case PhaseKilling:
	default:
		return fmt.Errorf("phase %q", g.Phase)
	}
	if g.PID < 0 || g.Exited && g.Phase == PhaseStarting {
		return errors.New("its process")
	}
	times := []proc.Instant{
		g.Begun, g.Accepting, g.ReadyAt, g.GateBegan, g.GraceEnds, g.BakeEnds, g.Committed, g.DrainBegan, g.SignalAt, g.TermAt,
		g.KillAt, g.ReleaseBy, g.Killed, g.EmptyBy, g.AgainAt, g.Unheld,
	}
	if !sound(times...) {
		return errors.New("a time that cannot be")
	}
	return g.Spec.validate()
}

// sound: it can be asked, and not without a pause.
func (p *ProbeConfig) sound() bool {
	return isProbe(p.Kind) && (p.Kind != "exec" || len(p.Exec) > 0) && sound(p.Interval, p.Timeout) &&
		p.Interval > 0 && p.Timeout > 0 && p.Successes > 0 && p.Failures > 0
}

func (s *Spec) validate() error {
	if s == nil {
		return errors.New("no spec")
	}
	c := &s.Config
	times := []time.Duration{
		c.Ready.InitGrace, c.Ready.Settle, c.Ready.Bake, c.Ready.AliveFor, c.Retire.ParentShutdown, c.Retire.KillGrace, c.Retire.AnswerTimeout,
		c.Retire.ReleaseTimeout, c.Stop.Deadline, c.Stop.LameDuck.For, c.Stop.LameDuck.Max,
		c.Stop.LameDuck.Probes.Then, c.Stop.Quiet, c.Restart.BackoffMin, c.Restart.BackoffMax,
	}
	for _, p := range []*ProbeConfig{c.Ready.Probe, c.Ready.Gate} {
		if p != nil && !p.sound() {
			return errors.New("a probe of its spec that cannot be")
		}
	}
	if !sound(times...) || c.Retire.MaxDraining < 0 {
		return errors.New("a duration or number of its spec that cannot be")
	}
	return nil
}
