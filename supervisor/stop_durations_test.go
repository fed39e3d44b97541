package supervisor

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestStopDurations: each duration of [service.NAME.stop], .retire and .restart is obeyed to the nanosecond, for two
// values each, in time that does not pass. A key that no case names fails the test.
func TestStopDurations(t *testing.T) {
	w1 := g("web", 1)
	// at checks that these are done after d, and nothing before.
	at := func(s *script, d time.Duration, acts ...string) {
		s.t.Helper()
		s.after(d - 1).want().after(1).want(acts...)
	}
	const hour = time.Hour
	long := func(s *Spec) { s.Config.Stop.Deadline = 2 * hour }
	mute := func(s *Spec) { s.Config.Ready.When, s.Drain = "alive", sigUSR1 }
	// plain serves a program that speaks no protocol.
	plain := func(t *testing.T, change ...func(*Spec)) *script {
		s := newScript(t)
		s.send(evReload{Request: 1, First: true}).prepared(web(append(change, mute)...))
		s.send(evSpawned{at: w1, PID: 7, StartTime: 1}, evSight{at: w1, Polls: true})
		return s.after(20 * time.Second).any()
	}
	// retired has generation 1 of these changes retired by a native generation 2.
	retired := func(t *testing.T, change ...func(*Spec)) *script {
		return plain(t, change...).reload().prepared(web()).up(g("web", 2)).any()
	}
	lame := func(t *testing.T, d LameDuckConfig, change ...func(*Spec)) *script {
		return serving(t, web(append(change, long, lameBy(d))...)).send(evStop{}).want("lame web1")
	}
	over := func(by string, d time.Duration) []string {
		return []string{"lame duck over by " + by + " after " + d.String(), "drain web1"}
	}
	cases := map[string]func(*testing.T, time.Duration){
		"Stop.Deadline": func(t *testing.T, d time.Duration) {
			s := plain(t, func(s *Spec) { s.Config.Stop.Deadline, s.Config.Retire.KillGrace = d, 100*time.Millisecond })
			s.send(evStop{}).want("signal web1 10")
			s.after(d - 100*time.Millisecond).want("signal web1 15").after(100*time.Millisecond - 1).want().after(1).want("kill web1 9")
		},
		"Stop.LameDuck.For": func(t *testing.T, d time.Duration) {
			at(lame(t, LameDuckConfig{Until: "timer", For: d, Max: hour}), d, over("timer", d)...)
		},
		"Stop.LameDuck.Max": func(t *testing.T, d time.Duration) {
			at(lame(t, LameDuckConfig{Until: "exec", Ask: HookConfig{Exec: []string{"ask"}}, Max: d}), d, over("max", d)...)
		},
		"Stop.LameDuck.Probes.Then": func(t *testing.T, d time.Duration) {
			s := lame(t, LameDuckConfig{Until: "probes", Max: hour, Probes: ProbesConfig{Count: 1, Then: d}})
			s.send(evProbed{"web", s.s.Services["web"].Lame.Began})
			at(s, d, over("probes", d)...)
		},
		"Stop.Quiet": func(t *testing.T, d time.Duration) { // the looks are told, the kernel measures
			s := plain(t, long, func(s *Spec) { s.Config.Stop.Quiet = d }).send(evStop{}).want()
			if got := s.s.Services["web"].hold(); got != d {
				t.Errorf("silent for %v, want %v", got, d)
			}
			s.send(evQuiet{"web"}, evQuiet{"web"}).want("signal web1 10")
		},
		"Retire.ParentShutdown": func(t *testing.T, d time.Duration) {
			s := retired(t, func(s *Spec) { s.Config.Retire.ParentShutdown, s.Config.Retire.KillGrace = d+time.Second, time.Second })
			s.after(d - 1).any().after(1).want("signal web1 15").after(time.Second - 1).want().after(1).want("kill web1 9")
		},
		"Retire.KillGrace": func(t *testing.T, d time.Duration) {
			s := retired(t, func(s *Spec) { s.Config.Retire.ParentShutdown, s.Config.Retire.KillGrace = hour, d })
			s.after(hour - d - time.Minute).any().after(time.Minute).want("signal web1 15").after(d - 1).want().after(1).want("kill web1 9")
		},
		"Retire.AnswerTimeout": func(t *testing.T, d time.Duration) { // of one that speaks the protocol, and says nothing
			s := serving(t, web(long, func(s *Spec) { s.Config.Retire.AnswerTimeout, s.Drain = d, sigUSR1 }))
			at(s.send(evStop{}).want("drain web1"), d, "signal web1 10")
		},
		"Retire.ReleaseTimeout": func(t *testing.T, d time.Duration) {
			s := plain(t, func(s *Spec) { s.Config.Retire.ReleaseTimeout = d }).reload().prepared(web())
			s.send(evSpawned{at: g("web", 2), PID: 8, StartTime: 1}, evHello{g("web", 2)}, evReady{g("web", 2), "native"}, evSight{at: g("web", 2), Polls: true})
			s.after(100 * time.Millisecond).any()
			at(s, d, "done 2: web2 serving not released")
		},
		"Restart.BackoffMin": func(t *testing.T, d time.Duration) {
			s := newScript(t)
			s.send(evReload{Request: 1, First: true}).prepared(web(func(s *Spec) { s.Config.Restart.BackoffMin = d }))
			s.send(evSpawnFailed{w1, "no"}).any()
			at(s, jitter(d, "web", 1), "spawn web2")
		},
		"Restart.BackoffMax": func(t *testing.T, d time.Duration) {
			s := newScript(t)
			s.send(evReload{Request: 1, First: true}).prepared(web(func(s *Spec) { s.Config.Restart.BackoffMax = d }))
			for n := 1; n < 12; n++ { // the doubled delay is far beyond
				s.send(evSpawnFailed{g("web", n), "no"}).after(2 * d)
			}
			s.any().send(evSpawnFailed{g("web", 12), "no"}).any()
			at(s, jitter(d, "web", 12), "spawn web13")
		},
	}
	for table, v := range map[string]reflect.Type{
		"Stop.": reflect.TypeFor[StopConfig](), "Retire.": reflect.TypeFor[RetireConfig](), "Restart.": reflect.TypeFor[RestartConfig](),
	} {
		for _, key := range durationKeys(v, table) {
			obeyed := cases[key]
			if obeyed == nil {
				t.Errorf("no case names %s", strings.ToLower(key))
				continue
			}
			delete(cases, key)
			for _, d := range []time.Duration{1500 * time.Millisecond, 7 * time.Second} {
				t.Run(key+"/"+d.String(), func(t *testing.T) { obeyed(t, d) })
			}
		}
	}
	for key := range cases {
		t.Errorf("a case is about %s, which is no key", key)
	}
}
