//go:build linux

package handover_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/supervisor"
)

// The soak of everything at once: for minutes, under constant load, generations and handoverd are killed, reloads come at
// any moment, programs crash in their init, hang in it, and ignore their drain, the configuration changes, and descriptors
// run short. In the end only what a killed process had accepted may be lost, by its own account in shared memory; nothing
// may have grown; and what the state says has to be what /proc says.

// chaosFor is how long it lasts: 10 minutes in make soak, a few seconds in make test; HANDOVERD_SOAK_FOR says it otherwise.
func chaosFor(t *testing.T) time.Duration {
	t.Helper()
	if text := os.Getenv("HANDOVERD_SOAK_FOR"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 || d > 3*time.Hour {
			t.Fatalf("HANDOVERD_SOAK_FOR=%s: want a time up to 3h (%v)", text, err)
		}
		return d
	}
	if os.Getenv("HANDOVERD_SOAK") == "full" {
		return 10 * time.Minute
	}
	return 3 * time.Second
}

// chaosSeed decides about everything that is left to chance but the moments at which the machine is how far. It is in the
// log, and another one in each make soak; make test has one of which the first few acts are different ones.
func chaosSeed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("HANDOVERD_SOAK_SEED")
	switch {
	case text == "" && os.Getenv("HANDOVERD_SOAK") == "" && os.Getenv("HANDOVERD_SOAK_FOR") == "":
		return 903838
	case text == "":
		return rand.Uint64() % 1_000_000
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("HANDOVERD_SOAK_SEED: %v", err)
	}
	return seed
}

// chaosServices are the programs: one that speaks the child protocol and one that says READY=1, both judged by their own
// accounts; one whose clients keep their connections; and an unmodified HAProxy, which is not killed and may lose nothing.
var chaosServices = []string{"web", "raw", "kept", "proxy"}

// counted are those whose clients open a connection for each request, so that the account of connections is that of requests.
var counted = []string{"web", "raw"}

// keptClients is how many connections the clients of kept have: the death of a process costs at most one request on each.
const keptClients = 16

// chaos is a daemon under all of it.
type chaos struct {
	*scene
	rand   *rand.Rand
	config chaosConfig
	killed map[string]map[int]bool // by service: generations that the test has killed
	done   map[string]int          // by action
	phases map[string]int          // what handoverd was in the midst of when it was killed
	deaths map[supervisor.Phase]int
	loads  map[string]*traffic
	ports  [4]int
	// upgrading: an upgrade was asked for by a signal, and may be under way.
	upgrading bool
}

// chaosConfig is what changes in the configuration.
type chaosConfig struct {
	settle, bake, shutdown, grace time.Duration
	backlog, changes              int
}

// calm is the configuration before and after.
var calm = chaosConfig{settle: 100 * time.Millisecond, shutdown: 6 * time.Second, grace: 15 * time.Second, backlog: 4096}

func (c *chaos) write() {
	c.t.Helper()
	text := ""
	for i, name := range chaosServices[:3] {
		p := childService{
			name: name, env: fmt.Sprintf(`TESTCHILD_DELAY = "50ms", CHANGES = "%d"`, c.config.changes),
			socket:  fmt.Sprintf("http = { listen = \"tcp4://127.0.0.1:%d\", backlog = %d }", c.ports[i], c.config.backlog),
			ready:   fmt.Sprintf("settle = %q\nbake = %q\ninit_grace = %q", c.config.settle, c.config.bake, c.config.grace),
			retire:  fmt.Sprintf("parent_shutdown = %q\nkill_grace = \"1s\"", c.config.shutdown),
			restart: "backoff_min = \"20ms\"\nbackoff_max = \"500ms\"",
		}
		if name == "raw" {
			p.mode, p.when = "accept-notify", "notify"
			p.socket += fmt.Sprintf("\nown = { listen = \"unix://%s/own.${HANDOVER_GENERATION}\", per_generation = true }", c.Dir)
		}
		text += p.toml(c.t, c.Daemon)
	}
	c.Configure(text + fmt.Sprintf(`
[service.proxy]
command = ["/usr/sbin/haproxy", "-db", "-de", "-f", %[1]q]
check = ["/usr/sbin/haproxy", "-c", "-f", %[1]q]
env = { CHANGES = "%[2]d" }
[service.proxy.socket]
http = { listen = "tcp4://127.0.0.1:%[3]d", backlog = %[4]d }
[service.proxy.ready]
settle = %[5]q
bake = %[6]q
[service.proxy.retire]
parent_shutdown = "1m"
`, filepath.Join(c.Dir, "haproxy.cfg"), c.config.changes, c.ports[3], c.config.backlog, c.config.settle, c.config.bake))
}

