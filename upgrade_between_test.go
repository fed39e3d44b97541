//go:build linux

package handover_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// What happens between the last turn of one image of handoverd and the first one of the next.

// between is how often each of these tests upgrades.
func between(short int) int {
	if full() {
		return 50
	}
	return short
}

// whenever waits for a moment of an upgrade that takes 50 to 300 ms: which one is what is tested.
func whenever() { <-time.After(rand.N(300 * time.Millisecond)) }

// TestUpgradeSignals: a SIGHUP at any moment of an upgrade reloads what was configured before it, and ends nothing, and
// a storm of signals neither.
func TestUpgradeSignals(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	s := newScene(t, childService{})
	fresh := s.fresh(s.address("web", "http"))
	for n := range between(4) {
		before := s.Status().Digest
		s.configure(childService{env: fmt.Sprintf(`ROUND = "%d"`, n)})
		upgrade := s.beginsUpgrade()
		whenever()
		s.HUP()
		s.ends(upgrade, 0, fmt.Sprintf("pid %d", s.PID))
		s.WaitStatus("the new configuration serves", func(st *supervisor.Status) bool {
			return st.Digest != before && st.Ready && len(st.Reloads) == 0 && st.Services[0].Digest == st.Digest
		})
	}
	storm, over := make(chan struct{}), make(chan struct{})
	go func() { // waited for through over
		defer close(over)
		for {
			select {
			case <-storm:
				return
			case <-time.After(time.Millisecond):
				_, _ = unix.Kill(s.PID, unix.SIGHUP), unix.Kill(s.PID, unix.SIGUSR1)
			}
		}
	}()
	for range between(2) {
		code, _, text := s.upgradeTo("")
		if code != 0 && code != 3 && !strings.Contains(text, "busy") { // a reload is nearly always under way
			t.Errorf("exit code %d: %s", code, text)
		}
		s.Signal(unix.SIGUSR2)
		whenever()
	}
	close(storm)
	<-over
	s.WaitStatus("the reloads are done", func(st *supervisor.Status) bool {
		return st.Ready && len(st.Reloads) == 0 && st.PID == s.PID && (st.Upgrade.Stage == "")
	})
	fresh.more(20)
	fresh.end()
	s.Stop()
}

// beginsUpgrade upgrades, and returns once the pre-flight has begun. A SIGHUP of before may have a reload begin meanwhile: then it
// is asked for again.
func (s *scene) beginsUpgrade() *commanded {
	s.t.Helper()
	events := s.Follow()
	deadline := time.After(patience)
	upgrade := s.commanding("upgrade")
	for {
		select {
		case e, open := <-events:
			if !open {
				s.t.Fatal("handoverd has ended")
			}
			if e.Upgrade != nil {
				return upgrade
			}
		case <-upgrade.done:
			if upgrade.code != 3 {
				return upgrade // over already
			}
			upgrade = s.commanding("upgrade")
		case <-deadline:
			s.t.Fatalf("no pre-flight within %v", patience)
		}
	}
}

// TestUpgradeExits: a program that dies at any moment of an upgrade is reaped with its status, and started again.
func TestUpgradeExits(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	s := newScene(t, childService{restart: "backoff_min = \"20ms\"\nbackoff_max = \"20ms\""})
	for range between(4) {
		generation, _ := s.Serving("web")
		upgrade := s.commanding("upgrade")
		whenever()
		s.kill("web")
		<-upgrade.done
		if upgrade.code != 0 && !strings.Contains(upgrade.stderr, "busy") { // what was started meanwhile is not cut
			t.Errorf("exit code %d: %s", upgrade.code, upgrade.stderr)
		}
		st := s.WaitStatus("another one serves alone", func(st *supervisor.Status) bool {
			g := st.Services[0].Generations
			return st.Ready && len(g) == 1 && g[0].Generation > generation
		})
		if f := st.Services[0].Failure; f == nil || f.Generation != generation || !strings.Contains(f.Reason, "killed by SIGKILL") {
			t.Errorf("generation %d was killed, and the status says %+v", generation, f)
		}
	}
	eventually(t, "no zombie", func() bool { return len(zombiesOf(t, s.PID)) == 0 })
	s.Stop()
}

// TestUpgradeOutput: no line of a program is lost or comes twice.
func TestUpgradeOutput(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := StartDaemon(t, plain("", "/bin/sh", "-c", `i=0; while :; do i=$((i+1)); echo line $i >&2; sleep 0.002; done`))
	s := &scene{Daemon: d, t: t}
	lines := func() []string {
		return regexp.MustCompile(`(?m)^web\.1 \| line (\d+)$`).FindAllString(d.Log(), -1)
	}
	for range between(4) {
		n := len(lines())
		s.upgrades("")
		eventually(t, "more lines", func() bool { return len(lines()) > n+20 })
	}
	d.Stop()
	for i, l := range lines() {
		if number, err := strconv.Atoi(l[strings.LastIndexByte(l, ' ')+1:]); err != nil || number != i+1 {
			t.Fatalf("line %d is %q", i+1, l)
		}
	}
	t.Logf("%d lines", len(lines()))
}

// TestUpgradeAsPID1: the first process of a pid namespace is upgraded like any other.
func TestUpgradeAsPID1(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := NewDaemon(t)
	d.Configure(childService{}.toml(t, d))
	d.startUnder(t, nil, "unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
	d.WaitReady()
	s := &scene{Daemon: d, t: t}
	fresh := s.fresh(s.address("web", "http"))
	generation, pid := s.Serving("web")
	for range between(3) {
		if code, out, text := s.upgradeTo(""); code != 0 || !strings.Contains(out, "pid 1;") {
			t.Fatalf("exit code %d: %s%s", code, out, text)
		}
		if g, p := s.Serving("web"); g != generation || p != pid {
			t.Errorf("generation %d (pid %d) serves, was %d (pid %d)", g, p, generation, pid)
		}
		fresh.more(10)
	}
	code, _, text := s.upgradeTo(wrong(t, "late-panic"))
	if code != 1 || !strings.Contains(text, "a mistake of its restore") {
		t.Errorf("exit code %d: %s", code, text)
	}
	s.MustReload()
	fresh.sees(generation + 1)
	fresh.end()
	if code, _, text := s.command("stop"); code != 0 {
		t.Errorf("stop: exit code %d: %s", code, text)
	}
	if code := d.WaitExit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
