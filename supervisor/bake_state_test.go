package supervisor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// probes gives a spec a probe, ownOnly a socket that no two generations share, and
// asks a gate.
func probes(s *Spec) {
	s.Config.Ready.Probe = &ProbeConfig{Kind: "http", Interval: time.Second, Timeout: time.Second, Successes: 1, Failures: 3}
}

func ownOnly(s *Spec) { s.Keys = []SocketKey{{Name: "probe", Key: "unix:p", Own: true}} }

func gated(s *Spec) {
	s.Config.Ready.Gate = &ProbeConfig{Kind: "exec", Exec: []string{"x"}, Interval: time.Second, Timeout: time.Second, Successes: 1, Failures: 1}
}

func bakes(d time.Duration) func(*Spec) { return func(s *Spec) { s.Config.Ready.Bake = d } }

func readyWhen(w string) func(*Spec) { return func(s *Spec) { s.Config.Ready.When = w } }

// fails checks what the last reload that has ended was told.
func (s *script) failure(service string, phase Phase, reason string) *script {
	s.t.Helper()
	f := s.s.Services[service].Failure
	if f == nil || f.Phase != phase || !strings.Contains(f.Reason, reason) {
		s.t.Fatalf("last failure %+v, want while %s: %q", f, phase, reason)
	}
	return s
}

func TestProbeBeforeTheCommit(t *testing.T) {
	w2 := g("web", 2)
	start := func(t *testing.T, change ...func(*Spec)) *script {
		s := serving(t, web()).reload().prepared(web(append(change, readyWhen("http"), probes)...))
		return s.send(evSpawned{at: w2, PID: 7}, evSight{at: w2, Polls: true}).any()
	}
	t.Run("never", func(t *testing.T) {
		s := start(t).send(evProbe{at: w2, Text: "no answer in time"}).after(30*time.Second - 1).want()
		s.after(1).want("kill web2 9", "done 2: web2 failed").wantPhase(g("web", 1), PhaseServing)
		s.failure("web", PhaseStarting, "init grace of 30s is over: not ready (waited for http): no answer in time")
	})
	slow := func(s *Spec) { s.Config.Ready.Settle = 10 * time.Second }
	t.Run("fails inside settle", func(t *testing.T) { // it accepts as it likes: it is drained
		s := start(t, slow).send(evProbe{at: w2, OK: true}).after(time.Second)
		s.send(evProbe{at: w2, Text: "HTTP status 500"}).want() // one is no proof
		s.send(evProbe{at: w2, Bad: true, Text: "HTTP status 500"}).want("signal web2 15", "done 2: web2 failed")
		s.failure("web", PhaseStarting, "its probe fails: HTTP status 500").wantPhase(w2, PhaseDraining)
	})
	t.Run("a library child inside settle", func(t *testing.T) { // it has accepted nothing
		s := start(t, slow).send(evHello{w2}, evProbe{at: w2, OK: true}).after(time.Second)
		s.send(evProbe{at: w2, Bad: true}).want("kill web2 9", "done 2: web2 failed")
	})
	t.Run("a library child", func(t *testing.T) {
		s := start(t).send(evHello{w2}, evReady{w2, "native"}).after(5 * time.Second).want()
		s.send(evProbe{at: w2, OK: true}).after(99 * time.Millisecond).want().after(time.Millisecond)
		s.want("accept web2", "commit web2", "ack web2", "drain web1")
	})
	t.Run("asked", func(t *testing.T) {
		s := start(t)
		if q := s.s.questions(); len(q) != 1 || q[0] != (question{at: w2}) {
			t.Errorf("asked is %v", q)
		}
		s.send(evProbe{at: w2, OK: true}).after(time.Second).wantPhase(w2, PhaseServing)
		if q := s.s.questions(); len(q) != 0 {
			t.Errorf("asked is %v when nothing hangs on it", q)
		}
	})
}