// newChaos starts the daemon and its loads.
func newChaos(t *testing.T, seed uint64) *chaos {
	c := &chaos{
		scene: &scene{Daemon: NewDaemon(t), t: t}, rand: rand.New(rand.NewPCG(seed, 0)), config: calm,
		killed: map[string]map[int]bool{}, done: map[string]int{}, phases: map[string]int{}, deaths: map[supervisor.Phase]int{},
		loads: map[string]*traffic{},
	}
	for i, name := range chaosServices {
		c.ports[i] = FreePort(t)
		c.killed[name] = map[int]bool{}
		c.setMode(name, "")
	}
	text := rewrite(t, exampleFile(t, "haproxy.cfg"), "    default_backend app\n\nbackend app\n    server app 127.0.0.1:8081",
		"    http-request return status 200 content-type text/plain string \"page\"")
	if err := os.WriteFile(filepath.Join(c.Dir, "haproxy.cfg"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c.write()
	c.Start()
	c.WaitReady()
	page := &drill.Plain{Path: "/", Body: "page"}
	slow := drill.Load{Mode: drill.ModeFresh, Rate: 150, Clients: 3000, Delay: 2 * time.Millisecond, Spread: 20 * time.Millisecond}
	for name, l := range map[string]drill.Load{
		"web": slow, "raw": slow,
		"kept":         {Mode: drill.ModePost, Clients: keptClients, Pause: 50 * time.Millisecond},
		"proxy":        {Mode: drill.ModeFresh, Rate: 50, Clients: 1000, Plain: page},
		"proxy (kept)": {Mode: drill.ModeKeepAlive, Clients: 8, Pause: 100 * time.Millisecond, Plain: page},
	} {
		at := slices.IndexFunc(chaosServices, func(s string) bool { return len(name) >= len(s) && name[:len(s)] == s })
		l.Network, l.Address = "tcp", fmt.Sprintf("127.0.0.1:%d", c.ports[at])
		l.Duration, l.Timeout = 4*time.Hour, 30*time.Second
		run, err := drill.Start(context.Background(), l)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { run.Stop() })
		c.loads[name] = &traffic{Run: run, s: c.scene, name: name}
	}
	for _, tr := range c.loads {
		tr.more(20)
	}
	return c
}

func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("it lets real programs die again and again; it runs without -short")
	}
	t.Parallel() // in the short form it mostly waits; make soak runs nothing beside it
	seed, length := chaosSeed(t), chaosFor(t)
	t.Logf("HANDOVERD_SOAK_FOR=%v HANDOVERD_SOAK_SEED=%d", length, seed)
	c := newChaos(t, seed)
	first, before := c.figures(nil)
	t.Log("before: ", &first)
	begin, quiet := time.Now(), time.Now()
	for time.Since(begin) < length {
		c.act()
		if time.Since(quiet) > 30*time.Second { // else what is wrong would be seen only in the end
			c.settled()
			c.census()
			quiet = time.Now()
		}
	}
	c.config = calm
	c.write()
	last, after := c.figures(&first.equal)
	t.Log("after:  ", &last)
	if diff := cmp.Diff(first.equal, last.equal); diff != "" {
		t.Errorf("changed between the begin and the end (-begin +end):\n%s", diff)
	}
	if after.held != before.held {
		t.Errorf("the keeper holds %d descriptors, held %d in the beginning", after.held, before.held)
	}
	if after.state > 2*before.state {
		t.Errorf("the state has %d bytes, had %d in the beginning", after.state, before.state)
	}
	took := time.Since(begin)
	c.account()
	c.tell(took)
	c.Stop()
	if t.Failed() {
		keepLog(t, "chaos", c.Daemon)
	}
}

// others are what else may not grow.
type others struct {
	held  int // descriptors, by the keeper
	state int // bytes of the state file
}

