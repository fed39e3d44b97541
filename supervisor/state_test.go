package supervisor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/internal/proc"
)

// script tells a story to the pure core and hears what it does. Its clock stands
// still but for after, which does all that falls due on the way.
type script struct {
	t    *testing.T
	s    State
	now  proc.Instant
	acts []string
	reqs int
	jobs map[int]bool // prepared
	full bool         // queues of sockets that leave do not become empty by themselves
	busy bool         // nobody reads what it is sent
}

func newScript(t *testing.T) *script {
	return &script{t: t, s: emptyState(), now: 1e9, jobs: map[int]bool{}}
}

func (s *script) send(events ...event) *script {
	for _, e := range events {
		before := s.s
		var acts []action
		s.s, acts = transition(s.s, e, s.now)
		for _, name := range s.s.Order {
			svc, was := s.s.Services[name], before.Services[name]
			if was != nil && lameOver(was.Lame, svc.Lame) {
				s.acts = append(s.acts, fmt.Sprintf("lame duck over by %s after %v", svc.Lame.By, svc.Lame.Ended.Sub(svc.Lame.Began)))
			}
		}
		for _, a := range acts {
			if text := tell(a); text != "" {
				s.acts = append(s.acts, text)
			}
		}
		for _, a := range acts {
			if d, ok := a.(acDrain); ok && !s.busy {
				s.send(evRead{d.at})
			}
		}
		if keys := s.s.leavingKeys(); !s.full && len(keys) > 0 {
			s.send(evLeft{[]string{keys[0]}})
		}
	}
	return s
}

// leavingKeys are the sockets whose queues are being emptied.
func (s *State) leavingKeys() []string {
	var keys []string
	for _, name := range s.Order {
		for _, g := range s.Services[name].Generations {
			keys = append(keys, g.Leaving...)
		}
	}
	return keys
}

// after lets time pass, from deadline to deadline.
func (s *script) after(d time.Duration) *script {
	for end := s.now.Add(d); s.now < end; {
		next := nextDeadline(&s.s, s.now)
		if next == 0 || next > end {
			next = end
		}
		s.now = next
		s.send(evTick{})
	}
	return s
}

// want compares what was done since the last want.
func (s *script) want(acts ...string) *script {
	s.t.Helper()
	if d := cmp.Diff(acts, s.acts); d != "" {
		s.t.Fatalf("at %v, actions (-want +got):\n%s", s.now.Sub(1e9), d)
	}
	s.acts = nil
	return s
}

// any forgets what was done.
func (s *script) any() *script { s.acts = nil; return s }

func tell(a action) string {
	switch a := a.(type) {
	case acAnswer:
		if a.Refused != RefusedNot {
			return fmt.Sprintf("refuse %s", a.Refused)
		}
		return fmt.Sprintf("job %d", a.Job)
	case acAborted:
		if a.Refused != RefusedNot {
			return fmt.Sprintf("refuse %s", a.Refused)
		}
		return fmt.Sprintf("aborted %d then job %d", len(a.Results), a.Job)
	case acPrepare:
		return fmt.Sprintf("prepare %d", a.Job)
	case acSpawn:
		return fmt.Sprintf("spawn %s%d", a.Service, a.Gen)
	case acGo:
		return fmt.Sprintf("go %s%d", a.Service, a.Gen)
	case acAccept:
		return fmt.Sprintf("accept %s%d", a.Service, a.Gen)
	case acAck:
		return fmt.Sprintf("ack %s%d", a.Service, a.Gen)
	case acLame:
		return fmt.Sprintf("lame %s%d", a.Service, a.Gen)
	case acLamed:
		return strings.TrimSpace(fmt.Sprintf("lame duck %s", a.Refused))
	case acDrain:
		return fmt.Sprintf("drain %s%d", a.Service, a.Gen)
	case acAwaitRead:
		return fmt.Sprintf("await %s%d", a.Service, a.Gen)
	case acSignal:
		return fmt.Sprintf("signal %s%d %d", a.Service, a.Gen, a.Signal)
	case acKill:
		return fmt.Sprintf("kill %s%d %d", a.Service, a.Gen, a.Signal)
	case acCommit:
		return fmt.Sprintf("commit %s%d", a.Service, a.Gen)
	case acReap:
		return fmt.Sprintf("reap %s%d", a.Service, a.Gen)
	case acJobDone:
		var parts []string
		for _, r := range a.Job.Results {
			parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s%d %s %s", r.Service, r.Generation, r.Outcome, r.Release)))
		}
		return fmt.Sprintf("done %d: %s", a.Job.ID, strings.Join(parts, ", "))
	case acGiveUp:
		return "give up " + a.Service
	case acUpgradeAnswer:
		return strings.TrimSpace(fmt.Sprintf("upgrade %d %s", a.ID, a.Refused))
	case acRehearse:
		return fmt.Sprintf("rehearse %d", a.ID)
	case acUpgradeDone:
		return strings.TrimSpace(fmt.Sprintf("upgraded %d %s", a.ID, a.Fault))
	case acExit:
		return fmt.Sprintf("exit %d", a.Code)
	}
	return ""
}

// reload asks for a reload of some services, or of all.
func (s *script) reload(services ...string) *script {
	s.reqs++
	return s.send(evReload{Request: s.reqs, Services: services})
}

