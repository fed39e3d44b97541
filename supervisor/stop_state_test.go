package supervisor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func lameBy(d LameDuckConfig) func(*Spec) { return func(s *Spec) { s.Config.Stop.LameDuck = d } }

var announces = func(s *Spec) {
	s.Config.Stop.Announce = AnnounceConfig{File: "/run/lame", Exec: []string{"on"}, ExecOff: []string{"off"}}
}

func (s *script) duties() []string {
	var out []string
	for _, d := range s.s.duties() {
		out = append(out, d.Kind+" "+d.Service)
	}
	return out
}

func (s *script) wantDuties(duties ...string) *script {
	s.t.Helper()
	if d := cmp.Diff(duties, s.duties()); d != "" {
		s.t.Fatalf("at %v, hooks (-want +got):\n%s", s.now.Sub(1e9), d)
	}
	return s
}

// done ends the hook that is under way.
func (s *script) done(fault string) *script {
	s.t.Helper()
	all := s.s.duties()
	if len(all) != 1 {
		s.t.Fatalf("%d hooks are under way: %v", len(all), s.duties())
	}
	return s.send(evDuty{duty: all[0], Fault: fault})
}

func TestLameDuck(t *testing.T) {
	probes := LameDuckConfig{Until: "probes", Max: 10 * time.Second, Probes: ProbesConfig{Count: 3, Per: "address", Then: 4 * time.Second}}
	ask := LameDuckConfig{Until: "exec", Max: 10 * time.Second, Ask: HookConfig{Exec: []string{"ask"}}}
	seen := func(s *script) *script { return s.send(evProbed{"web", s.s.Services["web"].Lame.Began}) }
	t.Run("probes, then", func(t *testing.T) {
		s := serving(t, web(lameBy(probes))).send(evStop{}).want("lame web1").after(2 * time.Second)
		seen(s).after(4*time.Second-1).want().after(1).want("lame duck over by probes after 6s", "drain web1")
	})
	t.Run("probes of another lame duck", func(t *testing.T) {
		s := serving(t, web(lameBy(probes))).send(evStop{}).any().send(evProbed{"web", 5}, evProbed{"nobody", 5})
		s.after(10*time.Second).want("lame duck over by max after 10s", "drain web1")
	})
	t.Run("probes too late", func(t *testing.T) {
		s := serving(t, web(lameBy(probes))).send(evStop{}).any().after(9 * time.Second)
		seen(s).after(time.Second).want("lame duck over by max after 10s", "drain web1")
	})
	t.Run("asks", func(t *testing.T) {
		s := serving(t, web(lameBy(ask))).send(evStop{}).want("lame web1").wantDuties("ask web").after(2 * time.Second)
		s.done("").want("lame duck over by exec after 2s", "drain web1").wantDuties()
	})
	t.Run("asks in vain", func(t *testing.T) {
		s := serving(t, web(lameBy(ask))).send(evStop{}).any().after(10 * time.Second)
		s.want("lame duck over by max after 10s", "drain web1").wantDuties()
	})
	t.Run("the timer counts from the announcement", func(t *testing.T) {
		s := serving(t, web(announces, lameBy(LameDuckConfig{Until: "timer", For: 3 * time.Second, Max: 5 * time.Second})))
		s.send(evStop{}).want("lame web1").wantDuties("announce web").after(time.Second).done("").wantDuties()
		s.after(3*time.Second-1).want().after(1).want("lame duck over by timer after 4s", "drain web1")
	})
	t.Run("an announcement that hangs", func(t *testing.T) {
		s := serving(t, web(announces, lameBy(LameDuckConfig{Until: "timer", Max: 5 * time.Second})))
		s.send(evStop{}).any().after(5*time.Second).want("lame duck over by max after 5s", "drain web1").wantDuties()
	})
	t.Run("an announcement that fails", func(t *testing.T) {
		s := serving(t, web(announces, lameBy(LameDuckConfig{Until: "timer", Max: 5 * time.Second})))
		s.send(evStop{}).any().after(time.Second).done("exit status 1").want("lame duck over by timer after 1s", "drain web1")
	})
	t.Run("the first start takes back what was announced", func(t *testing.T) {
		s := newScript(t)
		s.send(evReload{Request: 1, First: true}).prepared(web(announces)).up(g("web", 1)).wantDuties("undo web")
		s.done("").wantDuties().reload().prepared(web(announces)).up(g("web", 2)).wantDuties()
	})
	t.Run("taken back in vain", func(t *testing.T) {
		s := newScript(t)
		s.send(evReload{Request: 1, First: true}).prepared(web(announces)).up(g("web", 1)).after(undoLimit).wantDuties()
	})
	t.Run("stop now", func(t *testing.T) {
		s := serving(t, web(lameBy(probes))).send(evStop{}).any().after(time.Second).send(evStop{})
		s.want("lame duck over by stop now after 1s", "kill web1 9")
	})
}