func TestGate(t *testing.T) {
	w2 := g("web", 2)
	start := func(t *testing.T, change ...func(*Spec)) *script {
		s := serving(t, web()).reload().prepared(web(append(change, gated)...)).up(w2)
		return s.want("job 2", "prepare 2", "spawn web2", "go web2", "accept web2").wantPhase(w2, PhaseStarting)
	}
	t.Run("opens", func(t *testing.T) {
		s := start(t)
		if q := s.s.questions(); len(q) != 1 || q[0] != (question{at: w2, gate: true}) {
			t.Errorf("asked is %v", q)
		}
		s.send(evGate{at: w2, Text: "exit status 1"}).after(29 * time.Second).want()
		s.send(evGate{at: w2, OK: true}).want("commit web2", "ack web2", "drain web1")
		if q := s.s.questions(); len(q) != 0 {
			t.Errorf("asked is %v behind the gate", q)
		}
	})
	t.Run("never", func(t *testing.T) {
		s := start(t).send(evGate{at: w2, Text: "exit status 1"}).after(30*time.Second - 100*time.Millisecond - 1).want()
		s.after(1).want("drain web2", "done 2: web2 failed").wantPhase(g("web", 1), PhaseServing)
		s.failure("web", PhaseStarting, "init grace of 30s is over: ready by native, but the gate has not opened: exit status 1")
		// It accepted: it is drained under the deadline of a stop, and killed at that.
		s.send(evAnswered{w2}).after(25*time.Second - 1).want("signal web2 15").after(1).want("kill web2 9")
	})
	t.Run("a program that says nothing is drained too", func(t *testing.T) {
		s := serving(t, web()).reload().prepared(web(gated)).send(evSpawned{at: w2, PID: 7}, evSight{at: w2, Polls: true})
		s.after(time.Second).any().after(30*time.Second).want("signal web2 15", "done 2: web2 failed").wantPhase(w2, PhaseDraining)
	})
	t.Run("more grace", func(t *testing.T) {
		s := start(t).send(evExtend{w2, time.Minute}).after(59 * time.Second).want()
		s.send(evGate{at: w2, OK: true}).want("commit web2", "ack web2", "drain web1")
	})
	t.Run("before a bake", func(t *testing.T) {
		s := start(t, bakes(time.Minute)).send(evGate{at: w2, OK: true}).want().wantPhase(w2, PhaseBaking)
		s.after(time.Minute-1).want().after(1).want("commit web2", "ack web2", "drain web1")
	})
	t.Run("nobody serves", func(t *testing.T) { // a balancer that waits for /ready would wait for ever
		newScript(t).send(evReload{Request: 1, First: true}).prepared(web(gated)).up(g("web", 1)).wantPhase(g("web", 1), PhaseServing)
	})
	t.Run("the old one dies", func(t *testing.T) {
		start(t).send(evExited{g("web", 1), crash}).want("kill web1 15", "commit web2", "ack web2", "done 2: web2 serving")
	})
	t.Run("the new one dies", func(t *testing.T) {
		s := start(t).end(w2, crash).want("kill web2 9", "kill web2 9", "done 2: web2 failed", "reap web2")
		s.wantPhase(g("web", 1), PhaseServing).send(evGate{at: w2, OK: true}).want()
	})
	t.Run("stop", func(t *testing.T) {
		start(t).send(evStop{}).want("kill web2 9", "done 2: web0 refused", "drain web1")
	})
	t.Run("it no longer accepts", func(t *testing.T) {
		s := start(t).send(evSight{at: w2}, evGate{at: w2, OK: true}).want()
		s.send(evSight{at: w2, Polls: true}).want("commit web2", "ack web2", "drain web1")
	})
}

