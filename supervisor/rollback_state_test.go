package supervisor

import (
	"testing"
	"time"
)

// file is an executable; n tells one from another.
func file(n uint64, digest string) *Executable {
	return &Executable{Ino: n, Size: 1, Modified: 1, Changed: 1, Digest: digest}
}

// upAs is up for a program that is known to run this file.
func (s *script) upAs(a at, exe *Executable) *script {
	s.send(evSpawned{at: a, PID: 100 + a.Gen, StartTime: 1, Token: "t", Executable: exe}, evHello{a}, evReady{a, "native"}, evSight{at: a, Polls: true})
	s.after(100 * time.Millisecond)
	return s.send(evSight{at: at{a.Service, a.Gen - 1}}).end(at{a.Service, a.Gen - 1}, 0)
}

func digested(d string) func(*Spec) {
	return func(s *Spec) { s.Digest, s.Dir = d, d }
}

func (s *script) rollback(services ...string) *script {
	s.reqs++
	return s.send(evReload{Request: s.reqs, Services: services, Why: WhyRollback})
}

// known ends the preparation of the newest job as the shell does for one that needs no configuration.
func (s *script) known() *script {
	j := s.s.job(s.s.LastJob)
	e := evPrepared{Job: j.ID, Digest: s.s.Digest, Order: s.s.Order}
	e.Specs, e.Executables = s.s.known(j)
	return s.send(e)
}

func TestRollback(t *testing.T) {
	s := newScript(t)
	s.send(evReload{Request: 1, First: true})
	s.reqs = 1
	s.prepared(web(digested("a"))).upAs(g("web", 1), file(1, "one")).any()
	s.rollback().want("refuse nothing to roll back to")
	s.reload().prepared(web(digested("b"))).upAs(g("web", 2), file(2, "")).send(evKept{file(2, "two")}).any()
	svc := func() *Service { return s.s.Services["web"] }
	if p := svc().Previous; p == nil || p.Spec.Digest != "a" || p.Executable.Digest != "one" || p.Gen != 1 || p.Job != 2 {
		t.Fatalf("to go back to: %+v", p)
	}
	if e := svc().Executable; e == nil || e.Digest != "two" || svc().SpecGen != 2 {
		t.Fatalf("it runs %+v, first in generation %d", e, svc().SpecGen)
	}
	// A restart of the new one changes nothing about that, and runs the same file.
	s.after(20*time.Second).end(g("web", 2), crash)
	if e := svc().gen(3).Executable; e == nil || e.Digest != "two" {
		t.Fatalf("the restart is to run %+v", e)
	}
	s.upAs(g("web", 3), file(2, "two")).any()

	s.rollback("nobody").want("refuse nothing to roll back to")
	s.rollback("web", "nobody").want("refuse nothing to roll back to")
	s.rollback("web").want("job 3", "prepare 3").known().want("spawn web4")
	if n := svc().gen(4); n.Spec.Digest != "a" || n.Executable.Digest != "one" || n.Why != WhyRollback {
		t.Fatalf("the rollback starts %+v", n)
	}
	s.upAs(g("web", 4), file(1, "one")).want("go web4", "accept web4", "commit web4", "ack web4", "drain web3",
		"done 3: web4 serving released", "kill web3 15", "reap web3")
	if svc().Previous != nil || svc().Spec.Digest != "a" || svc().Executable.Digest != "one" || svc().SpecGen != 4 {
		t.Errorf("after the rollback: %+v, %+v", svc().Previous, svc())
	}
	s.rollback().want("refuse nothing to roll back to")
	// And on: the configuration again.
	s.reload().prepared(web(digested("c"))).upAs(g("web", 5), file(3, "")).any()
	if p := svc().Previous; p == nil || p.Spec.Digest != "a" || p.Gen != 4 {
		t.Errorf("after the next reload: %+v", p)
	}
}

// What died at first, and has served for long since, is good: it can be gone back to, and its deaths do not count any more.
func TestRollbackToWhatBeganBadly(t *testing.T) {
	s := newScript(t)
	s.send(evReload{Request: 1, First: true})
	s.reqs = 1
	s.prepared(web(digested("a"))).send(evSpawned{at: g("web", 1), PID: 1}).end(g("web", 1), crash)
	s.after(time.Second).up(g("web", 2)).after(9 * time.Second)
	svc := func() *Service { return s.s.Services["web"] }
	if svc().Failures != 1 {
		t.Fatalf("after 9 s of serving: %d failures", svc().Failures)
	}
	s.after(time.Second)
	if svc().Failures != 0 || svc().Delay != 0 {
		t.Errorf("after 10 s of serving: %d failures, the next delay is %v", svc().Failures, svc().Delay)
	}
	s.reload().prepared(web(digested("b"))).up(g("web", 3)).any()
	if p := svc().Previous; p == nil || p.Spec.Digest != "a" {
		t.Errorf("to go back to: %+v", p)
	}
}

// A rollback that fails leaves what serves, and what can be gone back to.
func TestRollbackFails(t *testing.T) {
	s := serving(t, web(digested("a"))).reload().prepared(web(digested("b"))).upAs(g("web", 2), nil).any()
	s.rollback().known().end(g("web", 3), crash).wantPhase(g("web", 2), PhaseServing)
	s.send(evSpawned{at: g("web", 3), PID: 3}).end(g("web", 3), crash).wantPhase(g("web", 2), PhaseServing)
	if p := s.s.Services["web"].Previous; p == nil || p.Spec.Digest != "a" || s.s.Services["web"].Spec.Digest != "b" {
		t.Errorf("after a failed rollback: %+v", p)
	}
}