// A lame duck by command: it serves on, whatever happens, until a stop or --off.
func TestLameDuckByCommand(t *testing.T) {
	for5 := lameBy(LameDuckConfig{Until: "timer", For: 5 * time.Second, Max: 10 * time.Second})
	ready := func(s *script, want bool) {
		t.Helper()
		if got := s.s.Services["web"].ready(); got != want {
			t.Errorf("at %v ready is %v", s.now.Sub(1e9), got)
		}
	}
	t.Run("then the stop does not wait again", func(t *testing.T) {
		s := serving(t, web(for5)).send(evLame{Request: 1}).want("lame duck", "lame web1")
		ready(s, false)
		s.after(2 * time.Second).send(evLame{Request: 2}).want("lame duck").after(3 * time.Second).want("lame duck over by timer after 5s")
		s.after(time.Hour).want().wantPhase(g("web", 1), PhaseServing)
		ready(s, false)
		s.send(evStop{}).want("drain web1")
	})
	t.Run("a stop in the middle waits for the rest", func(t *testing.T) {
		s := serving(t, web(for5)).send(evLame{Request: 1}).any().after(2 * time.Second).send(evStop{}).want()
		s.after(3*time.Second-1).want().after(1).want("lame duck over by timer after 5s", "drain web1")
	})
	t.Run("off", func(t *testing.T) {
		s := serving(t, web(for5, announces)).send(evLame{Request: 1}).any().wantDuties("announce web")
		s.done("").wantDuties().send(evLame{Request: 2, Off: true}).want("lame duck").wantDuties("undo web")
		ready(s, true)
		s.done("").wantDuties().send(evLame{Request: 3, Off: true}).want("lame duck").wantDuties()
		s.send(evLame{Request: 4}).want("lame duck", "lame web1").wantDuties("announce web")
	})
	t.Run("reload and restart go on", func(t *testing.T) {
		s := serving(t, web(for5)).send(evLame{Request: 1}).any()
		s.reload().prepared(web(for5)).up(g("web", 2)).want("job 2", "prepare 2", "spawn web2", "go web2", "accept web2",
			"commit web2", "ack web2", "lame web2", "drain web1")
		s.after(20*time.Second).any().end(g("web", 2), crash).want("kill web2 15", "spawn web3", "reap web2")
		ready(s, false)
	})
	t.Run("refused", func(t *testing.T) {
		s := serving(t, web(for5)).send(evLame{Request: 1, Services: []string{"app"}}).want("lame duck no such service")
		s.send(evStop{}).any().send(evLame{Request: 2, Off: true}).want("lame duck stopping")
		s.send(evLame{Request: 3}).want("lame duck")
	})
	t.Run("one of two", func(t *testing.T) {
		s := serving(t, testSpec("app", for5), web(for5)).send(evLame{Request: 1, Services: []string{"app"}}).want("lame duck", "lame app1")
		ready(s, true)
	})
}

// A stop at short notice scales all that comes before its end.
func TestStopWithin(t *testing.T) {
	slow := func(s *Spec) {
		s.Config.Stop.LameDuck = LameDuckConfig{Until: "timer", For: 10 * time.Second, Max: 15 * time.Second}
		s.Drain = sigUSR1
	}
	t.Run("from the begin", func(t *testing.T) { // 25 s become 5
		s := serving(t, web(slow)).send(evStop{Within: 5 * time.Second}).want("lame web1")
		s.after(2*time.Second).want("lame duck over by timer after 2s", "drain web1").send(evAnswered{g("web", 1)})
		s.after(2*time.Second - 1).want().after(1).want("signal web1 15").after(time.Second).want("kill web1 9")
		s.after(900 * time.Millisecond).want("exit 3")
	})
	t.Run("in the lame duck", func(t *testing.T) { // of 20 s half are left, of its 5 s as well
		s := serving(t, web(slow)).send(evStop{}).any().after(5 * time.Second).send(evStop{Within: 10 * time.Second}).want()
		s.after(2500*time.Millisecond).want("lame duck over by timer after 7.5s", "drain web1").send(evAnswered{g("web", 1)})
		s.after(5 * time.Second).want("signal web1 15").after(2500 * time.Millisecond).want("kill web1 9")
	})
	t.Run("in the drain", func(t *testing.T) {
		s := serving(t, web()).send(evStop{}).send(evAnswered{g("web", 1)}).any().send(evStop{Within: 5 * time.Second})
		s.want("drain web1").after(4 * time.Second).want("signal web1 15").after(time.Second).want("kill web1 9")
	})
	t.Run("longer than there is", func(t *testing.T) {
		s := serving(t, web()).send(evStop{Within: time.Hour}).want("drain web1").after(time.Second)
		s.want("signal web1 15").send(evStop{Within: time.Hour}).want().after(19 * time.Second).want("signal web1 15").after(5 * time.Second).want("kill web1 9")
	})
}

