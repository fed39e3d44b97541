//go:build linux

package handover_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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
	wrapper []string     // that handoverd is started by
	header  string       // of the load
	fresh   drill.Load   // connections of one request; Mode empty: 300 a second, answered after 2 to 22 ms
	loads   []drill.Load // beside them
	relayed []drill.Load // the same, at a round trip of 10 ms
	alone   bool         // it needs the machine to itself
}

// killReady makes phases long enough to be killed in them; a drain lasts as long as the slowest request.
const killReady = "settle = \"300ms\"\nbake = \"400ms\"\n"

// nonRoot starts a program as another user than root, who has no rights at all.
var nonRoot = []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}

// forNobody is a row's child with what it needs to run as another user.
func forNobody(more string) func(*testing.T, *Daemon) string {
	return func(t *testing.T, d *Daemon) string {
		return rewrite(t, testchildConfig("ok", more)(t, d, ""), `TESTCHILD_MODE = "ok"`, `TESTCHILD_MODE = "ok", TESTCHILD_LINES = "1"`) +
			"[service.web.ready]\nwhen = \"native\"\n" + killReady
	}
}

func TestHandoverdKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	streams := drill.Load{Mode: drill.ModeStream, Clients: 8, Delay: 300 * time.Millisecond, Spread: 700 * time.Millisecond}
	posts := drill.Load{Mode: drill.ModePost, Clients: 8, Pause: 20 * time.Millisecond}
	gets := drill.Load{Mode: drill.ModeKeepAlive, Clients: 8, Pause: 20 * time.Millisecond}
	child := func(mode, when string) func(*testing.T, *Daemon) string {
		return func(t *testing.T, d *Daemon) string {
			return childService{
				mode: mode, when: when, env: `TESTCHILD_LINES = "1"`, ready: killReady, retire: "parent_shutdown = \"1m\"",
			}.toml(t, d)
		}
	}
	rows := []killRow{
		{name: "native", config: child("ok", "native"), loads: []drill.Load{posts, gets, streams}},
		{name: "sd_notify", config: child("accept-notify", "notify"), loads: []drill.Load{posts}},
		{name: "dropped by the shim, no CAP_SYS_PTRACE", wrapper: withoutPtrace, config: forNobody(`user = "nobody"`), loads: []drill.Load{posts}},
		{name: "handoverd is not root", wrapper: nonRoot, config: forNobody(""), loads: []drill.Load{posts}},
		{name: "HAProxy drops its user", config: killedHAProxy, header: haproxyHeader, loads: []drill.Load{posts, gets, streams}},
		{name: "HAProxy, no keeper", config: func(t *testing.T, d *Daemon) string {
			// Nor a program that speaks the child protocol, whose channel nobody would hold.
			return "keeper = \"none\"\n" + rewrite(t, killedHAProxy(t, d), Program(t, goserverProgram)+"\"]\n",
				Program(t, testchildProgram)+"\"]\nenv = { TESTCHILD_MODE = \"accept-raw\" }\n")
		}, header: haproxyHeader, loads: []drill.Load{posts}},
	}
	if full() {
		rows = append(rows, killedUnderLoad(child("ok", "native"))...)
	} else {
		rows = []killRow{rows[0], rows[2], rows[5]}
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			if !row.alone {
				t.Parallel() // they mostly wait
			}
			row.run(t)
		})
	}
}

// killedUnderLoad are the loads of loadRows: those of kept connections all at once, so that each kill is seen by each.
func killedUnderLoad(config func(*testing.T, *Daemon) string) []killRow {
	kept := killRow{name: "connections that stay"}
	var rows []killRow
	for _, row := range loadRows {
		switch {
		case row.load.Mode == drill.ModeFresh:
			rows = append(rows, killRow{name: row.name, fresh: row.load})
		case row.relay > 0:
			kept.relayed = append(kept.relayed, row.load)
		case row.load.Pause == 0 && row.load.Mode != drill.ModeStream: // else they would leave nothing to the others
			row.load.Pause = 10 * time.Millisecond
			fallthrough
		default:
			kept.loads = append(kept.loads, row.load)
		}
	}
	rows = append(rows, kept)
	for i := range rows {
		rows[i].config, rows[i].alone = config, true
	}
	return rows
}

