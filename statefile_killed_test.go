//go:build linux

package handover_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/supervisor"
)

// killedAt kills handoverd in front of one of its system calls, or of one of the shim's: the nth of a kind.
type killedAt struct {
	step string
	nth  int

	mu    sync.Mutex
	count int
	when  time.Time // zero: not yet
}

func (k *killedAt) decide(c *call) verdict {
	if !tells(c) {
		return verdict{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.when.IsZero() || c.String() != k.step {
		return verdict{}
	}
	if k.count++; k.count < k.nth {
		return verdict{}
	}
	k.when = time.Now()
	return verdict{kill: true}
}

// met reports whether it came to that.
func (k *killedAt) met() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.when.IsZero()
}

// tells reports whether a call of handoverd or of a shim may change what others see: all but what only reads.
func tells(c *call) bool {
	if !c.own && !c.shim() {
		return false
	}
	switch c.nr {
	case unix.SYS_ACCEPT4, unix.SYS_WAITID:
		return false
	case unix.SYS_OPENAT, unix.SYS_CLOSE:
		about := c.String()
		return !strings.Contains(about, "/proc/") && !strings.Contains(about, "/sys/") && !strings.HasSuffix(about, "/proc")
	case unix.SYS_CLONE, unix.SYS_CLONE3:
		return !c.thread()
	}
	return true
}

// mostKilled is how often handoverd is killed at one kind of step.
const mostKilled = 12

// killedSteps are what f makes handoverd do, one for each of a kind.
func killedSteps(g *gate, f func()) []*killedAt {
	var all []*killedAt
	count := map[string]int{}
	g.watch(func(c *call) verdict {
		if tells(c) {
			step := c.String()
			if count[step]++; count[step] <= mostKilled {
				all = append(all, &killedAt{step: step, nth: count[step]})
			}
		}
		return verdict{}
	})
	f()
	g.watch(nil)
	if !full() {
		rand.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
		all = all[:min(1, len(all))]
	}
	return all
}

// TestKilledAtEachStep: handoverd is killed in front of each system call of a reload, and of each of a start that adopts,
// that somebody else can see. No program runs that the state does not know, the next start goes on with what is left, and
// no request fails. The short form takes a sample of the calls, another one at each run.
func TestKilledAtEachStep(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Run("of a reload", func(t *testing.T) {
		t.Parallel()
		s, g := newKilled(t)
		fresh := s.lightLoad()
		steps := killedSteps(g, func() { s.MustReload(); s.settle() })
		s.Kill()
		for round, k := range steps {
			g := startGated(t, s.Daemon)
			s.WaitReady()
			s.settle()
			before, _ := s.Serving("web")
			g.watch(k.decide)
			s.HUP()
			if !s.killedOrDone(k, func() bool {
				st, err := s.status()
				return err == nil && settledStatus(st) && st.Services[0].Generations[0].Generation > before
			}) {
				g.watch(nil)
				t.Logf("%-50s %d.: not met", k.step, k.nth)
				s.Kill()
			}
			g.watch(nil)
			newest := s.knownPrograms(k)
			s.Start()
			s.alone(k)
			after, _ := s.Serving("web")
			t.Logf("%-50s %d.: generation %d before, %d after", k.step, k.nth, before, after)
			if after != before && after != newest {
				t.Errorf("%s %d.: generation %d serves, before it was %d, and %d the newest", k.step, k.nth, after, before, newest)
			}
			fresh.more(5)
			fresh = s.anew(fresh, round)
			s.Kill()
		}
		s.Start()
		s.WaitReady()
		fresh.end()
		s.Stop()
	})
	t.Run("of a start that adopts", func(t *testing.T) {
		t.Parallel()
		s, _ := newKilled(t)
		fresh := s.lightLoad()
		before, pid := s.Serving("web")
		s.Kill()
		steps := killedSteps(startGated(t, s.Daemon), func() { s.WaitReady(); s.settle() })
		s.Kill()
		for round, k := range steps {
			startGatedWith(t, s.Daemon, k.decide)
			if !s.killedOrDone(k, func() bool {
				st, err := s.status()
				return err == nil && settledStatus(st)
			}) {
				t.Logf("%-50s %d.: not met", k.step, k.nth)
				s.Kill()
			}
			s.knownPrograms(k)
			s.Start()
			s.alone(k)
			t.Logf("%-50s %d.", k.step, k.nth)
			if after, pidAfter := s.Serving("web"); after != before || pidAfter != pid {
				t.Errorf("%s %d.: generation %d (%d) serves, before it was %d (%d)", k.step, k.nth, after, pidAfter, before, pid)
			}
			fresh.more(5)
			fresh = s.anew(fresh, round)
			s.Kill()
		}
		s.Start()
		s.WaitReady()
		fresh.end()
		s.Stop()
	})
}

func newKilled(t *testing.T) (*scene, *gate) {
	t.Helper()
	s := &scene{Daemon: NewDaemon(t), t: t}
	s.configure(childService{
		mode: "accept-notify", when: "notify", socket: fmt.Sprintf("%s\npath = \"unix://%s/path.sock\"\n"+
			"own = { listen = \"unix://%s/own.${HANDOVER_GENERATION}\", per_generation = true }", oneSocket, s.Dir, s.Dir),
		ready: `settle = "1ms"`,
	})
	g := startGated(t, s.Daemon)
	s.WaitReady()
	s.settle()
	return s, g
}

// lightLoad is load that leaves the machine to the test: about 60 connections in a second.
func (s *scene) lightLoad() *traffic {
	s.t.Helper()
	return s.load("fresh", drill.Load{
		Network: "tcp", Address: s.address("web", "http"), Mode: drill.ModeFresh, Clients: 2, Delay: 20 * time.Millisecond, Spread: 20 * time.Millisecond,
	})
}

// anew is the load again after so many rounds, since one load ends after minutes.
func (s *scene) anew(fresh *traffic, round int) *traffic {
	s.t.Helper()
	const most = 50
	if round%most != most-1 {
		return fresh
	}
	fresh.end()
	return s.lightLoad()
}

// killedOrDone waits until handoverd has been killed there, or is done without having come there.
func (s *scene) killedOrDone(k *killedAt, done func() bool) (killed bool) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("killed at the %d. %q", k.nth, k.step), func() bool {
		return s.ended() || !k.met() && done() && !k.met()
	})
	if k.met() {
		s.WaitExit()
	}
	return s.ended()
}

