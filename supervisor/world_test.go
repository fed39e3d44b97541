package supervisor

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// world plays everything around the pure core: people who ask, the shell that
// carries out actions, and programs that get ready, crash, hang, obey or ignore.
// What it does is decided by its seed alone.
type world struct {
	rnd      *rand.Rand
	now      proc.Instant
	kind     bool // from now on everything works, so that what was asked for can end
	hostile  bool // also sends events that no shell would send
	programs map[at]*program
	hooks    map[duty]bool    // that were begun
	specs    map[string]*Spec // by digest
	inbox    []event          // on their way to the loop
	names    []string
	requests int
	stops    int
	lames    int // requests for a lame duck
	file     uint64
	crashes  int
	upgrades int // requests for one of handoverd itself
}

// program is what stands behind a generation.
type program struct {
	at
	spec    *Spec
	pid     int
	running bool // has exec'd
	exited  bool
	hello   bool
	good    bool // gets ready
	obeys   bool // drains when told
	letsGo  bool // of the sockets
	blind   bool
}

var worldNames = []string{"a", "b", "c"}

func newWorld(seed uint64) *world {
	w := &world{
		rnd: rand.New(rand.NewPCG(seed, 0x68616e646f766572)), now: 1e9,
		programs: map[at]*program{}, hooks: map[duty]bool{}, specs: map[string]*Spec{}, names: worldNames[:1],
	}
	switch w.rnd.IntN(6) {
	case 0, 1:
		w.names = worldNames[:2]
	case 2:
		w.names = worldNames
	}
	w.hostile = w.rnd.IntN(4) == 0
	return w
}

func (w *world) chance(percent int) bool { return w.rnd.IntN(100) < percent }

func pick[T any](w *world, from ...T) T { return from[w.rnd.IntN(len(from))] }

// spec is a random one. Its digest is its identity.
func (w *world) spec(name, digest string, after []string) *Spec {
	s := testSpec(name, func(s *Spec) {
		s.Digest = fmt.Sprintf("%s.%d", digest, len(w.specs))
		c := &s.Config
		c.After = after
		c.Ready.When = pick(w, "auto", "auto", "native", "notify", "accepting", "alive", "newline", "http")
		c.Ready.InitGrace = pick(w, 300*time.Millisecond, 5*time.Second)
		if c.Ready.When != "native" && c.Ready.When != "notify" { // they take their time
			c.Ready.InitGrace = 5 * time.Second
		}
		c.Ready.Settle = pick(w, 0, 100*time.Millisecond)
		c.Ready.Bake = pick(w, 0, 0, time.Second)
		if c.Ready.When == "http" || w.chance(30) {
			probes(s)
		}
		if w.chance(20) {
			gated(s)
		}
		c.Ready.AliveFor = pick(w, 0, 200*time.Millisecond)
		c.Retire.ParentShutdown = pick(w, time.Second, 10*time.Second, 15*time.Minute)
		c.Retire.KillGrace = pick(w, 100*time.Millisecond, 900*time.Millisecond)
		c.Retire.AnswerTimeout = pick(w, time.Second, time.Second, 300*time.Millisecond, 0)
		c.Retire.MaxDraining = pick(w, 1, 1, 2, 3)
		c.Retire.OnMaxDraining = pick(w, "wait", "wait", "refuse", "kill-oldest")
		c.Retire.ReleaseTimeout = pick(w, 200*time.Millisecond, 5*time.Second)
		c.Retire.OnNoRelease = pick(w, "report", "report", "terminate")
		c.Stop.Deadline = pick(w, 2*time.Second, 25*time.Second)
		c.Stop.LameDuck = w.lameDuck()
		c.Stop.Quiet = pick(w, 0, 0, time.Second)
		if w.chance(20) {
			c.Stop.Announce = AnnounceConfig{Exec: []string{"on"}, ExecOff: []string{"off"}}
		}
		if w.chance(20) {
			c.Retire.Drain = HookConfig{Exec: []string{"drain"}}
		}
		if w.chance(10) {
			c.Handoff = exclusive
		}
		c.Restart.OnCrashLoop = pick(w, "hold", "hold", "close", "close", "exit")
		c.Restart.CrashLoopAfter = pick(w, 0, 1, 2, 3)
		s.Drain = pick(w, sigTerm, sigUSR1)
		if c.Ready.When != "accepting" && w.chance(20) {
			s.Keys = nil
			if w.chance(50) {
				ownOnly(s)
			}
		}
	})
	w.specs[s.Digest] = s
	return s
}