// prepared ends the preparation of the newest job with these specs, in order.
func (s *script) prepared(specs ...*Spec) *script {
	e := evPrepared{Job: s.s.LastJob, Digest: fmt.Sprint("digest ", s.s.LastJob), Specs: map[string]*Spec{}}
	for _, spec := range specs {
		e.Order = append(e.Order, spec.Config.Name)
		e.Specs[spec.Config.Name] = spec
	}
	for _, name := range s.s.Order { // the others stay
		if j := s.s.job(e.Job); j != nil && j.Services != nil && !slices.Contains(e.Order, name) {
			e.Order = append(e.Order, name)
		}
	}
	return s.send(e)
}

func g(service string, n int) at { return at{service, n} }

// up is a native program that gets ready, and is committed if it does not bake.
func (s *script) up(a at) *script {
	s.send(evSpawned{at: a, PID: 100 + a.Gen, StartTime: 1, Token: "t"}, evHello{a}, evReady{a, "native"}, evSight{at: a, Polls: true})
	return s.after(100 * time.Millisecond)
}

// end is the exit of a generation and the end of what it started.
func (s *script) end(a at, status uint32) *script { return s.send(evExited{a, status}, evGone{a}) }

// serving starts the story with services that serve.
func serving(t *testing.T, specs ...*Spec) *script {
	s := newScript(t)
	s.reqs++
	s.send(evReload{Request: s.reqs, First: true}).prepared(specs...)
	for _, spec := range specs {
		s.up(g(spec.Config.Name, 1))
	}
	return s.after(20 * time.Second).any() // steady
}

func (s *script) phase(a at) Phase {
	if svc := s.s.Services[a.Service]; svc != nil && svc.gen(a.Gen) != nil {
		return svc.gen(a.Gen).Phase
	}
	return "gone"
}

func (s *script) wantPhase(a at, p Phase) *script {
	s.t.Helper()
	if got := s.phase(a); got != p {
		s.t.Fatalf("at %v, %v is %s, want %s", s.now.Sub(1e9), a, got, p)
	}
	return s
}

const crash = 9 // wait status: killed by SIGKILL

func web(change ...func(*Spec)) *Spec { return testSpec("web", change...) }