// figures are taken of a handoverd that has taken over and reloaded, with the configuration of the beginning, so that
// they can be compared whatever was killed between them.
func (c *chaos) figures(want *equal) (measures, others) {
	c.t.Helper()
	c.settled()
	c.Kill()
	c.Start()
	c.settled()
	c.MustReload()
	c.settled()
	m := c.measure(want)
	c.census()
	text, err := os.ReadFile(filepath.Join(c.Dir, "state.json"))
	if err != nil {
		c.t.Fatal(err)
	}
	st := c.WaitStatus("a keeper holds what there is", func(s *supervisor.Status) bool { return s.Keeper.PID != 0 && s.Keeper.Fault == "" })
	return m, others{st.Keeper.Held, len(text)}
}

// settled waits until nothing is under way any more.
func (c *chaos) settled() {
	c.t.Helper()
	c.WaitStatus("every service has one generation, which serves, and no reload is under way", settledStatus)
}

// account checks what the clients have lost.
func (c *chaos) account() {
	for _, name := range slices.Sorted(maps.Keys(c.loads)) {
		c.loads[name].Run.Stop()
	}
	doomed := map[string]int{}
	// A restart that serves nothing yet, and is not ready, gives way to a reload at once, though it accepts.
	for _, m := range regexp.MustCompile(`service=(\S+) gen=(\d+) from=starting to=killing .*why="replaced by`).FindAllStringSubmatch(c.Log(), -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			c.t.Fatal(err)
		}
		c.done["… replaced before it was ready"]++
		c.killed[m[1]][n] = true
	}
	for _, name := range chaosServices[:3] {
		least, most := 0, 0
		for n := 1; n <= c.lastGeneration(name); n++ {
			a := accountOf(c.t, c.Daemon, name, n)
			l, m := a.lost()
			if c.killed[name][n] || a.doomed != 0 {
				doomed[name]++
				least, most = least+l, most+m
			} else if slices.Contains(counted, name) && l != 0 {
				c.t.Errorf("%s generation %d was not to die, and has not answered %d of %d connections: %+v", name, n, l, a.connections, a)
			}
		}
		if slices.Contains(counted, name) {
			c.lost(name, least, most)
		} else {
			c.lost(name, 0, doomed[name]*keptClients)
		}
	}
	c.lost("proxy", 0, 0)
	c.lost("proxy (kept)", 0, 0)
}

// lost checks one load's failures.
func (c *chaos) lost(name string, least, most int) {
	r := c.loads[name].Run.Stop()
	c.t.Logf("%-13s %7d requests  %4d lost %v  allowed %d to %d  by %d generations", name, r.Sent, r.Failed(), r.Failures, least, most, len(r.Generations))
	if n := r.Failed(); n < least || n > most {
		c.t.Errorf("%s: %d lost, want %d to %d:\n%s", name, n, least, most, &r)
	}
	for kind, n := range r.Failures {
		switch kind {
		case drill.KindReset, drill.KindEOF, drill.KindTruncated:
		default:
			c.t.Errorf("%s: %d failures of kind %s: no death of a program costs that:\n%s", name, n, kind, &r)
		}
	}
	if r.Faults() > 0 {
		c.t.Errorf("%s: faults of the generator: %v", name, r.GeneratorFaults)
	}
}

// lastGeneration is the number of the newest one.
func (c *chaos) lastGeneration(service string) int {
	g := c.Service(service).Generations
	return g[len(g)-1].Generation
}

// tell writes what was done.
func (c *chaos) tell(took time.Duration) {
	reloads, kills := 0, 0
	for _, name := range chaosServices {
		kills += len(c.killed[name])
	}
	for _, svc := range c.Status().Services {
		reloads += svc.Reloads
	}
	c.t.Logf("%v: %s", took.Round(time.Second), counts(c.done))
	c.t.Logf("generations: %d retired by reloads, %d killed (%.0f %%), which were %s",
		reloads, kills, 100*float64(kills)/float64(max(1, reloads+kills)), counts(c.deaths))
	c.t.Logf("handoverd killed in the midst of: %s", counts(c.phases))
}

// counts is a map as text, in order.
func counts[K ~string](m map[K]int) string {
	var s []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		s = append(s, fmt.Sprintf("%s %d", k, m[k]))
	}
	return fmt.Sprint(s)
}