// lameDuck is a random one, in every way to end it.
func (w *world) lameDuck() LameDuckConfig {
	d := LameDuckConfig{Until: pick(w, "timer", "timer", "timer", "probes", "exec", "http"), Max: pick(w, 500*time.Millisecond, 1500*time.Millisecond)}
	switch d.Until {
	case "timer":
		d.For = min(d.Max, pick(w, 0, 0, time.Second))
	case "probes":
		d.Probes = ProbesConfig{Count: 3, Per: "address", Then: pick(w, 0, 200*time.Millisecond)}
	case "exec":
		d.Ask.Exec = []string{"ask"}
	case "http":
		d.Ask.HTTP = "GET http://ask/"
	}
	return d
}

// around is what happens beside the programs: hooks end, balancers ask, queues
// become empty, connections fall silent. All of it may also never happen, but when
// everything works.
func (w *world) around(s *State) {
	for _, d := range s.duties() {
		if w.hooks[d] {
			continue
		}
		w.hooks[d] = true
		switch {
		case w.kind || w.chance(60):
			w.send(evDuty{duty: d})
		case w.chance(50):
			w.send(evDuty{duty: d, Fault: "exit status 1"})
		}
	}
	for _, name := range s.Order {
		svc := s.Services[name]
		if l := svc.Lame; l != nil && l.Until == "probes" && l.Seen == 0 && l.Ended == 0 && w.chance(10) {
			w.send(evProbed{name, l.Began})
		}
		held := svc.Stop == StopHolding
		for _, g := range svc.Generations {
			held = held || g.Untold && g.Held
			for _, key := range g.Leaving {
				if w.kind || w.chance(20) {
					w.send(evLeft{[]string{key}})
				}
			}
		}
		if held && w.chance(30) {
			w.send(evQuiet{name})
		}
	}
}

func (w *world) prepared(s *State, job int) evPrepared {
	e := evPrepared{Job: job, Digest: fmt.Sprintf("job %d", job), Specs: map[string]*Spec{}}
	if !w.kind && w.chance(10) {
		e.Fault = "no good"
		return e
	}
	if j := s.job(job); j != nil && j.Why != "" {
		e.Specs, e.Executables = s.known(j)
		for _, name := range s.Order {
			if !s.Services[name].Removed {
				e.Order = append(e.Order, name)
			}
		}
		return e
	}
	order := slices.Clone(w.names)
	var only []string
	if j := s.job(job); j != nil {
		only = j.Services
	}
	if !w.kind {
		w.rnd.Shuffle(len(order), func(i, k int) { order[i], order[k] = order[k], order[i] })
		if only == nil && w.chance(15) {
			order = order[:len(order)-1] // one is removed
		}
	}
	for i, name := range order {
		if only != nil && !slices.Contains(only, name) {
			if s.Services[name] == nil {
				continue
			}
			e.Order = append(e.Order, name)
			continue
		}
		var after []string
		if i > 0 && w.chance(40) {
			after = []string{order[w.rnd.IntN(i)]}
		}
		e.Order = append(e.Order, name)
		e.Specs[name] = w.spec(name, e.Digest, after)
	}
	if only != nil { // the others stay as they are
		for _, name := range s.Order {
			if !slices.Contains(e.Order, name) && !s.Services[name].Removed {
				e.Order = append(e.Order, name)
			}
		}
	}
	return e
}

func (w *world) send(e event) { w.inbox = append(w.inbox, e) }

