//go:build linux

package handover_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// chaosActs is what happens in the soak of everything, each as often as its weight says: about one generation in five ends by
// SIGKILL.
var chaosActs = []struct {
	name   string
	weight int
	do     func(*chaos)
}{
	{"reload of all", 2, func(c *chaos) { c.reload() }},
	{"reload of one", 5, func(c *chaos) { c.reload(c.pick(chaosServices)) }},
	{"reload by SIGHUP", 3, (*chaos).hup},
	{"a generation killed", 13, func(c *chaos) { c.slay(c.pick(chaosServices[:3])) }},
	{"handoverd killed", 5, (*chaos).slaySupervisor},
	{"the keeper killed", 1, (*chaos).slayKeeper},
	{"crash in init", 2, func(c *chaos) { c.misbehave("crash-init", "crash-accepting") }},
	{"dies in settle", 2, func(c *chaos) { c.misbehave("ready-then-die", "raw-ready-then-die") }},
	{"hung init", 1, (*chaos).hang},
	{"drain ignored", 1, (*chaos).ignoreDrain},
	{"configuration changed", 3, (*chaos).change},
	{"broken configuration", 1, (*chaos).breakConfig},
	{"few descriptors", 2, (*chaos).fewDescriptors},
	{"handoverd upgraded", 4, (*chaos).upgrade},
}

// act does one of them, after a pause.
func (c *chaos) act() {
	c.pause(250 * time.Millisecond)
	sum := 0
	for _, a := range chaosActs {
		sum += a.weight
	}
	n := c.rand.IntN(sum)
	for _, a := range chaosActs {
		if n -= a.weight; n < 0 {
			c.did(a.name)
			a.do(c)
			return
		}
	}
}

// did counts an act, and has it in handoverd's log, between the lines of what came of it.
func (c *chaos) did(name string) {
	c.done[name]++
	c.logLine("%s", name)
}

func (c *chaos) logLine(format string, args ...any) {
	c.t.Helper()
	f, err := os.OpenFile(c.logFile(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := fmt.Fprintf(f, "%s soak: %s\n", time.Now().UTC().Format("15:04:05.000"), fmt.Sprintf(format, args...)); err != nil {
		c.t.Fatal(err)
	}
}

// pause is how long nothing is done: that is part of what is tested.
func (c *chaos) pause(most time.Duration) {
	<-time.After(time.Duration(c.rand.Int64N(int64(most) + 1)))
}

func (c *chaos) pick(from []string) string { return from[c.rand.IntN(len(from))] }

// up waits until handoverd answers.
func (c *chaos) up() *supervisor.Status {
	c.t.Helper()
	return c.WaitStatus("handoverd answers", func(*supervisor.Status) bool { return true })
}

// reload waits for the outcome, whatever it is: what is under way from the acts before it may make it fail.
func (c *chaos) reload(services ...string) {
	c.t.Helper()
	c.up()
	r, err := c.Reload(limited(c.t), services...)
	if err != nil && c.upgrading && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
		c.did("… remembered over an upgrade, which does not answer") // the new image carries it out
		c.upgrading = false
		return
	}
	if err != nil {
		c.t.Fatalf("reload of %v: %v", services, err)
	}
	for _, result := range r.Results {
		c.done["… "+string(result.Outcome)]++
	}
}

func (c *chaos) hup() {
	c.up()
	c.HUP()
}

// slay kills some generation of the service, in whatever phase it is.
func (c *chaos) slay(service string) {
	c.t.Helper()
	c.up()
	var living []supervisor.GenerationStatus
	for _, g := range c.Service(service).Generations {
		if g.PID > 0 {
			living = append(living, g)
		}
	}
	if len(living) == 0 {
		return // in back-off
	}
	c.slayGeneration(service, living[c.rand.IntN(len(living))])
}

// slayGeneration kills it if it still lives.
func (c *chaos) slayGeneration(service string, g supervisor.GenerationStatus) {
	c.t.Helper()
	fd, err := unix.PidfdOpen(g.PID, 0)
	if err != nil {
		return // it has ended meanwhile
	}
	defer func() { _ = unix.Close(fd) }()
	if !inEnvironment(g.PID, markEnv+"="+c.Dir, fmt.Sprintf("HANDOVER_GENERATION=%d", g.Generation)) {
		return // a shim that has not become it yet, or another process with its number
	}
	// Before the signal: what happens right after it is its doing.
	c.killed[service][g.Generation] = true
	c.logLine("%s generation %d is killed while %s", service, g.Generation, g.Phase)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		c.t.Fatalf("SIGKILL to %s generation %d: %v", service, g.Generation, err)
	}
	c.deaths[g.Phase]++
}

