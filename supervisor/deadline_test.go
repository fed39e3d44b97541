package supervisor

import (
	"testing"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// TestHeldDeadline: a generation that is held is told by its own kill_grace, which that of its service, of another
// configuration, may differ from.
func TestHeldDeadline(t *testing.T) {
	spec := func(grace time.Duration) *Spec {
		s := &Spec{}
		s.Config.Retire.KillGrace = grace
		return s
	}
	at := func(d time.Duration) proc.Instant { return proc.Instant(0).Add(d) }
	for _, scale := range []float64{1, 0.5} {
		g := &Generation{N: 1, Spec: spec(2 * time.Second), Phase: PhaseDraining, Untold: true, Held: true, KillAt: at(10 * time.Second)}
		s := &State{Services: map[string]*Service{"web": {
			Name: "web", Spec: spec(5 * time.Second), Generations: []*Generation{g}, Budget: &StopBudget{Scale: scale},
		}}}
		want := at(10*time.Second - time.Duration(scale*float64(2*time.Second)))
		if got := nextDeadline(s, at(time.Second)); got != want {
			t.Errorf("scale %v: the next deadline is %v, want %v", scale, got, want)
		}
	}
}