// TestWhoWins is the table of the design, cell by cell. Columns: reload, the
// serving program dies, TERM.
func TestWhoWins(t *testing.T) {
	bakes := bakes(time.Minute)
	narrow := func(s *Spec) { s.Config.Retire.MaxDraining = 1 }
	// waiting has generation 1 draining, 2 serving, and a reload that waits.
	waiting := func(t *testing.T) *script {
		s := serving(t, web(narrow))
		s.reload().prepared(web(narrow)).up(g("web", 2)).after(10 * time.Second)
		return s.reload().prepared(web(narrow)).any()
	}
	for name, story := range map[string]func(*testing.T){
		"serving/reload": func(t *testing.T) {
			s := serving(t, web()).reload().want("job 2", "prepare 2").prepared(web()).want("spawn web2")
			s.up(g("web", 2)).want("go web2", "accept web2", "commit web2", "ack web2", "drain web1")
			s.send(evAnswered{g("web", 1)}, evSight{at: g("web", 1)}).want("done 2: web2 serving released")
			s.end(g("web", 1), 0).want("kill web1 15", "reap web1").after(time.Hour).want()
		},
		"serving/dies": func(t *testing.T) {
			serving(t, web()).send(evExited{g("web", 1), 0}).want("kill web1 15", "spawn web2")
		},
		"serving/TERM": func(t *testing.T) {
			s := serving(t, web()).send(evStop{}).want("drain web1").send(evAnswered{g("web", 1)})
			s.end(g("web", 1), 0).want("kill web1 15", "reap web1", "exit 0")
		},
		"back-off/reload": func(t *testing.T) {
			s := serving(t, web()).send(evExited{g("web", 1), crash}, evGone{g("web", 1)}).any()
			s.send(evSpawnFailed{g("web", 2), "no"}).want("reap web2")
			s.reload().prepared(web(func(s *Spec) { s.Digest = "new" })).want("job 2", "prepare 2", "spawn web3")
			s.send(evSpawnFailed{g("web", 3), "no"}).want("reap web3", "done 2: web3 failed")
			s.after(110 * time.Millisecond).want("spawn web4")
			if got := s.s.Services["web"].gen(4).Spec.Digest; got != "" {
				t.Errorf("restarted with %q", got)
			}
		},
		"back-off/TERM": func(t *testing.T) {
			s := serving(t, web()).end(g("web", 1), crash).send(evSpawnFailed{g("web", 2), "no"}).any()
			s.send(evStop{}).want("exit 0").after(time.Hour).want()
		},
		"starting/reload": func(t *testing.T) {
			s := serving(t, web()).reload().prepared(web()).any()
			s.reload().want("job 3").reload().want("job 3").reload("web").want("job 3")
			s.up(g("web", 2)).want("go web2", "accept web2", "commit web2", "ack web2", "drain web1", "prepare 3")
		},
		"starting/dies": func(t *testing.T) {
			s := serving(t, web()).reload().prepared(web(func(s *Spec) { s.Digest = "new" })).any()
			s.send(evExited{g("web", 1), crash}).want("kill web1 15").after(10 * time.Second).want("kill web1 9")
			s.send(evSpawnFailed{g("web", 2), "no"}).want("reap web2", "spawn web3", "done 2: web2 failed")
			if got := s.s.Services["web"].gen(3).Spec.Digest; got != "" {
				t.Errorf("the last good spec was not started, but %q", got)
			}
		},
		"starting/TERM": func(t *testing.T) {
			s := serving(t, web()).reload().prepared(web()).send(evSpawned{at: g("web", 2), PID: 7}).any()
			s.send(evStop{}).want("kill web2 9", "done 2: web0 refused", "drain web1")
			s.end(g("web", 2), crash).end(g("web", 1), 0).want("reap web2", "kill web1 15", "reap web1", "exit 0")
		},
		"starting after a crash/reload": func(t *testing.T) {
			s := serving(t, web()).end(g("web", 1), crash).send(evSpawned{at: g("web", 2), PID: 7}).any()
			s.reload().prepared(web()).want("job 2", "prepare 2", "kill web2 9", "spawn web3")
			// And a newer one replaces that.
			s.send(evSpawned{at: g("web", 3), PID: 8}).any().reload().want("job 3", "prepare 3")
			s.prepared(web()).want("kill web3 9", "spawn web4", "done 2: web3 failed")
			if n := s.s.Services["web"].Failures; n != 0 {
				t.Errorf("to be replaced counted as %d failures", n)
			}
		},
		"starting after a crash, ready/reload": func(t *testing.T) {
			// Inside its settle: it has taken connections, since nobody else did, and finishes them.
			s := serving(t, web()).end(g("web", 1), crash).send(evSpawned{at: g("web", 2), PID: 7}).any()
			s.send(evHello{g("web", 2)}, evReady{g("web", 2), "native"}).any()
			s.reload().prepared(web()).want("job 2", "prepare 2", "drain web2", "spawn web3").wantPhase(g("web", 2), PhaseDraining)
			s.send(evSpawned{at: g("web", 3), PID: 8}, evHello{g("web", 3)}, evReady{g("web", 3), "native"}).any()
			s.reload().prepared(web()).want("job 3", "prepare 3", "drain web3", "spawn web4", "done 2: web3 failed")
		},
		"starting after a crash/dies": func(t *testing.T) {
			s := serving(t, web()).end(g("web", 1), crash).send(evSpawned{at: g("web", 2), PID: 7}).any()
			s.end(g("web", 2), crash).want("kill web2 9", "kill web2 9", "reap web2")
			s.after(89 * time.Millisecond).want().after(21 * time.Millisecond).want("spawn web3")
		},
		"starting after a crash/TERM": func(t *testing.T) {
			s := serving(t, web()).end(g("web", 1), crash).send(evSpawned{at: g("web", 2), PID: 7}).any()
			s.send(evStop{}).want("kill web2 9").end(g("web", 2), crash).want("reap web2", "exit 0")
		},
		"baking/reload": func(t *testing.T) {
			s := serving(t, web()).reload().prepared(web(bakes)).up(g("web", 2)).any().wantPhase(g("web", 2), PhaseBaking)
			s.reload().want("job 3").after(time.Minute).want("commit web2", "ack web2", "drain web1", "prepare 3")
		},
		"baking/dies": func(t *testing.T) {
			s := serving(t, web()).reload().prepared(web(bakes)).up(g("web", 2)).any()
			s.send(evExited{g("web", 1), crash}).want("kill web1 15", "commit web2", "ack web2", "done 2: web2 serving")
		},
		"baking/TERM": func(t *testing.T) {
			s := serving(t, web()).reload().prepared(web(bakes)).up(g("web", 2)).any()
			s.send(evStop{}).want("done 2: web0 refused", "drain web1", "drain web2")
		},
		"baking/the new one dies": func(t *testing.T) {
			s := serving(t, web()).reload().prepared(web(bakes)).up(g("web", 2)).any()
			s.end(g("web", 2), crash).want("kill web2 9", "kill web2 9", "done 2: web2 failed", "reap web2").wantPhase(g("web", 1), PhaseServing)
		},
		"waiting/reload": func(t *testing.T) {
			s := waiting(t).reload().want("job 4", "prepare 4").prepared(web(narrow)).want()
			s.end(g("web", 1), 0).want("kill web1 15", "reap web1", "spawn web3")
			s.up(g("web", 3)).send(evSight{at: g("web", 2)})
			s.want("go web3", "accept web3", "commit web3", "ack web3", "drain web2",
				"done 3: web3 serving released", "done 4: web3 serving released")
		},
		"waiting/dies": func(t *testing.T) {
			s := waiting(t).send(evExited{g("web", 2), crash}, evGone{g("web", 2)}).want("kill web2 15", "spawn web3", "reap web2")
			if why := s.s.Services["web"].gen(3).Why; why != WhyRestart {
				t.Errorf("it was started for a %s", why)
			}
			s.up(g("web", 3)).any().end(g("web", 1), 0).want("kill web1 15", "reap web1", "spawn web4")
		},
		"waiting/TERM": func(t *testing.T) {
			waiting(t).send(evStop{}).want("done 3: web0 refused", "drain web2")
		},
		"stopping/reload": func(t *testing.T) {
			serving(t, web()).send(evStop{}).any().reload().want("refuse stopping")
		},
		"stopping/dies": func(t *testing.T) {
			s := serving(t, web(func(s *Spec) { s.Config.Stop.LameDuck.For = 5 * time.Second })).send(evStop{}).want("lame web1")
			s.end(g("web", 1), crash).want("kill web1 15", "reap web1", "exit 0")
		},
		"stopping/TERM": func(t *testing.T) {
			s := serving(t, web()).send(evStop{}).any().send(evStop{}).want("kill web1 9")
			s.end(g("web", 1), crash).want("reap web1", "exit 3")
		},
		"removed twice": func(t *testing.T) {
			s := serving(t, web(), testSpec("app", narrow)).reload("app").prepared(testSpec("app", narrow)).up(g("app", 2)).any()
			s.reload("app").prepared(testSpec("app", narrow)).any() // it waits for a place
			s.reload().prepared(testSpec("app", narrow)).reload().prepared(testSpec("app", narrow)).any()
			s.end(g("app", 1), 0).up(g("app", 3)).any().end(g("app", 2), 0)
			s.wantPhase(g("web", 1), PhaseDraining).end(g("web", 1), 0)
			if len(s.s.Jobs) != 0 || s.s.Services["web"] != nil {
				t.Errorf("left: %v, %d jobs", s.s.Order, len(s.s.Jobs))
			}
			s.reload().prepared(testSpec("app", narrow), web()).end(g("app", 2), 0).up(g("app", 4)).any()
			s.up(g("web", 2)).want("go web2", "accept web2", "commit web2", "ack web2") // its numbers go on
		},
		"removed and back": func(t *testing.T) {
			app := func() *Spec { return testSpec("app", narrow) }
			s := serving(t, web(), app()).reload("app").prepared(app()).up(g("app", 2)).reload("app").prepared(app()).any()
			s.reload().prepared(app())        // removes web, once app has a place
			s.reload().prepared(app(), web()) // and brings it back
			s.up(g("web", 2)).end(g("app", 1), 0).up(g("app", 3)).wantPhase(g("web", 2), PhaseServing)
		},
	} {
		t.Run(name, story)
	}
}