// inEnvironment reports whether the process was started with all of these.
func inEnvironment(pid int, entries ...string) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	env := bytes.Split(text, []byte{0})
	for _, e := range entries {
		if !slices.ContainsFunc(env, func(kv []byte) bool { return string(kv) == e }) {
			return false
		}
	}
	return true
}

// slaySupervisor kills handoverd, half of the time in a reload that has just begun. While nobody is there a generation may
// die as well; and the next one may be killed before it has come far.
func (c *chaos) slaySupervisor() {
	c.t.Helper()
	st := c.up()
	if c.rand.IntN(2) == 0 {
		if c.rand.IntN(2) == 0 { // long enough phases to be killed in each
			c.config.settle, c.config.bake = 200*time.Millisecond, 200*time.Millisecond
			c.write()
		}
		c.HUP()
		c.pause(1500 * time.Millisecond)
		st = c.up()
	}
	c.Kill()
	c.upgrading = false
	c.phases[c.midst()]++
	if c.rand.IntN(4) == 0 {
		at := c.rand.IntN(len(st.Services))
		if svc := st.Services[at]; svc.Name != "proxy" && len(svc.Generations) > 0 {
			c.did("… and a generation with it")
			if g := svc.Generations[len(svc.Generations)-1]; g.PID > 0 {
				c.slayGeneration(svc.Name, g)
			}
		}
	}
	c.pause(2 * time.Second)
	c.Start()
	if c.rand.IntN(3) == 0 {
		c.did("… and the next one as well")
		c.pause(150 * time.Millisecond)
		c.Kill()
		c.Start()
	}
	c.up()
}

// midst is what the state says that handoverd was doing when it was killed.
func (c *chaos) midst() string {
	c.t.Helper()
	st := c.stateFile()
	what := map[supervisor.Phase]bool{}
	backOff := false
	for _, svc := range st.Services {
		backOff = backOff || svc.Restart != nil
		for _, g := range svc.Generations {
			what[g.Phase] = true
		}
	}
	for _, p := range []supervisor.Phase{
		supervisor.PhaseStarting, supervisor.PhaseBaking, supervisor.PhaseKilling, supervisor.PhaseDraining, supervisor.PhaseEnding,
	} {
		if what[p] {
			return string(p)
		}
	}
	if backOff {
		return "back-off"
	}
	return "serving"
}

// stateFile is what a handoverd that is killed now leaves.
type stateFile struct {
	supervisor.State
	Held struct {
		Sockets map[string]struct {
			Inode uint64 `json:"inode"`
		} `json:"sockets"`
		Keeper struct {
			PID       int    `json:"pid"`
			StartTime uint64 `json:"start_time"`
		} `json:"keeper"`
	} `json:"held"`
}

func (c *chaos) stateFile() *stateFile {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.Dir, "state.json"))
	if err != nil {
		c.t.Fatal(err)
	}
	st := new(stateFile)
	if err := json.Unmarshal(text, st); err != nil {
		c.t.Fatalf("state.json: %v", err)
	}
	return st
}

// slayKeeper kills the keeper; handoverd is killed when it has another one, or lives.
func (c *chaos) slayKeeper() {
	c.t.Helper()
	st := c.up()
	if st.Keeper == nil || st.Keeper.PID == 0 {
		return
	}
	if err := unix.Kill(st.Keeper.PID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		c.t.Fatalf("SIGKILL to the keeper: %v", err)
	}
	keeperOf(c.Daemon, st.Keeper.PID)
	if c.rand.IntN(2) == 0 {
		c.slaySupervisor()
	}
}

