//go:build linux

package handover_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/supervisor"
)

// handoverd is upgraded in place, again and again, under the load modes of the programs, with reloads in between and
// beside it. No request fails, nobody who asks handoverd itself is refused or cut, and the process is the same.

// upgrades is how often each row upgrades handoverd.
func upgrades() int {
	if full() {
		return 100
	}
	return 6
}

func TestUpgrade(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	streams := drill.Load{Mode: drill.ModeStream, Clients: 8, Delay: 300 * time.Millisecond, Spread: 700 * time.Millisecond}
	posts := drill.Load{Mode: drill.ModePost, Clients: 8, Pause: 20 * time.Millisecond}
	child := func(mode, when string) func(*testing.T, *Daemon) string {
		return func(t *testing.T, d *Daemon) string {
			return childService{mode: mode, when: when, env: `TESTCHILD_LINES = "1"`, retire: "parent_shutdown = \"1m\""}.toml(t, d)
		}
	}
	rows := []killRow{
		{name: "native", config: child("ok", "native"), loads: []drill.Load{posts, streams}},
		{name: "sd_notify", config: child("accept-notify", "notify"), loads: []drill.Load{posts}},
		{name: "dropped by the shim, no CAP_SYS_PTRACE", wrapper: withoutPtrace, config: forNobody(`user = "nobody"`), loads: []drill.Load{posts}},
		{name: "handoverd is not root", wrapper: nonRoot, config: forNobody(""), loads: []drill.Load{posts}},
		{name: "HAProxy drops its user, no keeper", config: func(t *testing.T, d *Daemon) string {
			return "keeper = \"none\"\n" + killedHAProxy(t, d)
		}, header: haproxyHeader, loads: []drill.Load{posts, streams}},
	}
	if full() {
		rows = append(rows, killedUnderLoad(child("ok", "native"))...)
	} else {
		rows = []killRow{rows[0], rows[4]}
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			if !row.alone {
				t.Parallel() // they mostly wait
			}
			row.upgrade(t)
		})
	}
}

func (row *killRow) upgrade(t *testing.T) {
	d := NewDaemon(t)
	publicProgram(t, handoverdProgram)
	health := fmt.Sprintf("127.0.0.1:%d", FreePort(t))
	d.Configure(fmt.Sprintf("health = %q\n%s", health, row.config(t, d)))
	if len(row.wrapper) > 0 && row.wrapper[1] == nonRoot[1] {
		for _, path := range []string{d.Dir, d.ConfigFile()} {
			if err := os.Chown(path, 65534, 65534); err != nil {
				t.Fatal(err)
			}
		}
	}
	row.start(d)
	d.WaitReady()
	s := &scene{Daemon: d, t: t}
	asks := s.askAlways(health)
	s.upgrades("")
	s.WaitStatus("the program is kept, so that no descriptor is to come", func(st *supervisor.Status) bool {
		return st.Services[0].Program != ""
	})
	open := openFDs(t, d.PID)
	loads := row.begin(t, s)
	for n := range upgrades() - 1 {
		row.upgradeOnce(t, s, n)
		for _, tr := range loads {
			tr.more(5)
		}
	}
	for _, tr := range loads {
		tr.end()
	}
	asks.end(t)
	eventually(t, "no more descriptors than after the first upgrade, and no zombie", func() bool {
		return openFDs(t, d.PID) <= open && len(zombiesOf(t, d.PID)) == 0
	})
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", d.PID)); err != nil || string(name) != "handoverd\n" {
		t.Errorf("ps calls it %q (%v)", name, err)
	}
	if st := s.Status(); st.PID != d.PID || st.Upgrade == nil || !st.Upgrade.Done || st.Upgrade.ID < upgrades() || st.Terminations.NoNotice != 0 {
		t.Errorf("status after %d upgrades: pid %d, %+v, %+v", upgrades(), st.PID, st.Upgrade, st.Terminations)
	}
	d.Stop()
	t.Logf("%s: upgraded %d times, asked %d times meanwhile", row.name, upgrades(), asks.answered.Load())
}