// TestBake: the new one dies, or its probe fails, early, in the middle and late: back
// to the old one, which was told nothing.
func TestBake(t *testing.T) {
	w1, w2 := g("web", 1), g("web", 2)
	start := func(t *testing.T, change ...func(*Spec)) *script {
		s := serving(t, web()).reload().prepared(web(append(change, bakes(time.Minute))...)).up(w2)
		return s.want("job 2", "prepare 2", "spawn web2", "go web2", "accept web2").wantPhase(w2, PhaseBaking)
	}
	for _, at := range []time.Duration{0, 30 * time.Second, time.Minute - 1} {
		t.Run(fmt.Sprint("dies after ", at), func(t *testing.T) {
			s := start(t).after(at).end(w2, 256).want("kill web2 9", "kill web2 9", "done 2: web2 failed", "reap web2")
			s.wantPhase(w1, PhaseServing).failure("web", PhaseBaking, "exit status 1 while baking").after(time.Hour).want()
		})
		t.Run(fmt.Sprint("probe fails after ", at), func(t *testing.T) {
			s := start(t, probes).send(evProbe{at: w2, OK: true}).after(at)
			s.send(evProbe{at: w2, Text: "refused"}).want()
			s.send(evProbe{at: w2, Bad: true, Text: "refused"}).want("drain web2", "done 2: web2 failed")
			s.wantPhase(w1, PhaseServing).failure("web", PhaseBaking, "its probe fails: refused")
			// It has accepted: it is drained, not killed.
			s.send(evAnswered{w2}).end(w2, 0).want("kill web2 15", "reap web2").after(time.Hour).want()
		})
	}
	t.Run("over", func(t *testing.T) {
		start(t).after(time.Minute-1).want().after(1).want("commit web2", "ack web2", "drain web1")
	})
	t.Run("the probe has never succeeded", func(t *testing.T) {
		s := start(t, probes).send(evProbe{at: w2, Text: "no answer in time"}).after(time.Minute - 1).want()
		s.after(1).want("drain web2", "done 2: web2 failed")
		s.failure("web", PhaseBaking, "its probe has not succeeded while baking: no answer in time")
	})
	t.Run("the probe succeeds late", func(t *testing.T) {
		s := start(t, probes).after(59 * time.Second).send(evProbe{at: w2, OK: true}).after(time.Second)
		s.want("commit web2", "ack web2", "drain web1")
	})
	t.Run("a deadline of the roll-back", func(t *testing.T) {
		s := start(t, probes).send(evProbe{at: w2, Bad: true}).want("drain web2", "done 2: web2 failed").send(evAnswered{w2})
		s.after(20 * time.Second).want("signal web2 15").after(5*time.Second - 1).want().after(1).want("kill web2 9")
	})
	t.Run("a stop rolls nothing back", func(t *testing.T) {
		s := start(t, probes, func(s *Spec) { s.Config.Stop.LameDuck.For = time.Second })
		s.send(evStop{}).want("done 2: web0 refused", "drain web1", "drain web2").send(evProbe{at: w2, Bad: true}).want()
		if q := s.s.questions(); len(q) != 0 {
			t.Errorf("asked is %v in a stop", q)
		}
	})
	t.Run("nobody serves", func(t *testing.T) {
		newScript(t).send(evReload{Request: 1, First: true}).prepared(web(bakes(time.Minute))).up(w1).wantPhase(w1, PhaseServing)
	})
	t.Run("the next reload is the failed one's number on", func(t *testing.T) {
		s := start(t).reload().want("job 3").end(w2, crash).want("kill web2 9", "kill web2 9", "prepare 3", "done 2: web2 failed", "reap web2")
		s.prepared(web()).want("spawn web3")
	})
}