// What the kernel has completed on a socket that leaves is accepted before anybody is told to drain.
func TestQueue(t *testing.T) {
	full := func(s *script) *script { s.full = true; return s }
	removed := func(s *Spec) { s.Keys = []SocketKey{{Name: "http", Key: "tcp:80"}, {Name: "old", Key: "tcp:81"}} }
	t.Run("stop", func(t *testing.T) {
		s := full(serving(t, web())).send(evStop{}).want().after(time.Second).want()
		s.send(evLeft{[]string{"tcp:81"}}).want().send(evLeft{[]string{"tcp:80"}}).want("drain web1")
	})
	t.Run("at most two seconds", func(t *testing.T) {
		s := full(serving(t, web())).send(evStop{}).after(2*time.Second - 1).want().after(1).want("drain web1")
		s.send(evLeft{[]string{"tcp:80"}}).want()
	})
	t.Run("what was not seen empty is named as in the file", func(t *testing.T) {
		s := full(serving(t, web())).send(evStop{})
		_, actions := transition(s.s, evTick{}, s.now.Add(2*time.Second))
		named := slices.ContainsFunc(actions, func(a action) bool {
			n, ok := a.(acNote)
			return ok && n.Text == "the queue of [http] was not seen empty: connections in it may be reset"
		})
		if !named {
			t.Errorf("no such note: %v", actions)
		}
	})
	t.Run("not into the kill grace", func(t *testing.T) {
		s := full(serving(t, web(func(s *Spec) { s.Config.Stop.Deadline = 6 * time.Second }))).send(evStop{})
		s.after(time.Second-1).want().after(1).want("drain web1", "signal web1 15")
	})
	t.Run("a removed socket", func(t *testing.T) {
		s := full(serving(t, web(removed))).reload().prepared(web()).up(g("web", 2)).any()
		s.wantPhase(g("web", 1), PhaseDraining).send(evLeft{[]string{"tcp:81"}}).want("drain web1")
	})
	t.Run("a kept socket is nobody's to empty", func(t *testing.T) {
		s := full(serving(t, web())).reload().prepared(web()).up(g("web", 2))
		s.want("job 2", "prepare 2", "spawn web2", "go web2", "accept web2", "commit web2", "ack web2", "drain web1")
	})
	t.Run("a start follows that is given the socket", func(t *testing.T) {
		full(serving(t, web())).send(evStop{Keeps: true}).want("drain web1").end(g("web", 1), 0).want("kill web1 15", "reap web1", "exit 0")
	})
	t.Run("systemd has it in a socket unit", func(t *testing.T) {
		s := full(serving(t, web()))
		s.s.Passed = []string{"tcp:80"}
		s.send(evStop{}).want("drain web1")
	})
	t.Run("another service has it", func(t *testing.T) {
		s := full(serving(t, testSpec("app"), web(func(s *Spec) { s.Config.After = []string{"app"} }))).send(evStop{})
		s.want("drain web1").send(evAnswered{g("web", 1)}).end(g("web", 1), 0).any()
		s.wantPhase(g("app", 1), PhaseDraining).want().send(evLeft{[]string{"tcp:80"}}).want("drain app1")
	})
	t.Run("it dies meanwhile", func(t *testing.T) {
		s := full(serving(t, web())).send(evStop{}).end(g("web", 1), 0)
		s.want("kill web1 15", "reap web1", "exit 0")
	})
	t.Run("a late hello is told with the rest", func(t *testing.T) {
		s := full(newScript(t))
		quiet := web(func(s *Spec) { s.Config.Ready.When = "accepting" })
		s.send(evReload{Request: 1, First: true}).prepared(quiet)
		s.send(evSpawned{at: g("web", 1), PID: 7, StartTime: 1}, evSight{at: g("web", 1), Polls: true}).after(time.Second).any()
		s.send(evStop{}).want().send(evHello{g("web", 1)}).want().send(evLeft{[]string{"tcp:80"}}).want("drain web1")
	})
}

