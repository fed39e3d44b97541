//go:build linux

package handover_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/supervisor"
)

// The serving program is killed, again and again; in full 100 times, one each 2 s, under 2,000 new connections a second. The port
// stays open: new connections wait for the next generation.
func TestScenarioKilled(t *testing.T) {
	times, rate, between := 10, 300, 30 // answers between two kills
	if full() {
		times, rate, between = 100, 2000, 4000
	} else {
		t.Parallel()
	}
	s := newScene(t, childService{
		mode: "accept-notify", when: "notify", ready: `settle = "20ms"`, restart: "backoff_min = \"20ms\"\nbackoff_max = \"20ms\"",
	})
	fresh := s.load("fresh", drill.Load{
		Network: "tcp", Address: s.address("web", "http"), Mode: drill.ModeFresh, Rate: float64(rate), Clients: 10 * rate,
		Delay: 2 * time.Millisecond, Spread: 20 * time.Millisecond, Duration: time.Hour,
	})
	overflows := listenOverflows(t)
	var deaths []dead
	for generation := 1; generation <= times; generation++ {
		s.reachesServing("web", generation)
		fresh.sees(generation)
		fresh.more(between)
		if got := s.kill("web"); got != generation {
			t.Fatalf("generation %d serves, want %d", got, generation)
		}
		deaths = append(deaths, dead{"web", generation})
	}
	s.only("web", times+1)
	fresh.sees(times + 1)
	fresh.more(between)
	if n := listenOverflows(t) - overflows; n > 0 {
		// What the kernel drops here the client sends again, for up to a minute: too much for a machine that has other work.
		t.Logf("%d times an accept queue of this machine was full: the load was more than it can serve", n)
	}
	s.tells("web", times, "killed by SIGKILL while serving")
	for _, g := range deaths {
		s.logs("web", g.generation, "killed by SIGKILL while serving")
	}
	fresh.end(deaths...)
	s.Stop()
}

// listenOverflows is how often an accept queue of the network namespace was full (ListenOverflows of /proc/net/netstat).
func listenOverflows(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/net/netstat")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if i := slices.Index(names, "ListenOverflows"); i > 0 && i < len(f) && f[0] == names[0] {
			n, err := strconv.Atoi(f[i])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		names = f
	}
	t.Fatal("no ListenOverflows in /proc/net/netstat")
	return 0
}

// reachesServing waits until this generation serves, by the status: it may have been so before.
func (s *scene) reachesServing(service string, generation int) {
	s.t.Helper()
	s.WaitStatus(service+" serves", func(st *supervisor.Status) bool {
		for _, svc := range st.Services {
			for _, g := range svc.Generations {
				if svc.Name == service && g.Generation == generation && g.Phase == supervisor.PhaseServing {
					return true
				}
			}
		}
		return false
	})
}

// longBackOff makes sure that nothing is restarted by the passing of time in a test.
const longBackOff = "backoff_min = \"10m\"\nbackoff_max = \"10m\""

// The serving program dies while a new one starts: the new one goes on alone.
func TestScenarioKilledWhileStarting(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{restart: longBackOff})
	fresh := s.fresh(s.address("web", "http"))
	s.configure(childService{restart: longBackOff, ready: `settle = "1s"`})
	reload := s.reloading()
	s.reaches("web", 2, supervisor.PhaseStarting)
	s.kill("web")
	reload.serves(2)
	fresh.sees(2)
	s.only("web", 2)
	s.tells("web", 1, "killed by SIGKILL while serving")
	fresh.more(50)
	fresh.end(dead{"web", 1})
	s.Stop()
}

// … and if that one fails, the last good spec starts at once: not the file on disk, and not after a back-off.
func TestScenarioKilledWhileStartingFails(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{restart: longBackOff})
	fresh := s.fresh(s.address("web", "http"))
	s.configure(childService{restart: longBackOff, mode: "hang-init", ready: `init_grace = "1500ms"`})
	reload := s.reloading()
	s.reaches("web", 2, supervisor.PhaseStarting)
	s.kill("web")
	if r := reload.wait(); r.OK() || !strings.Contains(r.Results[0].Reason, "init grace") {
		t.Errorf("the reload answers %+v, want failed", r)
	}
	failed := s.reaches("web", 2, supervisor.PhaseKilling)
	again := s.reaches("web", 3, supervisor.PhaseStarting)
	if gap := again.Time.Sub(failed.Time); again.Why != string(supervisor.WhyRestart) || gap > 10*time.Second {
		t.Errorf("generation 3 starts for %q, %v after generation 2 had failed, want a restart at once", again.Why, gap)
	}
	fresh.sees(3)
	s.only("web", 3)
	s.tells("web", 2, "init grace of 1.5s is over")
	s.logs("web", 1, "killed by SIGKILL while serving")
	fresh.more(50)
	// Where nothing serves the library accepts at once, so this one has taken connections before it failed.
	fresh.end(dead{"web", 1}, dead{"web", 2})
	s.Stop()
}

