//go:build linux

package handover_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// shortStop is a stop whose deadline passes within a test.
const shortStop = `deadline = "2s"
lame_duck = { max = "100ms" }`

// A stop of what drains is clean.
func TestScenarioStop(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{}, childService{name: "raw", mode: "accept-notify", when: "notify"})
	posts := s.posts(s.address("web", "http"))
	_ = posts.Run.Stop() // its connections are idle and open no more
	s.Stop()
}

// A program that ignores the stop is killed at its deadline: not before, and handoverd is gone within a second after.
func TestScenarioStopDeadline(t *testing.T) {
	t.Parallel()
	for _, mode := range []struct{ mode, when string }{{"raw-ignore-drain", "accepting"}, {"ignore-drain", "native"}} {
		t.Run(mode.mode, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, childService{mode: mode.mode, when: mode.when, stop: shortStop, retire: `kill_grace = "500ms"`})
			begin := time.Now()
			s.Signal(unix.SIGTERM)
			killed := s.reaches("web", 1, supervisor.PhaseKilling)
			if code := s.WaitExit(); code != supervisor.ExitCut {
				t.Errorf("handoverd exits with %d, want %d", code, supervisor.ExitCut)
			}
			if after := killed.Time.Sub(begin); after < 1900*time.Millisecond {
				t.Errorf("killed %v after the SIGTERM, want not before the deadline of 2 s", after)
			}
			s.logs("web", 1, "deadline of its drain (stop)")
			if left := s.Left(); len(left) > 0 {
				t.Errorf("processes are left: %v", left)
			}
		})
	}
}

// QUIT, and a second TERM or INT, stop now.
func TestScenarioStopNow(t *testing.T) {
	t.Parallel()
	for _, signals := range [][]unix.Signal{{unix.SIGQUIT}, {unix.SIGTERM, unix.SIGTERM}, {unix.SIGINT, unix.SIGTERM}, {unix.SIGTERM, unix.SIGQUIT}} {
		t.Run(fmt.Sprint(signals), func(t *testing.T) {
			t.Parallel()
			s := newScene(t, childService{
				mode: "ignore-drain", stop: "deadline = \"10m\"\nlame_duck = { max = \"100ms\" }", // patience is shorter
			})
			for i, sig := range signals {
				if i > 0 {
					s.WaitStatus("stopping", func(st *supervisor.Status) bool { return st.Stopping })
				}
				s.Signal(sig)
			}
			if code := s.WaitExit(); code != supervisor.ExitCut {
				t.Errorf("handoverd exits with %d, want %d: a serving program was killed", code, supervisor.ExitCut)
			}
			s.logs("web", 1, "stop now")
			if left := s.Left(); len(left) > 0 {
				t.Errorf("processes are left: %v", left)
			}
		})
	}
}

// During a stop, in the lame duck as in the drain, a reload is refused and what dies is not started again.
func TestScenarioReloadWhileStopping(t *testing.T) {
	t.Parallel()
	for _, phase := range []struct{ name, stop string }{
		{"lame-duck", "deadline = \"20m\"\nlame_duck = { for = \"10m\", max = \"10m\" }"},
		{"draining", "deadline = \"10m\"\nlame_duck = { max = \"100ms\" }"},
	} {
		t.Run(phase.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, childService{mode: "ignore-drain", stop: phase.stop})
			_, pid := s.Serving("web")
			s.Signal(unix.SIGTERM)
			s.WaitStatus("stopping", func(st *supervisor.Status) bool { return st.Stopping })
			_, err := s.Reload(limited(t))
			if refused := (*APIError)(nil); !errors.As(err, &refused) || refused.Code != "stopping" {
				t.Errorf("a reload while stopping answers %v, want stopping", err)
			}
			s.HUP()
			s.WaitLog(`"reload refused" why=stopping`)
			if st := s.Status(); st.Ready || st.Services[0].Ready {
				t.Errorf("ready while stopping: %+v", st)
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if code := s.WaitExit(); code != 0 {
				t.Errorf("handoverd exits with %d, want 0: it has cut nothing", code)
			}
			if strings.Contains(s.Log(), "gen=2") {
				t.Error("a generation was started while stopping")
			}
		})
	}
}