// hold delays what would end a program that has no handler.
func TestHold(t *testing.T) {
	held := func(s *Spec) { s.Config.Stop.Quiet = 5 * time.Second }
	plain := func(t *testing.T, change ...func(*Spec)) *script {
		s := newScript(t)
		spec := web(append(change, held, func(s *Spec) { s.Config.Ready.When = "accepting" })...)
		s.send(evReload{Request: 1, First: true}).prepared(spec)
		s.send(evSpawned{at: g("web", 1), PID: 7, StartTime: 1}, evSight{at: g("web", 1), Polls: true})
		s.after(20 * time.Second).any()
		s.full = true
		return s
	}
	t.Run("silent", func(t *testing.T) {
		s := plain(t).send(evStop{}).want().after(3 * time.Second).send(evQuiet{"web"}).want()
		s.send(evLeft{[]string{"tcp:80"}}).want() // who came in the queue has to fall silent too
		s.after(time.Second).want().send(evQuiet{"web"}).want("signal web1 15")
		s.end(g("web", 1), 15).want("kill web1 15", "reap web1", "exit 0")
	})
	t.Run("never silent", func(t *testing.T) {
		s := plain(t).send(evStop{}).after(18*time.Second-1).want().after(1).want().wantPhase(g("web", 1), PhaseDraining)
		s.after(2*time.Second).want("signal web1 15").end(g("web", 1), 15).want("kill web1 15", "reap web1", "exit 3")
	})
	t.Run("silent, and not again", func(t *testing.T) {
		s := plain(t).send(evStop{}).send(evQuiet{"web"}, evLeft{[]string{"tcp:80"}}).after(20*time.Second - 1).want().after(1).want("signal web1 15")
		s.end(g("web", 1), 15).want("kill web1 15", "reap web1", "exit 3")
	})
	t.Run("a reload does not hold", func(t *testing.T) {
		s := plain(t).reload().prepared(web(held)).up(g("web", 2)).any()
		s.wantPhase(g("web", 1), PhaseDraining)
		if !s.s.Services["web"].gen(1).Signalled {
			t.Error("the old one was not signalled at the commit")
		}
	})
	t.Run("at short notice", func(t *testing.T) {
		s := plain(t).send(evStop{Within: 5 * time.Second})
		if got := s.s.Services["web"].hold(); got != time.Second {
			t.Errorf("silent for %v, want a fifth of 5s", got)
		}
		s.after(4 * time.Second).want("signal web1 15").after(time.Second).want("kill web1 9")
	})
}

// A drain hook takes the place of the drain signal, at a reload and at a stop.
func TestDrainHook(t *testing.T) {
	hook := func(s *Spec) { s.Config.Retire.Drain = HookConfig{Exec: []string{"drain"}} }
	plain := func(s *Spec) { s.Config.Ready.When = "accepting" }
	up := func(s *script, a at) *script {
		s.send(evSpawned{at: a, PID: 7, StartTime: 1}, evSight{at: a, Polls: true})
		return s.after(time.Second).any()
	}
	begin := func(t *testing.T) *script {
		s := newScript(t)
		s.send(evReload{Request: 1, First: true}).prepared(web(hook, plain))
		return up(s, g("web", 1))
	}
	t.Run("reload", func(t *testing.T) {
		s := up(begin(t).reload().prepared(web(hook, plain)), g("web", 2)).wantDuties("drain web").done("").wantDuties()
		s.send(evSight{at: g("web", 1)}).want("done 2: web2 serving released")
		s.after(time.Hour).want("signal web1 15", "kill web1 9")
	})
	t.Run("stop", func(t *testing.T) {
		s := begin(t).send(evStop{}).want().wantDuties("drain web").done("exit status 1").wantDuties()
		s.after(20 * time.Second).want("signal web1 15").after(5 * time.Second).want("kill web1 9")
	})
	t.Run("it hangs", func(t *testing.T) {
		s := begin(t).send(evStop{}).after(20 * time.Second).want("signal web1 15").wantDuties("drain web")
		s.after(5 * time.Second).want("kill web1 9").wantDuties()
	})
	t.Run("its program ends first", func(t *testing.T) {
		begin(t).send(evStop{}, evExited{g("web", 1), 0}).wantDuties()
	})
	t.Run("a native one gets the message", func(t *testing.T) {
		serving(t, web(hook)).send(evStop{}).want("drain web1").send(evAnswered{g("web", 1)}).after(2 * time.Second).wantDuties()
		serving(t, web(hook)).send(evStop{}).want("drain web1").after(time.Second).want().wantDuties("drain web")
	})
}