// killedHAProxy is the example's HAProxy before the example's server, which gives up root by itself.
func killedHAProxy(t *testing.T, d *Daemon) string {
	t.Helper()
	app, file := fmt.Sprintf("127.0.0.1:%d", FreePort(t)), filepath.Join(d.Dir, "haproxy.cfg")
	text := rewrite(t, exampleFile(t, "haproxy.cfg"), "127.0.0.1:8081", app,
		"    maxconn 4000\n", "    maxconn 4000\n    user nobody\n    group nogroup\n")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return rewrite(t, exampleFile(t, "handoverd.toml"),
		"runtime_dir = \"build/haproxy\"\n", "",
		"examples/haproxy/haproxy.cfg", file,
		"127.0.0.1:8080", fmt.Sprintf("127.0.0.1:%d", FreePort(t)),
		"127.0.0.1:8081", app,
		"bin/goserver", Program(t, goserverProgram),
		"[service.web.retire]\n", "[service.web.ready]\n"+killReady+"\n[service.web.retire]\n")
}

func (row *killRow) start(d *Daemon) {
	if len(row.wrapper) == 0 {
		d.Start()
		return
	}
	d.startUnder(d.t.(*testing.T), nil, row.wrapper...)
}

func (row *killRow) run(t *testing.T) {
	d := NewDaemon(t)
	publicProgram(t, handoverdProgram)
	d.Configure(row.config(t, d))
	if len(row.wrapper) > 0 && row.wrapper[1] == nonRoot[1] {
		for _, path := range []string{d.Dir, d.ConfigFile()} {
			if err := os.Chown(path, 65534, 65534); err != nil {
				t.Fatal(err)
			}
		}
	}
	row.start(d)
	d.WaitReady()
	s := &scene{Daemon: d, t: t}
	loads := row.begin(t, s)
	table, deadlines := map[string]int{}, 0
	for n := range kills() {
		phase := killPhases[n%len(killPhases)]
		if row.killOnce(t, s, phase) {
			deadlines++
		}
		table[phase]++
		for _, tr := range loads {
			tr.more(10)
		}
	}
	for _, tr := range loads {
		tr.end()
	}
	d.Stop()
	t.Logf("%s: killed %d times, by phase %v; %d times the deadline of a drain that went on was compared", row.name, kills(), table, deadlines)
}

// begin starts all loads.
func (row *killRow) begin(t *testing.T, s *scene) (loads []*traffic) {
	address := s.address("web", "http")
	start := func(l drill.Load, address string) {
		l.Network, l.Address, l.GenerationHeader, l.Duration = "tcp", address, row.header, time.Hour
		loads = append(loads, s.load(string(l.Mode), l))
	}
	if row.fresh.Mode == "" {
		row.fresh = drill.Load{Mode: drill.ModeFresh, Rate: 300, Delay: 2 * time.Millisecond, Spread: 20 * time.Millisecond}
	}
	for _, l := range append([]drill.Load{row.fresh}, row.loads...) {
		start(l, address)
	}
	if len(row.relayed) > 0 {
		relay, err := drill.NewRelay(address, 5*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = relay.Close() })
		for _, l := range row.relayed {
			start(l, relay.Addr())
		}
	}
	return loads
}