// misbehave reloads a program that fails: one that speaks the child protocol in the first mode, another in the second.
func (c *chaos) misbehave(native, raw string) {
	c.t.Helper()
	service, mode := c.pick(chaosServices[:3]), native
	if service == "raw" {
		mode = raw
	}
	c.setMode(service, mode)
	c.reload(service)
	c.setMode(service, "")
}

// hang is the same with one that never becomes ready, under a short grace.
func (c *chaos) hang() {
	c.t.Helper()
	c.config.grace = 2 * time.Second
	c.write()
	c.misbehave("hang-init", "hang-accepting")
	c.config.grace = calm.grace
	c.write()
}

// ignoreDrain makes one serve that will ignore its drain, and reloads it.
func (c *chaos) ignoreDrain() {
	c.t.Helper()
	service, mode := c.pick(chaosServices[:3]), "ignore-drain"
	if service == "raw" {
		mode = "raw-ignore-drain"
	}
	c.setMode(service, mode)
	c.reload(service)
	c.setMode(service, "")
	c.reload(service)
}

// change writes another configuration, and half of the time reloads it.
func (c *chaos) change() {
	c.t.Helper()
	ms := func(most int) time.Duration { return time.Duration(c.rand.IntN(most+1)) * time.Millisecond }
	c.config.settle, c.config.bake = 10*time.Millisecond+ms(200), ms(300)
	c.config.shutdown = 4*time.Second + ms(4000)
	c.config.backlog = 1024 + c.rand.IntN(3072)
	c.config.changes++
	c.write()
	if c.rand.IntN(2) == 0 {
		c.reload()
	}
}

// breakConfig reloads a file that cannot be read, or a program that is not there: refused, or failed.
func (c *chaos) breakConfig() {
	c.t.Helper()
	c.up()
	defer c.write()
	if c.rand.IntN(2) == 0 {
		c.Configure("[service.web\n")
	} else {
		c.Configure("[service.web]\ncommand = [\"/nonexistent\"]\n[service.web.socket]\nhttp = \"tcp4://127.0.0.1:1\"\n")
	}
	if r, err := c.Reload(limited(c.t)); err == nil && r.OK() {
		c.t.Fatalf("a broken configuration was taken: %+v", r)
	}
}

// fewDescriptors leaves handoverd room for a few descriptors more while it reloads; half of the time it is killed so.
func (c *chaos) fewDescriptors() {
	c.t.Helper()
	c.up()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.PID))
	if err != nil {
		c.t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(c.PID, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		c.t.Fatalf("prlimit: %v", err)
	}
	few := unix.Rlimit{Cur: uint64(len(open) + c.rand.IntN(16)), Max: limit.Max}
	if err := unix.Prlimit(c.PID, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		c.t.Fatalf("prlimit: %v", err)
	}
	c.HUP()
	c.pause(time.Second)
	if c.rand.IntN(4) == 0 {
		c.Kill()
		c.phases["few descriptors"]++
		c.pause(time.Second)
		c.Start() // with the test's own limit
		return
	}
	if err := unix.Prlimit(c.PID, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		c.t.Fatalf("prlimit: %v", err)
	}
}

// upgrade has the same binary take over in place: by the command, which says how it went, or by a signal, with whatever
// comes next in the midst of it. What is under way may make it busy.
func (c *chaos) upgrade() {
	c.t.Helper()
	c.up()
	if c.rand.IntN(2) == 0 {
		c.Signal(unix.SIGUSR2)
		c.upgrading = true
		return
	}
	cmd := exec.CommandContext(limited(c.t), Program(c.t, handoverdProgram), "upgrade", "--runtime-dir", c.Dir)
	out, err := cmd.CombinedOutput()
	c.did(fmt.Sprintf("… upgrade: exit %d", cmd.ProcessState.ExitCode()))
	if code := cmd.ProcessState.ExitCode(); code != 0 && code != 3 {
		c.t.Errorf("handoverd upgrade: %v: %s", err, out)
	}
}
