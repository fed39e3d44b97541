//go:build linux

package handover_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// loopSoon makes a crash loop of the second death, and the next try a matter of the test.
func loopSoon(policy string) string {
	return fmt.Sprintf("backoff_min = \"20ms\"\nbackoff_max = \"10m\"\ncrash_loop_after = 2\non_crash_loop = %q", policy)
}

// crashing starts a service that serves, and has it die in its init again and again.
func crashing(t *testing.T, policy string, more ...childService) *scene {
	t.Helper()
	s := newScene(t, append([]childService{{restart: loopSoon(policy)}}, more...)...)
	s.setMode("web", "crash-init")
	s.kill("web")
	return s
}

// inLoop waits for the crash loop, and for a wait in it that is longer than what a test does in it.
func (s *scene) inLoop(policy string) *supervisor.ServiceStatus {
	s.t.Helper()
	s.WaitStatus("crash loop", func(st *supervisor.Status) bool {
		svc := st.Services[0]
		return svc.CrashLoop == policy && svc.RestartIn > 1 && len(svc.Generations) == 0
	})
	s.WaitLog("crash loop: it has died 2 times")
	return s.service("web")
}

// health is the answer of /ready on the health address.
func health(t *testing.T, port int) int {
	t.Helper()
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/ready", port))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// on_crash_loop = "close": clients are refused while nothing of it runs, /ready is 503, other services serve on, the
// next handoverd goes on with that, and a reload opens the same port again.
func TestScenarioCrashLoopClose(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	s := &scene{Daemon: NewDaemon(t), t: t}
	port := FreePort(t)
	web, other := childService{restart: loopSoon("close")}, childService{name: "other"}
	configure := func() {
		s.Configure(fmt.Sprintf("health = \"127.0.0.1:%d\"\n", port) + web.toml(t, s.Daemon) + other.toml(t, s.Daemon))
	}
	configure()
	s.Start()
	s.WaitReady()
	s.events = s.Follow()
	if code := health(t, port); code != 200 {
		t.Errorf("/ready is %d while all serves", code)
	}
	address := s.address("web", "http")
	fresh := s.fresh(s.address("other", "http"))
	s.setMode("web", "crash-init")
	s.kill("web")
	s.inLoop("close")
	refused := func(when string) {
		t.Helper()
		if c, err := net.Dial("tcp", address); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: connected to %v (%v), want a refusal", when, c, err)
		}
		if code := health(t, port); code != 503 {
			t.Errorf("%s: /ready is %d, want 503", when, code)
		}
	}
	refused("in the crash loop")

	// Killed in it: the next handoverd knows of the loop, and of the port.
	s.Kill()
	s.Start()
	if svc := s.inLoop("close"); svc.Failures < 2 || svc.RestartIn < 60 && svc.Failures > 20 {
		t.Errorf("after a kill of handoverd: %+v", svc)
	}
	s.events = s.Follow()
	refused("after a kill of handoverd")

	fresh.more(50)
	s.setMode("web", "")
	s.MustReload("web")
	if got := s.address("web", "http"); got != address {
		t.Errorf("the port was %s and is %s", address, got)
	}
	again := s.fresh(address)
	again.more(50)
	if code := health(t, port); code != 200 {
		t.Errorf("/ready is %d after the reload", code)
	}
	if svc := s.service("web"); svc.CrashLoop != "" || svc.Failures != 0 {
		t.Errorf("after the reload: %+v", svc)
	}
	again.end()
	fresh.end()
	s.Stop()
}

// on_crash_loop = "hold": who connects waits, and is answered once a program serves.
func TestScenarioCrashLoopHold(t *testing.T) {
	t.Parallel()
	s := crashing(t, "hold")
	s.inLoop("hold")
	c, err := net.Dial("tcp", s.address("web", "http"))
	if err != nil {
		t.Fatalf("not taken in a crash loop: %v", err)
	}
	defer func() { _ = c.Close() }()
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	s.setMode("web", "")
	s.MustReload()
	var b [12]byte
	if _, err := c.Read(b[:]); err != nil || string(b[:8]) != "HTTP/1.1" {
		t.Errorf("who waited was answered %q, %v", b, err)
	}
	s.Stop()
}

// on_crash_loop = "exit": the others are stopped in order, and the exit code says why.
func TestScenarioCrashLoopExit(t *testing.T) {
	t.Parallel()
	s := crashing(t, "exit", childService{name: "other"})
	if code := s.WaitExit(); code != supervisor.ExitCrashLoop {
		t.Errorf("exit code %d, want %d", code, supervisor.ExitCrashLoop)
	}
	if left := s.Left(); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	s.WaitLog("handoverd stops")
	s.logs("other", 1, "stop")
}