// killOnce begins a reload, kills handoverd when it has come to the phase, starts it again, and checks what it makes of
// that: one generation serves in the end, the one before or the new one, and an old one that still drains does so under the
// deadline that it had. It reports whether there was one.
func (row *killRow) killOnce(t *testing.T, s *scene, phase string) (compared bool) {
	t.Helper()
	before, _ := s.Serving("web")
	next := 0 // the number of the new one, where there is one
	if phase != "serving" {
		events := s.Follow()
		s.HUP()
		e := s.WaitEvent(events, phase, func(e supervisor.Event) bool {
			return e.Kind == "transition" && e.Service == "web" && (e.Generation > before) == (phase != "draining") &&
				e.To == killPhaseSeen[phase]
		})
		next = e.Generation
	}
	ends := 0.0
	if phase == "draining" {
		ends = drainEnds(s.Status(), before)
	}
	s.Kill()
	<-time.After(rand.N(2 * time.Second)) // how long nobody is there is part of the scenario
	row.start(s.Daemon)
	if ends > 0 {
		st := s.WaitStatus("it answers", func(*supervisor.Status) bool { return true })
		if now := drainEnds(st, before); now > 0 {
			compared = true
			if now >= ends {
				t.Errorf("generation %d had %.3f s for its drain before handoverd was killed, and has %.3f s after it", before, ends, now)
			}
		}
	}
	st := s.WaitStatus("one generation is left and serves", func(st *supervisor.Status) bool {
		return len(st.Services) > 0 && st.Ready && len(st.Reloads) == 0 &&
			!slices.ContainsFunc(st.Services, func(v supervisor.ServiceStatus) bool { return len(v.Generations) != 1 })
	})
	i := slices.IndexFunc(st.Services, func(v supervisor.ServiceStatus) bool { return v.Name == "web" })
	after := st.Services[i].Generations[0].Generation
	t.Logf("killed while %s: generation %d before, %d after", phase, before, after)
	switch {
	case phase == "draining" && after <= before, phase == "committing" && after != next:
		t.Errorf("killed while %s: generation %d serves, and %d was committed", phase, after, next)
	case phase != "draining" && after != before && after != next:
		t.Errorf("killed while %s: generation %d serves, want %d or %d", phase, after, before, next)
	}
	return compared
}

// drainEnds is in how many seconds a generation of web that drains is killed; 0: it does not drain.
func drainEnds(st *supervisor.Status, generation int) float64 {
	for _, svc := range st.Services {
		for _, g := range svc.Generations {
			if svc.Name == "web" && g.Generation == generation && g.Phase == supervisor.PhaseDraining {
				return g.Ends
			}
		}
	}
	return 0
}

// TestNoUnknownProgram: handoverd is killed at any moment of a spawn. Every program that runs afterwards is in the state.
func TestNoUnknownProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	s := newScene(t, childService{mode: "accept-notify", when: "notify"})
	spawned := 0
	for range kills() * 2 {
		keeper := s.Status().Keeper.PID
		s.HUP()
		<-time.After(rand.N(12 * time.Millisecond)) // the moment is what is tested
		s.Kill()
		text, err := os.ReadFile(filepath.Join(s.Dir, "state.json"))
		if err != nil {
			t.Fatal(err)
		}
		known := []int{keeper}
		for _, m := range regexp.MustCompile(`"pid":(\d+),"start_time"`).FindAllSubmatch(text, -1) {
			pid, err := strconv.Atoi(string(m[1]))
			if err != nil {
				t.Fatal(err)
			}
			known = append(known, pid)
		}
		if len(known) > 3 {
			spawned++
		}
		for _, pid := range s.Left() {
			if slices.Contains(known, pid) {
				continue
			}
			// A fork of handoverd that was about to become the shim, which ends since nobody tells it to go.
			args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			eventually(t, fmt.Sprintf("process %d (%q), which no state knows, has ended", pid, args), func() bool {
				return !slices.Contains(s.Left(), pid)
			})
		}
		s.Start()
		s.WaitStatus("one generation is left and serves", func(st *supervisor.Status) bool {
			return st.Ready && len(st.Services[0].Generations) == 1
		})
	}
	t.Logf("killed %d times, in %d of them with a second program", kills()*2, spawned)
	s.Stop()
}