// upgradeOnce upgrades in one of the situations that there are.
func (row *killRow) upgradeOnce(t *testing.T, s *scene, n int) {
	t.Helper()
	generation, pid := s.Serving("web")
	switch n % 3 {
	case 0: // nothing else
		s.upgrades("")
		if g, p := s.Serving("web"); g != generation || p != pid {
			t.Errorf("generation %d (pid %d) serves after the upgrade, %d (pid %d) before", g, p, generation, pid)
		}
	case 1: // an old generation drains
		s.MustReload()
		s.upgrades("")
	case 2: // a signal, and a reload that is asked for beside it
		// A SIGHUP of the moment of the execve is ignored, and made good only where the configuration has changed.
		s.edit(fmt.Sprintf("# round %d\n", n))
		events := s.Follow()
		s.Signal(unix.SIGUSR2)
		s.WaitEvent(events, "the upgrade begins", func(e supervisor.Event) bool { return e.Upgrade != nil })
		s.HUP()
		s.WaitStatus("upgraded and reloaded", func(st *supervisor.Status) bool {
			return st.Ready && len(st.Reloads) == 0 && st.Upgrade != nil && st.Upgrade.Stage == "" && serves(st, "web") > generation
		})
		if u := s.Status().Upgrade; !u.Done {
			t.Errorf("upgrade by SIGUSR2: %+v", u)
		}
	}
}

// edit adds a line to the configuration, whose owner stays the same.
func (s *scene) edit(line string) {
	s.t.Helper()
	f, err := os.OpenFile(s.ConfigFile(), os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.WriteString(line)
		_ = f.Close()
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// serves is the generation that serves, 0 if none does.
func serves(st *supervisor.Status, service string) int {
	for i := range st.Services {
		for _, g := range st.Services[i].Generations {
			if st.Services[i].Name == service && g.Phase == supervisor.PhaseServing {
				return g.Generation
			}
		}
	}
	return 0
}

// upgrades has a binary take over, "" for the same one, by the command.
func (s *scene) upgrades(binary string) {
	s.t.Helper()
	if code, out, text := s.upgradeTo(binary); code != 0 || !strings.Contains(out, fmt.Sprintf("pid %d", s.PID)) {
		s.t.Fatalf("handoverd upgrade: exit code %d\n%s%s", code, out, text)
	}
}

func (s *scene) upgradeTo(binary string, more ...string) (code int, stdout, stderr string) {
	s.t.Helper()
	args := append([]string{"upgrade"}, more...)
	if binary != "" {
		args = append(args, "--binary", binary)
	}
	return s.command(args...)
}

// asking is somebody who always asks handoverd itself.
type asking struct {
	answered atomic.Int64
	cancel   context.CancelFunc
	done     chan struct{}
	faults   []string
}

// askAlways asks for the status and for /ready, each on a connection of its own. It is ended by end.
func (s *scene) askAlways(health string) *asking {
	ctx, cancel := context.WithCancel(context.Background())
	a := &asking{cancel: cancel, done: make(chan struct{})}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	go func() { // waited for by end
		defer close(a.done)
		for ctx.Err() == nil {
			if st, err := s.status(); err != nil || st.PID != s.PID {
				a.faults = append(a.faults, fmt.Sprintf("status: %v", err))
			}
			resp, err := client.Get("http://" + health + "/ready")
			if err == nil {
				_ = resp.Body.Close()
			}
			if err != nil || resp.StatusCode != http.StatusOK {
				a.faults = append(a.faults, fmt.Sprintf("/ready: %v %v", resp, err))
			}
			a.answered.Add(1)
			select {
			case <-time.After(2 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	s.t.Cleanup(func() { cancel(); <-a.done })
	return a
}

func (a *asking) end(t *testing.T) {
	t.Helper()
	a.cancel()
	<-a.done
	if n := a.answered.Load(); len(a.faults) > 0 || n < 10 {
		t.Errorf("%d of %d questions to handoverd itself failed: %v", len(a.faults), n, a.faults[:min(len(a.faults), 5)])
	}
}

func openFDs(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// zombiesOf are the children of a process that it has not reaped.
func zombiesOf(t *testing.T, parent int) []int { return childrenOf(t, parent, "Z") }

// childrenOf are the children of a process in one state, "" for all (proc_pid_stat(5)).
func childrenOf(t *testing.T, parent int, state string) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, path := range stats {
		text, _ := os.ReadFile(path) // it may have ended
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(fields) < 2 || state != "" && fields[0] != state || fields[1] != strconv.Itoa(parent) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			found = append(found, pid)
		}
	}
	return found
}