// carryOut does what the shell would do for an action.
func (w *world) carryOut(s *State, a action) {
	switch a := a.(type) {
	case acPrepare:
		w.send(w.prepared(s, a.Job))
	case acSpawn:
		w.spawn(s, a.at)
	case acGo:
		w.run(w.programs[a.at])
	case acAccept:
		if p := w.programs[a.at]; p != nil && p.spec.shares() && (w.kind || w.chance(80)) {
			w.send(evSight{at: a.at, Polls: true})
		}
	case acDrain:
		if p := w.programs[a.at]; p != nil && (w.kind || w.chance(80)) {
			w.send(evRead{a.at})
			if p.obeys || w.kind {
				w.send(evAnswered{a.at})
				w.leave(p)
			}
		}
	case acSignal:
		if p := w.programs[a.at]; p != nil && (p.obeys || w.kind) {
			w.leave(p)
		}
	case acKill:
		w.killed(a)
	case acCommit:
		if g := generationOf(s, a.at); g.Executable != nil && !g.Executable.Script && g.Executable.Digest == "" && w.chance(80) {
			e := *g.Executable
			e.Digest = fmt.Sprintf("content %d", e.Ino)
			w.send(evKept{&e})
		}
	case acGiveUp:
		w.send(evGiveUp{a.Service, w.chance(50)})
	case acReap:
		delete(w.programs, a.at)
	}
}

func (w *world) spawn(s *State, a at) {
	svc := s.Services[a.Service]
	g := svc.gen(a.Gen)
	if !w.kind && w.chance(5) {
		w.send(evSpawnFailed{a, "no such file"})
		return
	}
	p := &program{at: a, spec: g.Spec, pid: 1000 + w.rnd.IntN(1e6), good: w.chance(75), obeys: w.chance(60), letsGo: w.chance(80)}
	p.hello = g.Spec.Config.Ready.When == "native" || w.chance(30)
	p.blind = w.chance(15)
	w.programs[a] = p
	w.send(evSpawned{at: a, PID: p.pid, StartTime: uint64(p.pid), Token: "t", Executable: w.runs(g)})
}

// runs is what a generation comes to run: what it was to, if that was kept, or what is at its path now. That changes
// now and then, and cannot always be looked at.
func (w *world) runs(g *Generation) *Executable {
	if g.Executable != nil && g.Executable.Digest != "" {
		return g.Executable
	}
	if w.chance(10) {
		return nil
	}
	if w.chance(30) {
		w.file++
	}
	return &Executable{Ino: w.file, Size: 1, Modified: 1, Changed: 1, Script: w.chance(5)}
}

// run is what a program does when it may.
func (w *world) run(p *program) {
	if p == nil {
		return
	}
	p.running = true
	good := p.good || w.kind
	if p.hello {
		w.send(evHello{p.at})
	}
	when := p.spec.Config.Ready.When
	if when == "notify" || w.chance(10) {
		w.send(evNotify{p.at})
	}
	if p.spec.shares() && (good || w.chance(30)) {
		w.send(evSight{at: p.at, Polls: !p.blind, Blind: p.blind && when != "accepting" || p.blind && !w.kind})
		if p.blind && w.kind {
			w.send(evSight{at: p.at, Polls: true})
		}
	}
	switch {
	case !good && w.chance(50):
		w.exit(p, 256)
	case !good: // it hangs
	case when == "newline":
		w.send(evReady{p.at, "newline"})
	case p.hello:
		w.send(evReady{p.at, "native"})
		w.send(evReady{p.at, "notify"})
	default:
		w.send(evNotify{p.at})
		w.send(evReady{p.at, "notify"})
	}
	if w.chance(5) {
		w.send(evExtend{p.at, time.Second})
	}
}

func (w *world) exit(p *program, status uint32) {
	if p != nil && !p.exited {
		p.exited = true
		w.send(evExited{p.at, status})
	}
}

// leave is an orderly drain: it lets go, and later ends.
func (w *world) leave(p *program) {
	w.send(evSight{at: p.at, Polls: !p.letsGo && !w.kind, Stale: w.chance(10)})
	if w.kind || w.chance(50) {
		w.exit(p, 0)
	}
}