// What is not another program is nothing to go back to; the same spec with another file is.
func TestRollbackGoesToWhatWasDifferent(t *testing.T) {
	s := newScript(t)
	s.send(evReload{Request: 1, First: true})
	s.reqs = 1
	s.prepared(web(digested("a"))).upAs(g("web", 1), file(1, "one")).any()
	prev := func() *Previous { return s.s.Services["web"].Previous }
	s.reload().prepared(web(digested("a"))).upAs(g("web", 2), file(1, "one")).any()
	if prev() != nil {
		t.Errorf("after a reload of the same: %+v", prev())
	}
	s.reload().prepared(web(digested("a"), func(s *Spec) { s.Digest = "another part of the file" })).upAs(g("web", 3), file(1, "one")).any()
	if prev() != nil {
		t.Errorf("after a change elsewhere in the file: %+v", prev())
	}
	s.reload().prepared(web(digested("a"))).upAs(g("web", 4), file(2, "")).any()
	if prev() == nil || prev().Executable.Digest != "one" {
		t.Errorf("after another file at the same path: %+v", prev())
	}
	script := file(3, "")
	script.Script = true
	s.reload().prepared(web(digested("a"))).upAs(g("web", 5), script).any()
	if prev() == nil || prev().Executable.Digest != "one" {
		t.Errorf("after a script, which cannot be gone back to: %+v", prev())
	}
}

// Who crashed when it was replaced is not what anybody wants back.
func TestRollbackGoesToWhatWorked(t *testing.T) {
	s := serving(t, web(digested("good"))).reload().prepared(web(digested("bad"))).upAs(g("web", 2), nil)
	s.end(g("web", 2), crash) // at once after the commit
	s.after(time.Second).send(evSpawned{at: g("web", 3), PID: 3}).end(g("web", 3), crash).any()
	s.reload().prepared(web(digested("worse"))).upAs(g("web", 4), nil)
	if p := s.s.Services["web"].Previous; p == nil || p.Spec.Digest != "good" {
		t.Errorf("to go back to: %+v", p)
	}
}

// Without a name those go back that the last reload changed.
func TestRollbackOfTheLastReload(t *testing.T) {
	two := func(a, b string) []*Spec { return []*Spec{web(digested(a)), testSpec("app", digested(b))} }
	s := serving(t, two("1", "1")...)
	s.reload().prepared(two("2", "2")...).upAs(g("web", 2), nil).upAs(g("app", 2), nil).any()
	s.reload("web").prepared(web(digested("3"))).upAs(g("web", 3), nil).any()
	s.rollback().known().want("job 4", "prepare 4", "spawn web4")
	if n := s.s.Services["web"].gen(4); n.Spec.Digest != "2" {
		t.Errorf("web goes back to %s", n.Spec.Digest)
	}
	s.upAs(g("web", 4), nil).any()
	s.rollback().known().want("job 5", "prepare 5", "spawn app3") // what is left of the one before
}

// A reload that is asked for during a rollback comes after it, and the other way round: neither joins the other.
func TestRollbackAndReloadInTurn(t *testing.T) {
	s := serving(t, web(digested("a"))).reload().prepared(web(digested("b"))).upAs(g("web", 2), nil).any()
	s.rollback().known().any().reload().want("job 4").rollback().want("job 5").reload().want("job 4").rollback().want("job 5")
	s.upAs(g("web", 3), nil).any()
	if j := s.s.job(4); j == nil || j.Stage != JobPreparing || j.Why != "" {
		t.Fatalf("job 4 is %+v", j)
	}
}

// A repair runs what serves, joins what starts a new generation anyway, and does not begin where nothing serves.
func TestRepair(t *testing.T) {
	repair := evReload{Services: []string{"web"}, Why: WhyRepair}
	s := newScript(t)
	s.send(evReload{Request: 1, First: true})
	s.reqs = 1
	s.prepared(web(digested("a"))).upAs(g("web", 1), file(1, "one")).any()
	s.send(repair).want("job 2", "prepare 2").known().want("spawn web2")
	if n := s.s.Services["web"].gen(2); n.Spec.Digest != "a" || n.Executable.Digest != "one" || n.Why != WhyRepair {
		t.Fatalf("the repair starts %+v", n)
	}
	s.upAs(g("web", 2), file(1, "one")).any()
	if svc := s.s.Services["web"]; svc.Previous != nil || svc.SpecGen != 1 || svc.Reloads != 0 {
		t.Errorf("after a repair: %+v", svc)
	}
	// Nothing serves: the restart has the new socket.
	s.end(g("web", 2), crash).any()
	s.send(repair).any().known()
	if svc := s.s.Services["web"]; svc.Upgrade != nil || len(s.s.Jobs) != 0 {
		t.Errorf("a repair where nothing serves: %+v, %d jobs", svc.Upgrade, len(s.s.Jobs))
	}
	// A reload that waits for a place does it.
	narrow := func(s *Spec) { s.Config.Retire.MaxDraining = 1 }
	s = serving(t, web(narrow)).reload().prepared(web(narrow)).up(g("web", 2)).reload().prepared(web(narrow)).any()
	waits := s.s.Services["web"].Upgrade.Spec
	s.send(repair).any().known()
	if u := s.s.Services["web"].Upgrade; u.Spec != waits || len(u.Jobs) != 2 || !u.Waiting {
		t.Errorf("a repair beside a reload that waits: %+v", u)
	}
}
