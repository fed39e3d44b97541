//go:build linux

package handover_test

import (
	"strings"
	"testing"
	"time"

	"github.com/handoverd/handover/supervisor"
)

// A new generation that fails. One that uses package handover has accepted nothing by then and loses nothing; one
// that knows only the descriptor accepts from the begin, beside the old one, and loses what it has accepted.
var failingStarts = []struct {
	name, mode, ready, env string
	accepts                bool
	reason                 string
}{
	{name: "crash-in-init", mode: "crash-init", reason: "exit status 3 before it was ready"},
	{name: "crash-in-init-accepting", mode: "crash-accepting", accepts: true, reason: "exit status 3 before it was ready"},
	{name: "hang-past-the-grace", mode: "hang-init", ready: "init_grace = \"700ms\"", reason: "init grace of 700ms is over"},
	{name: "hang-past-the-grace-accepting", mode: "hang-accepting", accepts: true, ready: "init_grace = \"2s\"", reason: "init grace of 2s is over"},
	{name: "die-in-settle", mode: "ready-then-die", ready: "settle = \"20s\"", reason: "inside settle"},
	{name: "die-in-settle-accepting", mode: "raw-ready-then-die", accepts: true, ready: "settle = \"20s\"", reason: "inside settle"},
}

func TestScenarioFailingStart(t *testing.T) {
	for _, f := range failingStarts {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			good := childService{}
			if f.accepts {
				good = childService{mode: "accept-notify", when: "notify"}
			}
			bad := good
			bad.mode, bad.ready, bad.env = f.mode, f.ready, `TESTCHILD_DELAY = "600ms"`
			s := newScene(t, good)
			fresh := s.fresh(s.address("web", "http"))
			var deaths []dead
			for generation := 2; generation <= 3; generation++ {
				s.configure(bad)
				s.fails(f.reason)
				if f.accepts {
					deaths = append(deaths, dead{"web", generation})
				}
				s.only("web", 1)
				fresh.more(50)
			}
			s.configure(good)
			if got := s.MustReload().Results[0].Generation; got != 4 {
				t.Errorf("generation %d serves, want 4: numbers are used up by attempts", got)
			}
			fresh.sees(4)
			s.only("web", 4)
			r := fresh.end(deaths...)
			for generation := 2; generation <= 3; generation++ {
				if n := r.Generations[generation]; f.accepts != (n > 0) {
					t.Errorf("generation %d, which failed, has answered %d requests", generation, n)
				}
			}
			s.Stop()
		})
	}
}

// Three SIGHUPs in a row are two reloads: one under way, and one remembered.
func TestScenarioThreeHUPs(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{ready: `settle = "300ms"`})
	fresh, posts := s.fresh(s.address("web", "http")), s.posts(s.address("web", "http"))
	s.HUP()
	s.reaches("web", 2, supervisor.PhaseStarting)
	s.HUP()
	s.HUP()
	fresh.sees(3)
	posts.sees(3)
	s.only("web", 3)
	if got := s.MustReload().Results[0].Generation; got != 4 {
		t.Errorf("the reload after three SIGHUPs is generation %d, want 4", got)
	}
	fresh.more(50)
	fresh.end()
	posts.end()
	s.Stop()
}

// A program that ignores its drain signal accepts beside the new one until its deadline, and is killed then.
func TestScenarioDrainIgnored(t *testing.T) {
	t.Parallel()
	p := childService{
		mode: "raw-ignore-drain", when: "accepting",
		retire: "parent_shutdown = \"2500ms\"\nkill_grace = \"500ms\"\nrelease_timeout = \"500ms\"",
	}
	s := newScene(t, p)
	fresh := s.fresh(s.address("web", "http"))
	p.mode = "accept-raw"
	s.configure(p)
	r, err := s.Reload(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	// The exit code of the command is 0, or 4 with --strict: both are made of these two.
	if !r.OK() || r.Released() || r.Results[0].Release != supervisor.ReleaseNo || r.Results[0].Old != 1 {
		t.Errorf("the reload answers %+v, want serving, not released", r)
	}
	for _, g := range s.service("web").Generations {
		if g.Generation == 1 && g.Release != supervisor.ReleaseNo {
			t.Errorf("the status says %q of the release of generation 1", g.Release)
		}
	}
	killed := s.reaches("web", 1, supervisor.PhaseKilling)
	if !strings.Contains(killed.Why, "deadline of its drain") {
		t.Errorf("generation 1 is killed because of %q", killed.Why)
	}
	s.only("web", 2)
	fresh.more(50)
	s.logs("web", 1, "serving, not released")
	s.tells("web", 1, "deadline of its drain")
	fresh.end(dead{"web", 1})
	s.Stop()
}

// With on_no_release = "terminate" the ladder is climbed at once, and not at the deadline.
func TestScenarioDrainIgnoredTerminate(t *testing.T) {
	t.Parallel()
	p := childService{
		mode: "raw-ignore-drain", when: "accepting",
		retire: "parent_shutdown = \"10m\"\nkill_grace = \"500ms\"\nrelease_timeout = \"500ms\"\non_no_release = \"terminate\"",
	}
	s := newScene(t, p)
	fresh := s.fresh(s.address("web", "http"))
	p.mode = "accept-raw"
	s.configure(p)
	if r, err := s.Reload(limited(t)); err != nil || !r.OK() || r.Results[0].Release != supervisor.ReleaseNo {
		t.Errorf("the reload answers %+v, %v, want serving, not released", r, err)
	}
	drains := s.reaches("web", 1, supervisor.PhaseDraining)
	killed := s.reaches("web", 1, supervisor.PhaseKilling)
	// An event comes when the state has been written, which takes a while: that of the drain may be late.
	const late = 100 * time.Millisecond
	if took := killed.Time.Sub(drains.Time); took < time.Second-late {
		t.Errorf("killed %v after its drain began, before release_timeout and kill_grace were over", took)
	}
	s.only("web", 2)
	fresh.more(50)
	s.tells("web", 1, "not released")
	fresh.end(dead{"web", 1})
	s.Stop()
}
