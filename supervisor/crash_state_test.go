package supervisor

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// looping has a service die in its init until that is a crash loop of three deaths.
func looping(t *testing.T, policy string) *script {
	t.Helper()
	s := serving(t, web(func(s *Spec) {
		s.Config.Restart.OnCrashLoop, s.Config.Restart.CrashLoopAfter = policy, 3
	}))
	s.end(g("web", 1), crash) // it served: replaced at once, and no failure
	for n := 2; n <= 4; n++ {
		if s.s.Services["web"].Looping {
			t.Fatalf("a crash loop after %d deaths", s.s.Services["web"].Failures)
		}
		s.after(time.Second).send(evSpawned{at: g("web", n), PID: n}).end(g("web", n), crash)
	}
	if svc := s.s.Services["web"]; !svc.Looping || svc.Failures != 3 {
		t.Fatalf("after 3 deaths: looping %v, %d failures", svc.Looping, svc.Failures)
	}
	return s
}

func needs(s *State, key string) bool { return neededSockets(s)[key] }

func TestCrashLoopHold(t *testing.T) {
	s := looping(t, "hold").any()
	if !needs(&s.s, "tcp:80") {
		t.Error("its socket is not needed")
	}
	s.after(time.Second).want("spawn web5")
	s.send(evSpawned{at: g("web", 5), PID: 5}).any().end(g("web", 5), crash).any()
	s.after(time.Minute).want("spawn web6") // and so on
}

func TestCrashLoopClose(t *testing.T) {
	s := looping(t, "close").any()
	if needs(&s.s, "tcp:80") {
		t.Error("its socket is needed between two tries")
	}
	s.after(time.Second).want("spawn web5")
	if !needs(&s.s, "tcp:80") {
		t.Error("its socket is not needed during a try")
	}
	s.send(evSpawned{at: g("web", 5), PID: 5}).end(g("web", 5), crash)
	if needs(&s.s, "tcp:80") {
		t.Error("its socket is needed after the try has failed")
	}
	// A reload that is prepared brings it back, and its commit ends the count.
	s.reload().prepared(web()).up(g("web", 6))
	if svc := s.s.Services["web"]; !needs(&s.s, "tcp:80") || svc.Looping || svc.Failures != 0 {
		t.Errorf("after a reload: needed %v, %+v", needs(&s.s, "tcp:80"), svc)
	}
}

// What another service has stays open.
func TestCrashLoopCloseShared(t *testing.T) {
	s := serving(t, web(func(s *Spec) {
		s.Config.Restart.OnCrashLoop, s.Config.Restart.CrashLoopAfter = "close", 1
	}), testSpec("app"))
	s.end(g("web", 1), crash).send(evSpawned{at: g("web", 2), PID: 2}).end(g("web", 2), crash)
	if svc := s.s.Services["web"]; !svc.closed() || !needs(&s.s, "tcp:80") {
		t.Errorf("closed %v, needed %v", svc.closed(), needs(&s.s, "tcp:80"))
	}
}

func TestCrashLoopExit(t *testing.T) {
	s := looping(t, "exit").want(
		"kill web1 15", "spawn web2", "reap web1",
		"go web2", "kill web2 9", "kill web2 9", "reap web2", "spawn web3",
		"go web3", "kill web3 9", "kill web3 9", "reap web3", "spawn web4",
		"go web4", "give up web", "kill web4 9", "kill web4 9", "reap web4",
	)
	s.send(evGiveUp{Service: "web"}).want(fmt.Sprintf("exit %d", ExitCrashLoop))
}

// Others are stopped as by SIGTERM first.
func TestCrashLoopExitStopsOthers(t *testing.T) {
	s := serving(t, web(func(s *Spec) {
		s.Config.Restart.OnCrashLoop, s.Config.Restart.CrashLoopAfter = "exit", 1
	}), testSpec("app"))
	s.end(g("web", 1), crash).send(evSpawned{at: g("web", 2), PID: 2}).end(g("web", 2), crash).any()
	s.send(evGiveUp{Service: "web"}).want("drain app1")
	s.end(g("app", 1), 0).want("kill app1 15", "reap app1", fmt.Sprintf("exit %d", ExitCrashLoop))
}

// Who is about to mend it is not interrupted; and if that fails too, it is the end.
func TestCrashLoopExitWaitsForAReload(t *testing.T) {
	s := looping(t, "exit").reload().prepared(web(func(s *Spec) { s.Config.Restart.OnCrashLoop = "exit" })).any()
	s.send(evGiveUp{Service: "web"}).want()
	s.up(g("web", 5)).any()
	if s.s.Stop != nil || s.s.Services["web"].Looping {
		t.Errorf("after a reload that was committed: %+v", s.s.Stop)
	}
	s.after(500*time.Millisecond).end(g("web", 5), crash).want("kill web5 15", "spawn web6", "reap web5")
	if svc := s.s.Services["web"]; svc.Failures != 1 || svc.Looping {
		t.Errorf("the first death of a new count: %+v", svc)
	}
}

func TestCrashLoopEndsWhenItServes(t *testing.T) {
	s := looping(t, "hold").after(time.Second).up(g("web", 5)).after(9 * time.Second)
	if !s.s.Services["web"].Looping {
		t.Fatal("the loop is over after 9 s of serving")
	}
	s.after(time.Second)
	if svc := s.s.Services["web"]; svc.Looping || svc.Failures != 0 || svc.Delay != 0 {
		t.Errorf("after 10 s of serving: %+v", svc)
	}
}

// A crash loop outlives handoverd, but for one that ends it.
func TestCrashLoopRestored(t *testing.T) {
	for policy, want := range map[string]bool{"hold": true, "close": true, "exit": false} {
		s := looping(t, policy)
		at := s.s.Services["web"].Restart.At
		s.send(evRestored{})
		svc := s.s.Services["web"]
		if svc.Looping != want || (svc.Failures == 3) != want || svc.Restart == nil || svc.Restart.At != at {
			t.Errorf("%s: restored as looping %v, %d failures, restart %+v", policy, svc.Looping, svc.Failures, svc.Restart)
		}
		if s.s.waitsClosed() != (policy == "close") {
			t.Errorf("%s: waits closed: %v", policy, s.s.waitsClosed())
		}
	}
	// Killed in the middle of the stop: the next one tries again.
	s := looping(t, "exit").send(evGiveUp{Service: "web"}).any().send(evRestored{}).want("spawn web5")
	if s.s.Stop != nil || s.s.Services["web"].Looping {
		t.Errorf("restored in the stop of a crash loop: %+v", s.s.Stop)
	}
}

func TestCrashLoopIsTold(t *testing.T) {
	for policy, say := range map[string]string{"": "stay open", "hold": "stay open", "close": "are closed", "exit": "handoverd stops"} {
		m := &machine{s: &State{}}
		svc := &Service{Name: "web", Spec: web(func(s *Spec) { s.Config.Restart.OnCrashLoop = policy })}
		for range loopDeaths + 1 {
			m.crashes(svc)
		}
		var notes []string
		for _, a := range m.acts {
			if n, ok := a.(acNote); ok {
				notes = append(notes, n.Text)
			}
		}
		if len(notes) != 1 || !strings.Contains(notes[0], "crash loop: it has died 5 times") || !strings.Contains(notes[0], say) {
			t.Errorf("%q: %q", policy, notes)
		}
	}
}
