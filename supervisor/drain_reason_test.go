package supervisor

import (
	"testing"
	"time"

	"github.com/handoverd/handover/internal/wire"
)

// A program tells a stop from a hand-over by the reason of the drain message, so the
// two ends have to mean the same by it.
func TestDrainMessageSaysWhetherTheServiceEnds(t *testing.T) {
	// told are the reasons that an event has sent.
	told := func(s *script, e event) (reasons []string) {
		var acts []action
		s.s, acts = transition(s.s, e, s.now)
		for _, a := range acts {
			if d, ok := a.(acDrain); ok {
				reasons = append(reasons, d.Why)
			}
		}
		return reasons
	}
	want := func(got []string, reasons ...string) {
		t.Helper()
		if len(got) != len(reasons) {
			t.Fatalf("told %q, want %q", got, reasons)
		}
		for i := range got {
			if got[i] != reasons[i] {
				t.Errorf("told %q, want %q", got, reasons)
			}
		}
	}
	stop := serving(t, web()).send(evStop{}).s.Services["web"].Generations[0]
	if stop.DrainWhy != wire.ReasonStop {
		t.Errorf("a stop is told as %q", stop.DrainWhy)
	}
	removed := serving(t, web(), testSpec("app")).reload().prepared(web()).up(g("web", 2)).s.Services["app"].Generations[0]
	if removed.DrainWhy != wire.ReasonRemoved {
		t.Errorf("the end of a service that was removed is told as %q", removed.DrainWhy)
	}
	s := serving(t, web()).reload().prepared(web())
	s.send(evSpawned{at: g("web", 2), PID: 8}, evHello{g("web", 2)}, evReady{g("web", 2), "native"}, evSight{at: g("web", 2), Polls: true})
	s.now = s.now.Add(100 * time.Millisecond)
	want(told(s, evTick{}), "reload")
	want(told(s, evStop{Within: time.Second}), wire.ReasonStop) // it drains on, under the deadline of the stop
}