func (w *world) killed(a acKill) {
	p := w.programs[a.at]
	if p == nil {
		w.send(evGone{a.at})
		return
	}
	if a.Signal == sigKill || w.kind || w.chance(70) {
		if a.Signal == sigKill && !w.kind && w.chance(5) {
			return // stuck in the kernel
		}
		w.exit(p, uint32(a.Signal))
		w.send(evGone{a.at})
	}
}

// next is what happens next, and when.
func (w *world) next(s *State) event {
	w.now += proc.Instant(w.rnd.IntN(int(5 * time.Millisecond)))
	if w.hostile && w.chance(25) {
		return w.junk(s)
	}
	if w.chance(2) {
		return w.crash(s)
	}
	if w.chance(3) || s.Self != nil && w.chance(30) {
		return w.upgrade(s)
	}
	switch n := w.rnd.IntN(100); {
	case n < 55 && len(w.inbox) > 0:
		i := 0
		if w.chance(30) {
			i = w.rnd.IntN(len(w.inbox))
		}
		return w.take(i)
	case n < 68:
		return w.ask()
	case n < 78:
		if p := w.someone(); p != nil && p.running && !p.exited {
			if w.chance(50) {
				w.exit(p, pick[uint32](w, 0, 9, 256))
				return w.take(len(w.inbox) - 1)
			}
			return evSight{at: p.at, Polls: w.chance(50), Blind: w.chance(10), Fault: pick(w, "", "", "listens elsewhere")}
		}
	}
	if e := w.answer(s, w.chance(70)); e != nil && w.chance(50) {
		return e
	}
	if d := nextDeadline(s, w.now); d != 0 && w.chance(80) {
		w.now = d
		if w.chance(20) { // late, as on a machine that was suspended
			w.now += proc.Instant(w.rnd.Int64N(int64(20 * time.Second)))
		}
	} else {
		w.now += proc.Instant(w.rnd.Int64N(int64(pick(w, 200*time.Millisecond, 3*time.Second, 20*time.Second))))
	}
	return evTick{}
}

// answer is what somebody answers who is asked now, or nil if nobody is.
func (w *world) answer(s *State, good bool) event {
	asked := s.questions()
	if len(asked) == 0 {
		return nil
	}
	q := asked[w.rnd.IntN(len(asked))]
	p := w.programs[q.at]
	if p == nil || !p.running || p.exited {
		return nil
	}
	if q.gate {
		return evGate{at: q.at, OK: good, Text: "closed"}
	}
	return evProbe{at: q.at, OK: good, Bad: !good && w.chance(60), Text: "refused"}
}

func (w *world) take(i int) event {
	e := w.inbox[i]
	w.inbox = slices.Delete(w.inbox, i, i+1)
	return e
}

// ask is what people do.
func (w *world) ask() event {
	if w.chance(4) {
		w.stops++
		e := evStop{Now: w.chance(20), Keeps: w.chance(50)}
		if w.chance(30) {
			e.Within = pick(w, time.Millisecond, 300*time.Millisecond, 3*time.Second, time.Minute)
		}
		return e
	}
	if w.chance(6) {
		w.lames++
		e := evLame{Request: w.lames, Off: w.chance(40)}
		if w.chance(50) {
			e.Services = []string{pick(w, w.names...)}
		}
		return e
	}
	w.requests++
	if w.chance(8) {
		e := evAbort{Request: w.requests}
		if w.chance(50) {
			e.Services = []string{pick(w, w.names...)}
		}
		return e
	}
	e := evReload{Request: w.requests, NoQueue: w.chance(10)}
	if w.chance(40) {
		e.Services = []string{pick(w, w.names...)}
	}
	switch {
	case w.chance(15):
		e.Why = WhyRollback
	case w.chance(10):
		e.Why, e.Services, e.NoQueue = WhyRepair, []string{pick(w, w.names...)}, false
	}
	return e
}