func TestReadiness(t *testing.T) {
	w1 := g("web", 1)
	when := func(w string) func(*Spec) { return func(s *Spec) { s.Config.Ready.When = w } }
	blind := evSight{at: w1, Blind: true}
	polls := evSight{at: w1, Polls: true}
	ms := time.Millisecond
	for name, c := range map[string]struct {
		spec   *Spec
		events []event
		at     time.Duration // of the commit; 0: never
		by     string
	}{
		"native":                 {web(when("native")), []event{evHello{w1}, evReady{w1, "native"}, polls}, 100 * ms, "native"},
		"native, notify said":    {web(when("native")), []event{evHello{w1}, evReady{w1, "notify"}, polls}, 0, ""},
		"notify":                 {web(when("notify")), []event{evNotify{w1}, evReady{w1, "notify"}, polls}, 100 * ms, "notify"},
		"accepting":              {web(when("accepting")), []event{polls}, 350 * ms, "accepting"},
		"accepting, then not":    {web(when("accepting")), []event{polls, evSight{at: w1}}, 0, ""},
		"accepting, unseen":      {web(when("accepting")), []event{blind}, 0, ""},
		"alive":                  {web(when("alive")), []event{polls}, 1100 * ms, "alive"},
		"alive, not adopted":     {web(when("alive")), nil, 0, ""},
		"auto: hello":            {web(), []event{evHello{w1}, polls}, 0, ""},
		"auto: hello and ready":  {web(), []event{evHello{w1}, evReady{w1, "native"}, polls}, 100 * ms, "native"},
		"auto: hello and notify": {web(), []event{evHello{w1}, evReady{w1, "notify"}, polls}, 0, ""},
		"auto: notify":           {web(), []event{evNotify{w1}, polls}, 0, ""},
		"auto: READY":            {web(), []event{evNotify{w1}, evReady{w1, "notify"}, polls}, 100 * ms, "notify"},
		"auto: silent":           {web(), []event{polls}, 350 * ms, "accepting"},
		"auto: unseen":           {web(), []event{blind}, 1100 * ms, "alive"},
		"auto: no sockets":       {web(func(s *Spec) { s.Keys = nil }), nil, 1100 * ms, "alive"},
		"newline":                {web(when("newline")), []event{evReady{w1, "newline"}, polls}, 100 * ms, "newline"},
		"newline, notify said":   {web(when("newline")), []event{evNotify{w1}, evReady{w1, "notify"}, polls}, 0, ""},
		"http":                   {web(when("http"), probes), []event{evProbe{at: w1, OK: true}, polls}, 100 * ms, "http"},
		"tcp":                    {web(when("tcp"), probes), []event{evProbe{at: w1, OK: true}, polls}, 100 * ms, "tcp"},
		"exec":                   {web(when("exec"), probes), []event{evProbe{at: w1, OK: true}, polls}, 100 * ms, "exec"},
		"http, not adopted":      {web(when("http"), probes), []event{evProbe{at: w1, OK: true}}, 0, ""},
		"http, it says so":       {web(when("http"), probes), []event{evHello{w1}, evReady{w1, "native"}, polls}, 0, ""},
		"http, one failure":      {web(when("http"), probes), []event{evProbe{at: w1, Text: "refused"}, evProbe{at: w1, OK: true}, polls}, 100 * ms, "http"},
		"http, own socket only":  {web(when("http"), probes, ownOnly), []event{evProbe{at: w1, OK: true}}, 100 * ms, "http"},
		"auto, own socket only":  {web(ownOnly), nil, 1100 * ms, "alive"},
		"ready but not adopted":  {web(), []event{evReady{w1, "notify"}}, 0, ""},
		"listens elsewhere":      {web(), []event{evReady{w1, "notify"}, evSight{at: w1, Polls: true, Fault: "elsewhere"}}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			s.send(evReload{Request: 1, First: true}).prepared(c.spec).send(evSpawned{at: w1, PID: 7}).any()
			s.send(c.events...)
			if c.at == 0 {
				s.after(30*time.Second-time.Nanosecond).wantPhase(w1, PhaseStarting)
				s.after(time.Nanosecond).wantPhase(w1, PhaseKilling)
				return
			}
			s.after(c.at-time.Nanosecond).wantPhase(w1, PhaseStarting)
			s.after(time.Nanosecond).wantPhase(w1, PhaseServing)
			if by := s.s.Services["web"].gen(1).ReadyBy; by != c.by {
				t.Errorf("ready by %q, want %q", by, c.by)
			}
		})
	}
}