// TERM wherever a generation is on its way: the starting one is killed and nothing is started any more.
func TestScenarioStopOnTheWay(t *testing.T) {
	t.Parallel()
	for _, way := range []struct {
		name  string
		begin func(*scene)
	}{
		{"starting", func(s *scene) {
			s.configure(childService{mode: "hang-init"})
			s.HUP()
			s.reaches("web", 2, supervisor.PhaseStarting)
		}},
		{"baking", func(s *scene) {
			s.configure(childService{ready: `bake = "10m"`, stop: shortStop, retire: `kill_grace = "500ms"`})
			s.HUP()
			s.reaches("web", 2, supervisor.PhaseBaking)
		}},
		{"back-off", func(s *scene) {
			s.kill("web")
			s.WaitStatus("the restart waits", func(st *supervisor.Status) bool { return st.Services[0].RestartIn > 300 })
		}},
		{"starting-after-a-crash", func(s *scene) {
			s.setMode("web", "hang-init")
			s.configure(childService{restart: longBackOff})
			s.kill("web")
			s.WaitStatus("the restart waits", func(st *supervisor.Status) bool { return st.Services[0].RestartIn > 300 })
			s.HUP()
			s.reaches("web", 2, supervisor.PhaseStarting)
		}},
		{"max-draining", func(s *scene) {
			s.configure(childService{retire: "max_draining = 1\nkill_grace = \"500ms\"\nrelease_timeout = \"10ms\"", stop: shortStop})
			s.HUP()
			s.reaches("web", 2, supervisor.PhaseServing) // the first one keeps the socket
			s.HUP()
			s.WaitStatus("a reload waits", func(st *supervisor.Status) bool { return st.Services[0].Waiting != "" })
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			first := childService{restart: longBackOff, stop: shortStop, retire: `kill_grace = "500ms"`}
			if way.name == "max-draining" {
				first.mode = "ignore-drain"
			}
			s := newScene(t, first)
			way.begin(s)
			started := s.service("web").Generations
			s.Signal(unix.SIGTERM)
			want := 0
			if way.name == "max-draining" {
				want = supervisor.ExitCut // the first generation
			}
			if code := s.WaitExit(); code != want {
				t.Errorf("handoverd exits with %d, want %d", code, want)
			}
			if want != 0 {
				s.logs("web", 1, "deadline of its drain")
			}
			for e := range s.events { // ends with the daemon
				if e.To == supervisor.PhaseStarting && !slices.ContainsFunc(started, func(g supervisor.GenerationStatus) bool {
					return g.Generation == e.Generation
				}) {
					t.Errorf("generation %d was started", e.Generation)
				}
			}
			if left := s.Left(); len(left) > 0 {
				t.Errorf("processes are left: %v", left)
			}
		})
	}
}

// holdStreamAt begins a stream that lasts as long as its server lives.
func holdStreamAt(t *testing.T, address string, generation int) heldStream {
	t.Helper()
	_, port, _ := strings.Cut(address, ":")
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return holdStream(t, n, generation)
}

// While a reload waits for max_draining the serving program dies: it is restarted, although there is no place.
func TestScenarioKilledWhileMaxDraining(t *testing.T) {
	t.Parallel()
	p := childService{retire: `max_draining = 1`, restart: "backoff_min = \"20ms\"\nbackoff_max = \"20ms\""}
	s := newScene(t, p)
	stream := holdStreamAt(t, s.address("web", "http"), 1)
	s.MustReload()
	fresh := s.fresh(s.address("web", "http"))
	reload := s.reloading()
	s.WaitStatus("a reload waits", func(st *supervisor.Status) bool { return st.Services[0].Waiting != "" })
	s.kill("web")
	s.reaches("web", 3, supervisor.PhaseServing)
	fresh.sees(3)
	stream.end()
	reload.serves(4)
	fresh.sees(4)
	s.only("web", 4)
	fresh.end(dead{"web", 2})
	s.Stop()
}

