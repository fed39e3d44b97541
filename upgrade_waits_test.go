//go:build linux

package handover_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/handoverd/handover/supervisor"
)

// Who waits at the control socket while handoverd is upgraded: the connection ends with the image that was asked, and
// the command goes on waiting for the same thing.

// TestUpgradeWaits: reloads that wait for a place, a lame duck and the events, over some upgrades.
func TestUpgradeWaits(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	port := FreePort(t)
	d := NewDaemon(t)
	seen := filepath.Join(d.Dir, "seen")
	d.Configure(goserver(t, port) + fmt.Sprintf("[service.web.retire]\nmax_draining = 1\nparent_shutdown = \"5m\"\n[service.web.stop]\n"+
		"deadline = \"5m\"\nlame_duck = { until = \"exec\", exec = [\"/usr/bin/test\", \"-e\", %q], max = \"2m\" }\n", seen))
	d.Start()
	d.WaitReady()
	s := &scene{Daemon: d, t: t}
	events := s.commanding("events", "--json")
	s.WaitStatus("the events are followed", func(st *supervisor.Status) bool { return st.Followers > 1 })
	stream := holdStream(t, port, 1)
	d.MustReload()
	reload := s.commanding("reload")
	checkWaits(t, d, 2)
	strict := s.commanding("reload", "--json", "--strict")
	s.WaitStatus("both of them wait", func(st *supervisor.Status) bool { return len(st.Reloads) == 2 })
	lame := s.commanding("lame-duck")
	s.WaitStatus("lame duck", func(st *supervisor.Status) bool { return st.Services[0].LameDuck != nil })
	first := s.connects(port, 0)
	s.upgrades("")
	if got := s.Status().Services[0].LameDuck.LastNew; got != first {
		t.Errorf("the last new connection came after %v s, and before the upgrade it had been after %v s", got, first)
	}
	s.connects(port, first)
	s.upgrades("")
	for _, waits := range []*commanded{events, reload, strict, lame} {
		select {
		case <-waits.done:
			t.Fatalf("a command has not waited: exit code %d\n%s%s", waits.code, waits.stdout, waits.stderr)
		default:
		}
	}
	s.toggle("seen", true)
	s.ends(lame, 0, "; the last new connection came after ")
	stream.end()
	s.ends(reload, 0, "web.3 serves")
	s.ends(strict, 0, `"outcome": "serving"`)
	s.upgrades("")
	d.Stop()
	s.ends(events, 0, "")
	upgrades := 0
	for last := checkSeq(t, events.stdout, func(e *supervisor.Event) {
		if e.Upgrade != nil && e.Upgrade.Done {
			upgrades++
		}
	}); last < 15 || upgrades != 3; {
		t.Fatalf("%d events, with %d upgrades:\n%s", last, upgrades, events.stdout)
	}
}

// connects makes connections until one is told as the last new one of the lame duck, later than another, and returns when
// that was.
func (s *scene) connects(port int, after float64) (seen float64) {
	s.t.Helper()
	var open []net.Conn
	defer func() {
		for _, c := range open { // else the program would wait for them
			_ = c.Close()
		}
	}()
	eventually(s.t, "a new connection is seen", func() bool {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			s.t.Fatal(err)
		}
		open = append(open, c)
		seen = s.Status().Services[0].LameDuck.LastNew
		return seen > after
	})
	return seen
}

// checkSeq checks that no event is left out and none comes twice.
func checkSeq(t *testing.T, text string, each func(*supervisor.Event)) (last int) {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e supervisor.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if last > 0 && e.Seq != last+1 {
			t.Errorf("event %d follows event %d: %s", e.Seq, last, lines.Text())
		}
		last = e.Seq
		each(&e)
	}
	return last
}

// TestUpgradeAsked: a reload that is asked for at any moment of an upgrade is told its outcome, and lame ducks of that
// time end as ever.
func TestUpgradeAsked(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	s := newScene(t, childService{stop: `lame_duck = { until = "timer", for = "200ms" }`})
	events := s.commanding("events", "--json")
	s.WaitStatus("the events are followed", func(st *supervisor.Status) bool { return st.Followers > 2 })
	done := 0
	for range between(4) {
		upgrade := s.commanding("upgrade")
		var asked []*commanded
		for range 3 {
			asked = append(asked, s.commanding("reload"), s.commanding("lame-duck"))
			whenever()
		}
		for i, c := range asked {
			<-c.done
			if c.code != 0 {
				t.Errorf("%d: exit code %d: %s%s", i, c.code, c.stdout, c.stderr)
			}
		}
		switch <-upgrade.done; upgrade.code {
		case 0:
			done++
		case 3: // a reload came first
		default:
			t.Errorf("exit code %d: %s", upgrade.code, upgrade.stderr)
		}
		s.ends(s.commanding("lame-duck", "--off"), 0, "web: back")
	}
	s.upgrades("")
	s.Stop()
	s.ends(events, 0, "")
	last := checkSeq(t, events.stdout, func(*supervisor.Event) {})
	t.Logf("%d of %d upgrades beside reloads, %d events", done, between(4), last)
}

// TestUpgradeResting: while an upgrade waits for a hook to end, handoverd answers as ever: its /ready is asked by balancers
// and its /healthz by whoever restarts it.
func TestUpgradeResting(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := NewDaemon(t)
	d.Configure(childService{stop: fmt.Sprintf(`deadline = "3m"
lame_duck = { until = "timer", for = "1ms", max = "2m" }
announce = { exec = ["/bin/sh", "-c", "until test -e %s; do sleep 0.05; done"] }`, filepath.Join(d.Dir, "announced"))}.toml(t, d))
	d.Start()
	d.WaitReady()
	s := &scene{Daemon: d, t: t}
	lame := s.commanding("lame-duck")
	s.WaitStatus("it is announced", func(st *supervisor.Status) bool { return st.Services[0].LameDuck != nil })
	upgrade := s.commanding("upgrade")
	s.WaitStatus("the upgrade waits for the announcement", func(st *supervisor.Status) bool {
		return st.Upgrade != nil && st.Upgrade.Stage == "resting"
	})
	s.toggle("announced", true)
	s.ends(upgrade, 0, "runs, pid ")
	s.ends(lame, 0, "ended by timer after ")
	s.Stop()
}