// someone is a living program, chosen by the seed.
func (w *world) someone() *program {
	var best *program
	var all []*program
	for _, p := range w.programs {
		all = append(all, p)
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *program) int {
		if a.Service != b.Service {
			return int(a.Service[0]) - int(b.Service[0])
		}
		return a.Gen - b.Gen
	})
	best = all[w.rnd.IntN(len(all))]
	return best
}

// junk is an event that may be about the dead, the unborn or nobody.
func (w *world) junk(s *State) event {
	a := at{pick(w, "a", "b", "c", "nobody"), w.rnd.IntN(6)}
	if svc := s.Services[a.Service]; svc != nil && len(svc.Generations) > 0 && w.chance(60) {
		a.Gen = svc.Generations[w.rnd.IntN(len(svc.Generations))].N
	}
	switch w.rnd.IntN(20) {
	case 19:
		return evGiveUp{a.Service, w.chance(50)}
	case 17:
		return evProbe{at: a, OK: w.chance(50), Bad: w.chance(50), Text: "junk"}
	case 18:
		return evGate{at: a, OK: w.chance(50), Text: "junk"}
	case 0:
		return evSpawned{at: a, PID: 77, StartTime: 77, Token: "junk"}
	case 1:
		return evSpawnFailed{a, "junk"}
	case 2:
		return evHello{a}
	case 3:
		return evNotify{a}
	case 4:
		return pick[event](w, evAnswered{a}, evRead{a})
	case 5:
		return evReady{a, pick(w, "native", "notify", "accepting", "")}
	case 6:
		return evExtend{a, time.Duration(w.rnd.Int64N(int64(2*time.Hour))) - time.Hour}
	case 7:
		return evSight{at: a, Polls: w.chance(50), Blind: w.chance(30), Stale: w.chance(50), Idle: []string{"http"}}
	case 8:
		return evExited{a, w.rnd.Uint32()}
	case 9, 10:
		return evGone{a}
	case 12:
		return evDuty{duty: duty{Kind: pick(w, dutyAnnounce, dutyUndo, dutyAsk, dutyDrain), Service: a.Service, Gen: a.Gen, Began: w.now}}
	case 13:
		return evProbed{a.Service, w.now}
	case 14:
		return evQuiet{a.Service}
	case 15:
		return evLeft{[]string{pick(w, "tcp:80", "tcp:81", "")}}
	case 11:
		return w.prepared(s, w.rnd.IntN(s.LastJob+2))
	}
	w.requests++
	return evReload{Request: w.requests, Services: []string{}, NoQueue: w.chance(50)}
}

// calm is what happens next when everything works: what is on its way arrives in
// order, then the next deadline. It returns nil when nothing is left to happen.
func (w *world) calm(s *State) event {
	w.now += proc.Instant(time.Millisecond)
	if len(w.inbox) > 0 {
		return w.take(0)
	}
	if e := w.unanswered(s); e != nil {
		return e
	}
	if d := nextDeadline(s, w.now-proc.Instant(time.Millisecond)); d != 0 {
		w.now = max(w.now, d)
		return evTick{}
	}
	return nil
}

// unanswered is the good answer to a question that has had none, or nil.
func (w *world) unanswered(s *State) event {
	for _, q := range s.questions() {
		g := generationOf(s, q.at)
		switch {
		case q.gate:
			return evGate{at: q.at, OK: true}
		case !g.Probed:
			return evProbe{at: q.at, OK: true}
		}
	}
	return nil
}

// forgive makes up for what programs were not told or did not do before
// everything worked: who hangs is looked at and ended by its deadline, who was
// stuck in the kernel ends.
func (w *world) forgive(s *State) {
	w.kind = true
	for _, name := range s.Order {
		for _, g := range s.Services[name].Generations {
			a := at{name, g.N}
			if g.Phase == PhaseKilling || g.Phase == PhaseEnding {
				w.exit(w.programs[a], 9)
				if g.PID != 0 {
					w.send(evGone{a})
				}
			}
		}
	}
}