// Every state on the way is what a restart of handoverd would read.
func TestBakeStatesAreValid(t *testing.T) {
	w2 := g("web", 2)
	s := serving(t, web()).reload().prepared(web(gated, bakes(time.Minute), probes, readyWhen("http")))
	check := func(what string) {
		t.Helper()
		if err := s.s.validate(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		s.after(time.Millisecond)
	}
	s.send(evSpawned{at: w2, PID: 7}, evSight{at: w2, Polls: true})
	check("starting")
	s.send(evProbe{at: w2, Text: "refused"}, evProbe{at: w2, OK: true}).after(time.Second)
	check("at the gate")
	s.send(evGate{at: w2, OK: true}).wantPhase(w2, PhaseBaking)
	check("baking")
	bad := s.s.clone()
	spec := *bad.Services["web"].gen(2).Spec
	spec.Config.Ready.Probe = &ProbeConfig{Kind: "http"} // asks without a pause
	bad.Services["web"].gen(2).Spec = &spec
	if bad.validate() == nil {
		t.Error("a probe without an interval is believed")
	}
	bad = s.s.clone()
	bad.Services["web"].gen(2).GateBegan = proc.Instant(-1)
	if bad.validate() == nil {
		t.Error("a gate before the beginning of time is believed")
	}
}

func TestAbort(t *testing.T) {
	w1, w2 := g("web", 1), g("web", 2)
	abort := func(s *script, services ...string) *script {
		s.reqs++
		return s.send(evAbort{Request: s.reqs, Services: services})
	}
	baking := func(t *testing.T) *script {
		s := serving(t, web()).reload().prepared(web(bakes(time.Minute))).up(w2).any()
		return s.wantPhase(w2, PhaseBaking)
	}
	t.Run("baking", func(t *testing.T) {
		s := abort(baking(t)).want("drain web2", "aborted 1 then job 0", "done 2: web2 failed").wantPhase(w1, PhaseServing)
		s.failure("web", PhaseBaking, "aborted").send(evAnswered{w2}).end(w2, 0).want("kill web2 15", "reap web2").after(time.Hour).want()
	})
	t.Run("a newer one is remembered", func(t *testing.T) {
		s := abort(baking(t).reload().want("job 3")).want("drain web2", "aborted 1 then job 3", "prepare 3", "done 2: web2 failed")
		s.prepared(web()).want("spawn web3").up(g("web", 3)).want("go web3", "accept web3", "commit web3", "ack web3", "drain web1")
	})
	t.Run("starting", func(t *testing.T) {
		s := serving(t, web()).reload().prepared(web()).send(evSpawned{at: w2, PID: 7}).any()
		abort(s).want("kill web2 9", "aborted 1 then job 0", "done 2: web2 failed").failure("web", PhaseStarting, "aborted")
	})
	t.Run("starting, and accepts", func(t *testing.T) {
		s := serving(t, web()).reload().prepared(web()).send(evSpawned{at: w2, PID: 7}, evSight{at: w2, Polls: true}).any()
		abort(s).want("aborted 1 then job 0", "signal web2 15", "done 2: web2 failed").wantPhase(w2, PhaseDraining)
	})
	t.Run("at the gate", func(t *testing.T) {
		s := serving(t, web()).reload().prepared(web(gated)).up(w2).any()
		abort(s).want("drain web2", "aborted 1 then job 0", "done 2: web2 failed")
	})
	t.Run("waiting for a place", func(t *testing.T) {
		narrow := func(s *Spec) { s.Config.Retire.MaxDraining = 1 }
		s := serving(t, web(narrow)).reload().prepared(web(narrow)).up(w2).after(10 * time.Second).reload().prepared(web(narrow)).any()
		abort(s).want("aborted 1 then job 0", "done 3: web0 refused").end(w1, 0).want("kill web1 15", "reap web1")
	})
	t.Run("nothing", func(t *testing.T) { abort(serving(t, web())).want("refuse nothing to abort") })
	t.Run("too late", func(t *testing.T) {
		abort(baking(t).after(time.Minute).any()).want("refuse nothing to abort").wantPhase(w2, PhaseServing)
	})
	t.Run("nothing serves", func(t *testing.T) {
		s := newScript(t).send(evReload{Request: 9, First: true}).prepared(web()).any()
		abort(s).want("refuse nothing to abort").wantPhase(w1, PhaseStarting)
	})
	t.Run("stopping", func(t *testing.T) { abort(serving(t, web()).send(evStop{}).any()).want("refuse stopping") })
	t.Run("another service", func(t *testing.T) {
		app := func() *Spec { return testSpec("app", bakes(time.Minute)) }
		s := serving(t, app(), web()).reload().prepared(app(), web()).up(g("app", 2)).any()
		abort(s, "nobody").want("refuse nothing to abort")
		abort(s, "app").want("drain app2", "aborted 1 then job 0", "spawn web2")
		abort(s).want("aborted 1 then job 0", "done 2: app2 failed, web2 failed") // its shim was not there yet
	})
	t.Run("all of a job", func(t *testing.T) {
		app := func() *Spec { return testSpec("app", bakes(time.Minute)) }
		s := serving(t, app(), web(), testSpec("gone")).reload().prepared(app(), web()).up(g("app", 2)).any()
		abort(s).want("drain app2", "aborted 2 then job 0", "done 2: app2 failed, web0 refused")
		s.wantPhase(g("gone", 1), PhaseServing) // what was to be removed stays
	})
}

// A native generation that is terminated early, before it had its second to answer, gets no softer signal after SIGTERM.
func TestNothingSofterAfterSIGTERM(t *testing.T) {
	impatient := web(func(s *Spec) {
		s.Drain, s.Config.Retire.ReleaseTimeout, s.Config.Retire.OnNoRelease = sigUSR1, 200*time.Millisecond, "terminate"
	})
	s := serving(t, impatient).reload().prepared(web()).up(g("web", 2)).any()
	s.after(200*time.Millisecond).want("signal web1 15", "done 2: web2 serving not released").after(4 * time.Second).want()
}

// A restart that an exclusive upgrade has ended is not lost with that upgrade: it goes on though what it comes after failed.
func TestExclusiveUpgradeThatEndedARestart(t *testing.T) {
	alone := func(s *Spec) { s.Config.Handoff = exclusive }
	after := func(s *Spec) { s.Config.After = []string{"app"} }
	s := serving(t, testSpec("app"), web(alone)).end(g("web", 1), crash).send(evSpawned{at: g("web", 2), PID: 7})
	s.reload().prepared(testSpec("app"), web(alone)).send(evSpawnFailed{g("app", 2), "no such file"}).wantPhase(g("web", 2), PhaseKilling)
	s.reload("web").prepared(web(alone, after)).end(g("web", 2), crash).after(time.Second)
	s.wantPhase(g("web", 3), PhaseStarting)
}