// knownPrograms checks, when handoverd has just been killed, that each program that runs is in the state. A shim is none yet:
// it ends when it sees that nobody tells it to go. The newest generation of the state is returned.
func (s *scene) knownPrograms(k *killedAt) (newest int) {
	s.t.Helper()
	state := s.stateFile()
	known := map[int]bool{}
	for _, svc := range state.Services {
		for _, g := range svc.Generations {
			known[g.PID], newest = true, max(newest, g.N)
		}
	}
	program := Program(s.t, testchildProgram)
	for _, pid := range s.programs() {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		switch {
		case err != nil || known[pid]: // it has ended
		case exe == program:
			s.t.Errorf("%s %d.: process %d runs the program, and the state has only %v", k.step, k.nth, pid, known)
		default:
			eventually(s.t, fmt.Sprintf("process %d (%s), which no state knows, has ended", pid, exe), func() bool {
				return !slices.Contains(s.programs(), pid)
			})
		}
	}
	return newest
}

// programs are the processes that are left but for the keeper.
func (s *scene) programs() []int {
	return slices.DeleteFunc(s.Left(), func(pid int) bool {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return err == nil && strings.HasPrefix(string(args), "handoverd-keeper\x00")
	})
}

// alone waits until one generation serves and none of its kind runs beside it.
func (s *scene) alone(k *killedAt) {
	s.t.Helper()
	s.WaitStatus(fmt.Sprintf("one generation after a kill at the %d. %q", k.nth, k.step), func(st *supervisor.Status) bool {
		return settledStatus(st) && slices.Equal(s.programs(), []int{st.Services[0].Generations[0].PID})
	})
	generation, _ := s.Serving("web")
	want := []string{fmt.Sprintf(".own.%d.handoverd", generation), fmt.Sprintf("own.%d", generation)}
	eventually(s.t, fmt.Sprintf("the paths of generation %d alone are left after a kill at the %d. %q", generation, k.nth, k.step), func() bool {
		return slices.Equal(s.ownPaths(), want)
	})
}

// ownPaths are the paths of sockets that are one generation's.
func (s *scene) ownPaths() []string {
	s.t.Helper()
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		s.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "own.") || strings.HasPrefix(e.Name(), ".own.") {
			names = append(names, e.Name())
		}
	}
	return names
}