// The serving program dies while the new one bakes: that one is committed now.
func TestScenarioKilledWhileBaking(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{restart: longBackOff})
	fresh := s.fresh(s.address("web", "http"))
	s.configure(childService{restart: longBackOff, ready: `bake = "10m"`})
	reload := s.reloading()
	s.reaches("web", 2, supervisor.PhaseBaking)
	fresh.sees(2)
	s.kill("web")
	reload.serves(2)
	s.only("web", 2)
	s.tells("web", 1, "killed by SIGKILL while serving")
	fresh.more(50)
	fresh.end(dead{"web", 1})
	s.Stop()
}

// The new one dies while it bakes: rolled back, and what it had accepted is lost.
func TestScenarioKilledBaking(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{})
	fresh := s.fresh(s.address("web", "http"))
	s.configure(childService{mode: "ready-then-die", env: `TESTCHILD_DELAY = "1s"`, ready: "bake = \"10m\"\nsettle = \"10ms\""})
	s.fails("exit status 3 while baking")
	s.only("web", 1)
	fresh.more(50)
	fresh.end(dead{"web", 2})
	s.Stop()
}

// A reload while one bakes is remembered, once.
func TestScenarioReloadWhileBaking(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{})
	fresh := s.fresh(s.address("web", "http"))
	s.configure(childService{ready: `bake = "1s"`})
	s.HUP()
	s.reaches("web", 2, supervisor.PhaseBaking)
	s.HUP()
	s.HUP()
	s.WaitStatus("a reload is remembered", func(st *supervisor.Status) bool { return len(st.Reloads) == 2 })
	s.configure(childService{})
	fresh.sees(3)
	s.only("web", 3)
	if got := s.MustReload().Results[0].Generation; got != 4 {
		t.Errorf("the next reload is generation %d, want 4", got)
	}
	fresh.end()
	s.Stop()
}

// A reload during the back-off cancels the wait and starts the new configuration now.
func TestScenarioReloadInBackOff(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{restart: longBackOff})
	fresh := s.fresh(s.address("web", "http"))
	s.kill("web")
	s.WaitStatus("the restart waits", func(st *supervisor.Status) bool { return st.Services[0].RestartIn > 300 })

	// One that fails leaves the wait as it is.
	s.configure(childService{restart: longBackOff, mode: "crash-init"})
	s.fails("exit status 3 before it was ready")
	svc := s.WaitStatus("generation 2 is gone", func(st *supervisor.Status) bool {
		return len(st.Services[0].Generations) == 0
	}).Services[0]
	if svc.RestartIn < 300 {
		t.Errorf("after the failed reload the restart waits for %v s, want the back-off to go on", svc.RestartIn)
	}

	s.configure(childService{restart: longBackOff})
	if got := s.MustReload().Results[0]; got.Generation != 3 {
		t.Errorf("the reload answers %+v, want generation 3", got)
	}
	fresh.sees(3)
	s.only("web", 3)
	if in := s.service("web").RestartIn; in != 0 {
		t.Errorf("a restart waits for %v s while generation 3 serves", in)
	}
	fresh.more(50)
	fresh.end(dead{"web", 1})
	s.Stop()
}

// When the back-off ends, the last good spec starts: not what the file says meanwhile.
func TestScenarioRestartIsOfTheLastGood(t *testing.T) {
	t.Parallel()
	p := childService{restart: "backoff_min = \"500ms\"\nbackoff_max = \"500ms\""}
	s := newScene(t, p)
	fresh := s.fresh(s.address("web", "http"))
	p.mode = "crash-init"
	s.configure(p)
	for generation := 1; generation <= 2; generation++ {
		s.reachesServing("web", generation)
		fresh.sees(generation)
		s.kill("web")
	}
	fresh.sees(3)
	s.only("web", 3)
	fresh.end(dead{"web", 1}, dead{"web", 2})
	s.Stop()
}

// The first start after a crash serves nothing yet: a reload replaces it, and need not wait for its grace.
func TestScenarioReloadReplacesRestart(t *testing.T) {
	t.Parallel()
	p := childService{restart: "backoff_min = \"20ms\"\nbackoff_max = \"20ms\"", ready: `init_grace = "10m"`}
	s := newScene(t, p)
	fresh := s.fresh(s.address("web", "http"))
	s.setMode("web", "hang-init") // the same spec is good once, and hangs when it is started again
	s.kill("web")
	s.reaches("web", 2, supervisor.PhaseStarting)
	fresh.sees(2)
	s.setMode("web", "")
	reload := s.reloading()
	reload.serves(3)
	s.logs("web", 2, "replaced")
	fresh.sees(3)
	s.only("web", 3)
	fresh.more(50)
	fresh.end(dead{"web", 1}, dead{"web", 2}) // both have accepted: where nothing serves the library does so at once
	s.Stop()
}
