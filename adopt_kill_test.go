//go:build linux

package handover_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/supervisor"
)

// handoverd is killed with SIGKILL, again and again, at chosen points of a reload, and started again after 0 to 2 s. No
// request fails; numbers go on; what was half done is finished or rolled back, and never doubled.

// killPhases are the points at which handoverd is killed.
var killPhases = []string{"serving", "starting", "baking", "committing", "draining"}

// killPhaseSeen is by what event each is seen. The line of a commit is written between the state and the actions.
var killPhaseSeen = map[string]supervisor.Phase{
	"starting": supervisor.PhaseStarting, "baking": supervisor.PhaseBaking, "committing": supervisor.PhaseServing,
	"draining": supervisor.PhaseDraining,
}

// kills is how often each row of these tests kills handoverd.
func kills() int {
	if full() {
		return 50
	}
	return 5
}

// killRow is one kind of program under a handoverd that is killed.
type killRow struct {
	name    string
	config  func(*testing.T, *Daemon) string
	loads   []drill.Load // beside fresh connections
	service string
}

// killedService is a child with a phase long enough to be killed in it: 300 ms of settle, 400 ms of bake, and a drain
// that lasts as long as the slowest request.
func killedService(env, more string) childService {
	return childService{
		env:    `TESTCHILD_LINES = "1"` + env,
		ready:  "settle = \"300ms\"\nbake = \"400ms\"\n" + more,
		retire: "parent_shutdown = \"1m\"",
	}
}

func TestHandoverdKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	streams := drill.Load{Mode: drill.ModeStream, Clients: 8, Delay: 300 * time.Millisecond, Spread: 700 * time.Millisecond}
	posts := drill.Load{Mode: drill.ModePost, Clients: 8, Pause: 20 * time.Millisecond}
	rows := []killRow{
		{
			name: "native", loads: []drill.Load{posts, streams}, service: "web",
			config: func(t *testing.T, d *Daemon) string { return killedService("", "").toml(t, d) },
		},
		{
			name: "notify", loads: []drill.Load{posts}, service: "web",
			config: func(t *testing.T, d *Daemon) string {
				p := killedService("", "")
				p.mode, p.when = "accept-notify", "notify"
				return p.toml(t, d)
			},
		},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) { row.run(t) })
	}
}

func (row *killRow) run(t *testing.T) {
	d := NewDaemon(t)
	d.Configure(row.config(t, d))
	d.Start()
	d.WaitReady()
	s := &scene{Daemon: d, t: t}
	address := s.address(row.service, "http")
	loads := []*traffic{s.fresh(address)}
	for _, l := range row.loads {
		l.Network, l.Address = "tcp", address
		loads = append(loads, s.load(string(l.Mode), l))
	}
	table := map[string]int{}
	for n := range kills() {
		phase := killPhases[n%len(killPhases)]
		row.killOnce(t, s, phase)
		table[phase]++
		for _, tr := range loads {
			tr.more(10)
		}
	}
	for _, tr := range loads {
		tr.end()
	}
	d.Stop()
	t.Logf("%s: killed %d times, by phase %v", row.name, kills(), table)
}

// killOnce begins a reload, kills handoverd when it has come to the phase, starts it again, and checks what it makes of
// that: one generation serves in the end, the one before or the new one.
func (row *killRow) killOnce(t *testing.T, s *scene, phase string) {
	t.Helper()
	before, _ := s.Serving(row.service)
	next := 0 // the number of the new one, where there is one
	if phase != "serving" {
		events := s.Follow()
		s.HUP()
		e := s.WaitEvent(events, phase, func(e supervisor.Event) bool {
			return e.Kind == "transition" && e.Service == row.service && (e.Generation > before) == (phase != "draining") &&
				e.To == killPhaseSeen[phase]
		})
		next = e.Generation
	}
	s.Kill()
	<-time.After(rand.N(2 * time.Second)) // how long nobody is there is part of the scenario
	s.Start()
	st := s.WaitStatus("one generation is left and serves", func(st *supervisor.Status) bool {
		return len(st.Services) > 0 && st.Ready && len(st.Reloads) == 0 &&
			!slices.ContainsFunc(st.Services, func(v supervisor.ServiceStatus) bool { return len(v.Generations) != 1 })
	})
	i := slices.IndexFunc(st.Services, func(v supervisor.ServiceStatus) bool { return v.Name == row.service })
	after := st.Services[i].Generations[0].Generation
	t.Logf("killed while %s: generation %d before, %d after", phase, before, after)
	switch {
	case phase == "draining" && after <= before, phase == "committing" && after != next:
		t.Errorf("killed while %s: generation %d serves, and %d was committed", phase, after, next)
	case phase != "draining" && after != before && after != next:
		t.Errorf("killed while %s: generation %d serves, want %d or %d", phase, after, before, next)
	}
}