func TestInitGrace(t *testing.T) {
	start := func(t *testing.T) *script {
		return serving(t, web()).reload().prepared(web()).send(evSpawned{at: g("web", 2), PID: 7}).any()
	}
	t.Run("over", func(t *testing.T) {
		s := start(t).after(30*time.Second-1).want().after(1).want("kill web2 9", "done 2: web2 failed")
		s.wantPhase(g("web", 1), PhaseServing).end(g("web", 2), crash).after(time.Hour).want("reap web2")
	})
	t.Run("extended", func(t *testing.T) {
		s := start(t).after(20*time.Second).send(evExtend{g("web", 2), 15 * time.Second}, evExtend{g("web", 2), -time.Hour})
		s.after(15*time.Second-1).want().after(1).want("kill web2 9", "done 2: web2 failed")
	})
	t.Run("dies inside settle", func(t *testing.T) {
		s := start(t).send(evHello{g("web", 2)}, evReady{g("web", 2), "native"}).after(99 * time.Millisecond)
		s.end(g("web", 2), 256).want("kill web2 9", "kill web2 9", "done 2: web2 failed", "reap web2")
		s.wantPhase(g("web", 1), PhaseServing)
	})
	t.Run("late hello", func(t *testing.T) {
		s := serving(t, web()).reload().prepared(web()).any()
		s.send(evSpawned{at: g("web", 2), PID: 7}, evSight{at: g("web", 2), Blind: true}).after(2 * time.Second)
		s.want("go web2", "commit web2", "ack web2", "drain web1").send(evHello{g("web", 2)})
		s.want("accept web2", "ack web2")
	})
	t.Run("rolled back after it was told to accept", func(t *testing.T) {
		s := start(t).send(evHello{g("web", 2)}, evReady{g("web", 2), "native"}).after(30 * time.Second)
		s.want("accept web2", "drain web2", "done 2: web2 failed").after(25*time.Second).want("signal web2 15", "signal web2 15", "kill web2 9")
	})
	t.Run("gone before it was spawned", func(t *testing.T) {
		s := serving(t, web()).reload().prepared(web()).any().send(evGone{g("web", 2)}).want()
		s.up(g("web", 2)).wantPhase(g("web", 2), PhaseServing)
	})
}

// TestLadder: the times of each rung, counted from the commit.
// A native generation is told as its deadline when it is signalled next, so that it can leave by itself before: the
// SIGTERM a kill grace before SIGKILL, for every drain signal.
func TestToldDeadline(t *testing.T) {
	for name, sig := range map[string]int{"SIGTERM": sigTerm, "SIGUSR1": sigUSR1} {
		t.Run(name, func(t *testing.T) {
			old := web(func(s *Spec) { s.Drain, s.Config.Retire.ParentShutdown = sig, time.Minute })
			s := newScript(t).send(evReload{Request: 1, First: true}).prepared(old)
			s.send(evSpawned{at: g("web", 1), PID: 7}, evHello{g("web", 1)}, evReady{g("web", 1), "native"}, evSight{at: g("web", 1), Polls: true})
			s.after(time.Second).reload().prepared(web()).send(evSpawned{at: g("web", 2), PID: 8})
			s.send(evReady{g("web", 2), "notify"}).after(time.Second)
			told := func(e event) proc.Instant {
				_, acts := transition(s.s, e, s.now)
				for _, a := range acts {
					if d, ok := a.(acDrain); ok && d.Gen == 1 {
						return d.Deadline
					}
				}
				t.Fatal("it is told nothing")
				return 0
			}
			// The sight commits the new one.
			commits := evSight{at: g("web", 2), Polls: true}
			if got, want := told(commits), s.now.Add(55*time.Second); got != want {
				t.Errorf("told %v at the commit, want %v", got, want)
			}
			// A stop brings the deadline forward, and says so.
			s.send(commits, evAnswered{g("web", 1)})
			if got, want := told(evStop{}), s.now.Add(20*time.Second); got != want {
				t.Errorf("told %v by the stop, want %v", got, want)
			}
		})
	}
}