// With handoff = "exclusive" no two generations live beside each other.
func TestExclusive(t *testing.T) {
	alone := func(s *Spec) {
		s.Config.Handoff, s.Config.Retire.ParentShutdown = exclusive, 20*time.Second
	}
	t.Run("reload", func(t *testing.T) {
		s := serving(t, web(alone)).reload().prepared(web(alone)).want("job 2", "prepare 2", "drain web1").send(evAnswered{g("web", 1)})
		s.after(3*time.Second).want().send(evExited{g("web", 1), 0}).want("kill web1 15").send(evGone{g("web", 1)}).want("reap web1", "spawn web2")
		s.up(g("web", 2)).want("go web2", "accept web2", "commit web2", "ack web2", "done 2: web2 serving")
	})
	t.Run("the new one fails", func(t *testing.T) {
		s := serving(t, web(alone)).reload().prepared(web(alone, func(s *Spec) { s.Digest = "new" })).end(g("web", 1), 0).any()
		s.send(evSpawned{at: g("web", 2), PID: 7, StartTime: 1}, evExited{g("web", 2), 256}).want("go web2", "kill web2 9", "kill web2 9", "done 2: web2 failed")
		s.send(evGone{g("web", 2)}).want("reap web2", "spawn web3")
		if got := s.s.Services["web"].gen(3).Spec.Digest; got != "" {
			t.Errorf("the last good spec was not started, but %q", got)
		}
	})
	t.Run("a crash", func(t *testing.T) {
		s := serving(t, web(alone)).send(evExited{g("web", 1), crash}).want("kill web1 15").after(time.Second).want()
		s.send(evGone{g("web", 1)}).want("reap web1", "spawn web2")
	})
	t.Run("a stop meanwhile", func(t *testing.T) {
		s := serving(t, web(alone)).reload().prepared(web(alone)).any().send(evStop{}).want("done 2: web0 refused")
		s.end(g("web", 1), 0).want("kill web1 15", "reap web1", "exit 0")
	})
	t.Run("a newer reload joins", func(t *testing.T) {
		s := serving(t, web(alone)).reload().prepared(web(alone)).any().reload().want("job 3", "prepare 3")
		s.prepared(web(alone, func(s *Spec) { s.Digest = "newer" })).end(g("web", 1), 0).any()
		if got := s.s.Services["web"].gen(2).Spec.Digest; got != "newer" {
			t.Errorf("started %q", got)
		}
	})
	t.Run("it ignores the drain", func(t *testing.T) {
		s := serving(t, web(alone)).reload().prepared(web(alone)).any()
		s.after(20*time.Second).want("signal web1 15", "signal web1 15", "kill web1 9").end(g("web", 1), crash).want("reap web1", "spawn web2")
	})
}

// Connections that were open at an exit are counted, whoever ended it.
func TestOpenAtExit(t *testing.T) {
	s := serving(t, web()).send(evStop{}, evOpen{g("web", 1), 7}, evExited{g("web", 1), 0})
	if got := s.s.Services["web"].OpenAtExit; got != 7 {
		t.Errorf("%d connections open at exit, want 7", got)
	}
	for status, level := range map[uint32]string{0: "info", 0x100: "warn", 15: "warn"} {
		s := serving(t, web()).send(evStop{}, evOpen{g("web", 1), 7})
		_, acts := transition(s.s, evExited{g("web", 1), status}, s.now)
		got := ""
		for _, a := range acts {
			if n, ok := a.(acNote); ok && strings.Contains(n.Text, "connections open at its exit: 7") {
				got = n.Level
			}
		}
		if got != level {
			t.Errorf("wait status %#x: told at level %q, want %q", status, got, level)
		}
	}
	s = serving(t, web()).send(evOpen{g("web", 1), 7}, evExited{g("web", 1), 0})
	if got := s.s.Services["web"].OpenAtExit; got != 0 {
		t.Errorf("%d connections open at the exit of one that did not drain", got)
	}
}