// Reloads that come while one waits for max_draining wait with it, for one generation.
func TestScenarioReloadWhileMaxDraining(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{retire: `max_draining = 1`})
	stream := holdStreamAt(t, s.address("web", "http"), 1)
	s.MustReload()
	fresh := s.fresh(s.address("web", "http"))
	var reloads []*reloading
	for n := 1; n <= 3; n++ {
		reloads = append(reloads, s.reloading())
		s.WaitStatus("the reloads wait", func(st *supervisor.Status) bool {
			waiting := 0
			for _, j := range st.Reloads {
				if j.Stage == supervisor.JobRunning && len(j.Results) == 1 && j.Results[0].Waiting {
					waiting++
				}
			}
			return waiting == n && st.Services[0].Waiting != ""
		})
	}
	stream.end()
	for _, r := range reloads {
		r.serves(3)
	}
	fresh.sees(3)
	s.only("web", 3)
	fresh.end()
	s.Stop()
}

// A restart that fails is one more failed attempt: the next one waits for twice as long.
func TestScenarioRestartsFail(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{restart: "backoff_min = \"50ms\"\nbackoff_max = \"10s\""})
	fresh := s.fresh(s.address("web", "http"))
	s.setMode("web", "crash-init")
	s.kill("web")
	var waits time.Duration
	var died time.Time
	for generation := 2; generation <= 5; generation++ {
		begins := s.reaches("web", generation, supervisor.PhaseStarting)
		if begins.Why != string(supervisor.WhyRestart) {
			t.Errorf("generation %d starts for %q", generation, begins.Why)
		}
		if !died.IsZero() {
			waits += begins.Time.Sub(died)
		}
		died = s.reaches("web", generation, supervisor.PhaseKilling).Time
		s.logs("web", generation, "exit status 3 before it was ready")
	}
	// 100, 200 and 400 ms, give or take the tenth by which each is spread, and longer on a busy machine; thrice the first
	// would be 300 ms. That each is twice the last is for TestStopDurations, whose clock is its own.
	if waits < 550*time.Millisecond {
		t.Errorf("three restarts have waited for %v altogether, want each to wait about twice as long as the last", waits)
	}
	s.setMode("web", "")
	s.WaitReady()
	if f := s.service("web"); f.Failure == nil || f.Failures < 4 {
		t.Errorf("the status has %d failures, the last %+v", f.Failures, f.Failure)
	}
	fresh.more(50)
	// What has been started and not become ready may have accepted: nothing else served.
	served, _ := s.Serving("web")
	deaths := []dead{{"web", 1}}
	for generation := 2; generation < served; generation++ {
		if accountOf(t, s.Daemon, "web", generation).connections > 0 {
			deaths = append(deaths, dead{"web", generation})
		}
	}
	fresh.end(deaths...)
	s.Stop()
}

// A grandchild that has left session and process group, and whose parent has ended, ends with its generation.
func TestScenarioDoubleFork(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{mode: "double-fork", restart: "backoff_min = \"20ms\"\nbackoff_max = \"20ms\""})
	first := s.grandchild(1)
	s.MustReload()
	second := s.grandchild(2)
	s.only("web", 2)
	s.gone(1, first)
	if err := unix.Kill(second, 0); err != nil {
		t.Errorf("the grandchild of the serving generation: %v", err)
	}
	s.kill("web")
	s.only("web", 3)
	s.gone(2, second)
	third := s.grandchild(3)
	s.Stop()
	s.gone(3, third)
}

// grandchild waits until a generation has told the pid of its grandchild.
func (s *scene) grandchild(generation int) int {
	s.t.Helper()
	var pid int
	eventually(s.t, fmt.Sprintf("generation %d tells its grandchild", generation), func() bool {
		for line := range strings.Lines(s.Log()) {
			_, text, _ := strings.Cut(line, "grandchild ")
			if strings.HasPrefix(line, fmt.Sprintf("web.%d | grandchild ", generation)) {
				pid, _ = strconv.Atoi(strings.TrimSpace(text))
			}
		}
		return pid != 0
	})
	return pid
}

// gone checks that a process is no more, not even as a zombie. Its generation has been reported gone.
func (s *scene) gone(generation, pid int) {
	s.t.Helper()
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		s.t.Errorf("the grandchild of generation %d, which is gone, is still there: %s", generation, stat)
	}
}