// TestToldLate: one that says hello only when it drains is told the same: a SIGTERM comes before the SIGKILL, unless it has
// had that already.
func TestToldLate(t *testing.T) {
	for name, c := range map[string]struct {
		sig   int
		wants time.Duration
	}{"SIGTERM": {sigTerm, time.Minute}, "SIGUSR1": {sigUSR1, 55 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t).send(evReload{Request: 1, First: true})
			s.prepared(web(func(s *Spec) { s.Drain, s.Config.Retire.ParentShutdown = c.sig, time.Minute }))
			s.send(evSpawned{at: g("web", 1), PID: 7}, evSight{at: g("web", 1), Polls: true}).after(time.Second)
			s.reload().prepared(web()).up(g("web", 2)).wantPhase(g("web", 1), PhaseDraining)
			began := s.s.Services["web"].gen(1).DrainBegan
			_, acts := transition(s.s, evHello{g("web", 1)}, s.now)
			if len(acts) != 1 || acts[0] != (acDrain{g("web", 1), "reload", began.Add(c.wants)}) {
				t.Errorf("told %+v, want until %v after its begin", acts, c.wants)
			}
		})
	}
}

func TestLadder(t *testing.T) {
	usr1 := func(s *Spec) { s.Drain = sigUSR1 }
	minute := func(s *Spec) { s.Config.Retire.ParentShutdown = time.Minute }
	for name, c := range map[string]struct {
		old    *Spec
		hello  bool
		answer bool
		want   map[time.Duration][]string
	}{
		"silent, SIGTERM": {old: web(minute), want: map[time.Duration][]string{
			0: {"signal web1 15"}, time.Minute: {"kill web1 9"},
		}},
		"silent, SIGUSR1": {old: web(minute, usr1), want: map[time.Duration][]string{
			0: {"signal web1 10"}, 55 * time.Second: {"signal web1 15"}, time.Minute: {"kill web1 9"},
		}},
		"native, answers": {old: web(minute, usr1), hello: true, answer: true, want: map[time.Duration][]string{
			0: {"drain web1"}, 55 * time.Second: {"signal web1 15"}, time.Minute: {"kill web1 9"},
		}},
		"native, silent": {old: web(minute, usr1), hello: true, want: map[time.Duration][]string{
			0: {"drain web1"}, time.Second: {"signal web1 10"}, 55 * time.Second: {"signal web1 15"}, time.Minute: {"kill web1 9"},
		}},
		"a grace as long as the deadline": {
			old:  web(usr1, func(s *Spec) { s.Config.Retire.ParentShutdown, s.Config.Retire.KillGrace = time.Second, time.Second }),
			want: map[time.Duration][]string{0: {"signal web1 10", "signal web1 15"}, time.Second: {"kill web1 9"}},
		},
		"not released, terminated": {
			old:  web(usr1, func(s *Spec) { s.Config.Retire.OnNoRelease = "terminate" }),
			want: map[time.Duration][]string{0: {"signal web1 10"}, 5 * time.Second: {"signal web1 15"}, 10 * time.Second: {"kill web1 9"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t).send(evReload{Request: 1, First: true}).prepared(c.old)
			s.send(evSpawned{at: g("web", 1), PID: 7}, evReady{g("web", 1), "notify"}, evSight{at: g("web", 1), Polls: true})
			if c.hello {
				s.send(evHello{g("web", 1)})
			}
			s.after(time.Second).reload().prepared(web()).up(g("web", 2))
			began := s.s.Services["web"].gen(1).DrainBegan
			if s.now != began {
				t.Fatalf("the drain began at %v", began)
			}
			if c.answer {
				s.send(evAnswered{g("web", 1)})
			}
			got := map[time.Duration][]string{}
			note := func() {
				for _, a := range s.acts {
					if strings.HasSuffix(strings.Split(a, " ")[1], "web1") && !strings.HasPrefix(a, "done") && !strings.HasPrefix(a, "go") &&
						!strings.HasPrefix(a, "commit") && !strings.HasPrefix(a, "ack") && !strings.HasPrefix(a, "accept") {
						d := s.now.Sub(began)
						got[d] = append(got[d], a)
					}
				}
				s.any()
			}
			s.acts = slices.DeleteFunc(s.acts, func(a string) bool { return !strings.HasPrefix(a, "drain") && !strings.HasPrefix(a, "signal") })
			note()
			for next := nextDeadline(&s.s, s.now); next != 0; next = nextDeadline(&s.s, s.now) {
				s.now = next
				s.send(evTick{})
				note()
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
	t.Run("what it started has no longer", func(t *testing.T) {
		s := serving(t, web(minute)).reload().prepared(web()).up(g("web", 2)).after(58 * time.Second).any()
		s.send(evExited{g("web", 1), 0}).want("kill web1 15").after(2 * time.Second).want("kill web1 9")
	})
	t.Run("stuck", func(t *testing.T) {
		s := serving(t, web(minute)).reload().prepared(web()).up(g("web", 2)).after(time.Minute).any()
		s.after(5*time.Second - 1)
		if s.s.Services["web"].gen(1).Stuck || s.s.Services["web"].retired() != 1 {
			t.Error("stuck too early")
		}
		s.after(1)
		if !s.s.Services["web"].gen(1).Stuck || s.s.Services["web"].retired() != 0 {
			t.Error("not stuck, or it still has a place")
		}
	})
}

func TestMaxDraining(t *testing.T) {
	story := func(t *testing.T, on string) *script {
		spec := func() *Spec {
			return web(func(s *Spec) { s.Config.Retire.MaxDraining, s.Config.Retire.OnMaxDraining = 2, on })
		}
		s := serving(t, spec())
		for n := 2; n <= 3; n++ {
			s.reload().prepared(spec()).up(g("web", n)).after(10 * time.Second)
		}
		s.any().reload().want("job 4", "prepare 4")
		return s.prepared(spec())
	}
	t.Run("wait", func(t *testing.T) {
		s := story(t, "wait").want().end(g("web", 2), 0).want("kill web2 15", "reap web2", "spawn web4")
		s.send(evReload{Request: 99, NoQueue: true}).want("refuse busy")
	})
	t.Run("refuse", func(t *testing.T) { story(t, "refuse").want("done 4: web0 refused") })
	t.Run("kill-oldest", func(t *testing.T) {
		s := story(t, "kill-oldest").want("kill web1 9").wantPhase(g("web", 2), PhaseDraining)
		s.end(g("web", 1), crash).want("reap web1", "spawn web4")
	})
	t.Run("no queue", func(t *testing.T) {
		s := story(t, "wait").want()
		s.send(evReload{Request: 99, NoQueue: true}).want("refuse busy")
	})
	t.Run("full after it was prepared", func(t *testing.T) {
		one := func() *Spec { return web(func(s *Spec) { s.Config.Retire.MaxDraining = 1 }) }
		s := serving(t, web()).reload().prepared(web()).up(g("web", 2)).after(10 * time.Second).any()
		s.send(evReload{Request: 99, NoQueue: true}).want("job 3", "prepare 3").prepared(one()).want("done 3: web0 refused")
	})
}

func TestBackOff(t *testing.T) {
	// die kills generation n after it served for d and says when the next is spawned.
	die := func(s *script, n int, d time.Duration) time.Duration {
		s.up(g("web", n)).after(d).any()
		died := s.now
		s.send(evExited{g("web", n), crash}, evGone{g("web", n)})
		for i := 0; !slices.Contains(s.acts, fmt.Sprintf("spawn web%d", n+1)); i++ {
			s.now = nextDeadline(&s.s, s.now)
			s.send(evTick{})
			if i > 20 {
				s.t.Fatalf("generation %d is never spawned", n+1)
			}
		}
		return s.now.Sub(died)
	}
	start := func(t *testing.T) *script {
		return newScript(t).send(evReload{Request: 1, First: true}).prepared(web())
	}
	near := func(t *testing.T, what string, got, want time.Duration) {
		t.Helper()
		if got < want*9/10 || got > want*11/10 {
			t.Errorf("%s: replaced after %v, want %v", what, got, want)
		}
	}
	ms := time.Millisecond
	t.Run("doubles", func(t *testing.T) {
		s := start(t)
		for n := 1; n <= 12; n++ {
			near(t, fmt.Sprint("death ", n), die(s, n, 0), min(100*ms<<(n-1), 30*time.Second))
		}
		near(t, "after 2 s", die(s, 13, 2*time.Second), 30*time.Second)
		near(t, "after 10 s of serving", die(s, 14, 10*time.Second), 0)
		near(t, "it starts anew", die(s, 15, 0), 100*ms)
	})
	t.Run("longer than the delay", func(t *testing.T) {
		s := start(t)
		near(t, "served 500 ms", die(s, 1, 500*ms), 0)
		near(t, "again", die(s, 2, 500*ms), 0)
		near(t, "delay 400 ms", die(s, 3, 300*ms), 400*ms)
		near(t, "2 s is no crash", die(s, 4, 2*time.Second), 0)
		near(t, "and does not double", die(s, 5, 0), 800*ms)
	})
	t.Run("first start fails", func(t *testing.T) {
		s := start(t).any().send(evSpawnFailed{g("web", 1), "no such file"}).want("reap web1", "done 1: web1 failed")
		s.after(110 * ms).want("spawn web2").send(evSpawnFailed{g("web", 2), "no"}).after(150 * ms).want("reap web2")
		s.after(100 * ms).want("spawn web3")
	})
	t.Run("exit 0 is a death too", func(t *testing.T) {
		s := start(t).up(g("web", 1)).any().end(g("web", 1), 0).after(110*ms).want("kill web1 15", "reap web1", "spawn web2")
		s.wantPhase(g("web", 2), PhaseStarting)
	})
}

func TestSeveralServices(t *testing.T) {
	app := func(change ...func(*Spec)) *Spec { return testSpec("app", change...) }
	after := func(s *Spec) { s.Config.After = []string{"app"} }
	t.Run("in order", func(t *testing.T) {
		s := newScript(t).send(evReload{Request: 1, First: true}).prepared(app(), web(after)).want("job 1", "prepare 1", "spawn app1")
		s.up(g("app", 1)).want("go app1", "accept app1", "commit app1", "ack app1", "spawn web1")
		s.up(g("web", 1)).want("go web1", "accept web1", "commit web1", "ack web1", "done 1: app1 serving, web1 serving")
	})
	t.Run("first start waits", func(t *testing.T) {
		s := newScript(t).send(evReload{Request: 1, First: true}).prepared(app(), web(after)).any()
		s.send(evSpawnFailed{g("app", 1), "no"}).want("reap app1").after(110 * time.Millisecond).want("spawn app2")
		// A reload in between that does not help ends, the first start goes on waiting.
		s.reload().prepared(app(), web(after)).want("job 2", "prepare 2", "spawn app3")
		s.send(evSpawnFailed{g("app", 3), "no"}).want("reap app3", "done 2: app3 failed, web0 skipped")
	})
	t.Run("skipped", func(t *testing.T) {
		s := serving(t, app(), web(after)).reload().prepared(app(func(s *Spec) { s.Digest = "new" }), web(after)).any()
		s.send(evSpawnFailed{g("app", 2), "no"}).want("reap app2", "done 2: app2 failed, web0 skipped")
		if s.s.Services["app"].Spec.Digest != "" {
			t.Error("the old spec was not kept")
		}
	})
	t.Run("not skipped without after", func(t *testing.T) {
		s := serving(t, app(), web()).reload().prepared(app(), web()).any()
		s.send(evSpawnFailed{g("app", 2), "no"}).want("reap app2", "spawn web2")
	})
	t.Run("added and removed", func(t *testing.T) {
		s := serving(t, app()).reload().prepared(web()).want("job 2", "prepare 2", "spawn web1")
		s.wantPhase(g("app", 1), PhaseServing).up(g("web", 1))
		s.want("go web1", "accept web1", "commit web1", "ack web1", "drain app1", "done 2: web1 serving, app0 removed")
		s.send(evAnswered{g("app", 1)}).end(g("app", 1), 0)
		if d := cmp.Diff([]string{"web"}, s.s.Order); d != "" {
			t.Error(d)
		}
	})
	t.Run("opposite orders", func(t *testing.T) {
		narrow := func(s *Spec) { s.Config.Retire.MaxDraining = 1 }
		s := serving(t, app(narrow), web(narrow)).reload().prepared(app(narrow), web(narrow)).up(g("app", 2)).up(g("web", 2)).after(10 * time.Second)
		s.reload("web").prepared(web(narrow, after)).reload("app").prepared(app(narrow, func(s *Spec) { s.Config.After = []string{"web"} })).any()
		s.end(g("app", 1), 0).up(g("app", 3)).end(g("web", 1), 0).up(g("web", 3))
		s.wantPhase(g("app", 3), PhaseServing).wantPhase(g("web", 3), PhaseServing)
	})
	t.Run("refused", func(t *testing.T) {
		s := serving(t, app()).reload().any().send(evPrepared{Job: 2, Fault: "bind: in use"}).want("done 2: 0 refused")
		s.wantPhase(g("app", 1), PhaseServing)
	})
}

func TestStop(t *testing.T) {
	app := func() *Spec { return testSpec("app") }
	after := func(s *Spec) { s.Config.After = []string{"app"} }
	t.Run("in reverse order", func(t *testing.T) {
		s := serving(t, app(), web(after)).send(evStop{}).want("drain web1").send(evAnswered{g("web", 1)})
		s.end(g("web", 1), 0).want("kill web1 15", "reap web1", "drain app1").send(evAnswered{g("app", 1)})
		s.end(g("app", 1), 0).want("kill app1 15", "reap app1", "exit 0")
	})
	t.Run("the deadline contains everything", func(t *testing.T) {
		s := serving(t, app(), web(after)).send(evStop{}).want("drain web1")
		s.after(time.Second).want("signal web1 15").after(14*time.Second - 1).want().after(1).want("drain app1")
		s.after(10*time.Second-1).want("signal app1 15", "signal app1 15", "signal web1 15").after(1).want("kill app1 9", "kill web1 9")
		s.after(900*time.Millisecond - 1).want().after(1).want("exit 3").after(time.Hour).want()
	})
	t.Run("cut", func(t *testing.T) {
		s := serving(t, web()).send(evStop{}).after(25*time.Second).any().end(g("web", 1), crash).want("reap web1", "exit 3")
		if d := cmp.Diff([]string{"web generation 1"}, s.s.Stop.Cut); d != "" {
			t.Error(d)
		}
	})
	t.Run("lame duck", func(t *testing.T) {
		s := serving(t, web(func(s *Spec) { s.Config.Stop.LameDuck.For = 3 * time.Second })).send(evStop{}).want("lame web1")
		s.after(3*time.Second-1).want().after(1).want("lame duck over by timer after 3s", "drain web1")
	})
	t.Run("no commit in a lame duck", func(t *testing.T) {
		s := serving(t, web(func(s *Spec) { s.Config.Stop.LameDuck.For = 3 * time.Second }))
		s.reload().prepared(web(func(s *Spec) { s.Config.Ready.Bake = time.Second })).up(g("web", 2)).any()
		s.send(evStop{}).want("lame web1", "lame web2", "done 2: web0 refused").after(3*time.Second).want("lame duck over by timer after 3s", "drain web1", "drain web2")
	})
	t.Run("keeps the earlier deadline", func(t *testing.T) {
		s := serving(t, web(func(s *Spec) { s.Config.Retire.ParentShutdown = time.Minute })).reload().prepared(web()).up(g("web", 2))
		s.after(50 * time.Second).any().send(evStop{}).after(10*time.Second - 1).any()
		s.after(1).want("kill web1 9")
	})
	t.Run("now", func(t *testing.T) {
		s := serving(t, web()).send(evStop{Now: true}).want("kill web1 9").after(5 * time.Second).want("exit 3")
		if !s.s.Services["web"].gen(1).Stuck {
			t.Error("it waited for nothing")
		}
	})
	t.Run("of nothing", func(t *testing.T) { newScript(t).send(evStop{}).want("exit 0") })
}

func BenchmarkTransition(b *testing.B) {
	s := newScript(nil)
	s.send(evReload{Request: 1, First: true}).prepared(testSpec("app"), web())
	s.up(g("app", 1)).up(g("web", 1)).reload().prepared(testSpec("app"), web()).up(g("app", 2)).up(g("web", 2))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = transition(s.s, evTick{}, s.now)
	}
}
