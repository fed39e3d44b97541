//go:build linux

package handover_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// notifyConfig is a service with two sockets that takes these steps.
func notifyConfig(t *testing.T, more, ready string, steps ...string) string {
	t.Helper()
	return fmt.Sprintf(`
[service.web]
command = %s
%s
[service.web.socket]
http = "tcp4://127.0.0.1:0"
admin = "tcp4://127.0.0.1:0"
[service.web.ready]
%s
`, quoted(append([]string{publicProgram(t, stepsProgram)}, steps...)...), more, ready)
}

// makeFIFO makes one that every user may read.
func makeFIFO(t *testing.T, d *Daemon) string {
	t.Helper()
	path := filepath.Join(d.Dir, "fifo")
	if err := unix.Mkfifo(path, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// starting waits for the generation that starts to be as it should.
func starting(d *Daemon, what string, ok func(supervisor.GenerationStatus) bool) {
	d.WaitStatus(what, func(s *supervisor.Status) bool {
		if len(s.Services) == 0 { // prepared, not yet begun
			return false
		}
		gens := s.Services[0].Generations
		return len(gens) > 0 && gens[len(gens)-1].Phase == supervisor.PhaseStarting && ok(gens[len(gens)-1])
	})
}

// TestNotify: READY=1 counts from the program itself, from another user, and from a child that has ended before
// anybody read it.
func TestNotify(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	rows := []struct{ name, more, ready, step string }{
		{"notify", "", `when = "notify"`, "notify READY=1"},
		{"auto", "", `when = "auto"`, "notify READY=1"},
		{"with other lines", "", `when = "auto"`, "notify MAINPID=1|READY=1|X_OTHER=1"},
		{"another user", `user = "nobody"`, `when = "notify"`, "notify READY=1"},
		{"a child that has ended", "", `when = "notify"`, "notify-and-end READY=1"},
		{"a child of another user that has ended", `user = "nobody"`, `when = "auto"`, "notify-and-end READY=1"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			d := NewDaemon(t)
			fifo := makeFIFO(t, d)
			// The first message says that it will tell: auto then waits for it, however long it has been accepting.
			d.Configure(notifyConfig(t, row.more, row.ready, "serve 3", "notify STATUS=up", "wait "+fifo, row.step))
			d.Start()
			starting(d, "it has told its status", func(g supervisor.GenerationStatus) bool { return g.Text == "up" && g.Adoption == "seen" })
			output := filepath.Join(d.Dir, "log", "web.1")

			// handoverd sleeps while the message comes, until all who had to do with it have ended.
			d.Signal(unix.SIGSTOP)
			defer func() { _ = d.cmd.Process.Signal(unix.SIGCONT) }() // also where the test ends before
			touch(t, fifo)
			eventually(t, "the step has been taken", func() bool {
				text, err := os.ReadFile(output)
				return err == nil && strings.Contains(string(text), "done: "+row.step)
			})
			d.Signal(unix.SIGCONT)
			d.WaitReady()
			checkReady(t, d, 1, "notify", "seen")
			d.Stop()
		})
	}
}

// TestNotifyExtends: EXTEND_TIMEOUT_USEC gives a slow start more time, and STATUS is in the status.
func TestNotifyExtends(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	d := NewDaemon(t)
	fifo := makeFIFO(t, d)
	d.Configure(notifyConfig(t, "", "init_grace = \"2s\"", "serve 3", "notify EXTEND_TIMEOUT_USEC=60000000|STATUS=loading 40 %",
		"wait "+fifo, "notify READY=1|STATUS=all loaded"))
	d.Start()
	starting(d, "the grace is extended", func(g supervisor.GenerationStatus) bool { return g.Text == "loading 40 %" && g.Ends > 20 })
	starting(d, "it goes on past its first grace", func(g supervisor.GenerationStatus) bool { return g.Age > 2.2 })
	touch(t, fifo)
	d.WaitReady()
	checkReady(t, d, 1, "notify", "seen")
	d.WaitStatus("the last status", func(s *supervisor.Status) bool { return s.Services[0].Generations[0].Text == "all loaded" })
	if failure := d.Service("web").Failure; failure != nil {
		t.Errorf("a failure: %+v", failure)
	}
	d.Stop()
}

// TestNotifyMissing: a program that has begun to tell must tell that it is ready; accepting is not enough then.
func TestNotifyMissing(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	for ready, want := range map[string]string{
		"when = \"auto\"\ninit_grace = \"1500ms\"":   "it sent sd_notify messages, but no READY=1",
		"when = \"notify\"\ninit_grace = \"1500ms\"": "it sent sd_notify messages, but no READY=1",
		"when = \"native\"\ninit_grace = \"1500ms\"": "", // READY=1 is not what was asked for
	} {
		t.Run(ready, func(t *testing.T) {
			t.Parallel() // they mostly wait
			step := "notify STATUS=up|READY=0"
			if want == "" {
				step, want = "notify READY=1", "init grace of 1.5s is over"
			}
			d := NewDaemon(t)
			d.Configure(notifyConfig(t, "", ready, "serve 3", step))
			d.Start()
			checkFailure(t, d, want)
			d.Stop()
		})
	}
}

// TestDialects: what a program finds of each dialect, and that there is not more.
func TestDialects(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	const absent = "(absent)"
	rows := []struct {
		dialects string
		signal   string // the drain signal
		want     map[string]string
	}{
		{`["systemd"]`, "SIGTERM", map[string]string{
			"LISTEN_FDS": "2", "LISTEN_PID": "PID", "LISTEN_FDNAMES": "http:admin", "LISTEN_PIDFDID": absent, "NOTIFY_SOCKET": "DIR/notify/web.1", "NGINX": absent,
		}},
		{`["nginx"]`, "SIGQUIT", map[string]string{
			"NGINX": "3;4;", "LISTEN_FDS": absent, "LISTEN_PID": absent, "LISTEN_FDNAMES": absent, "NOTIFY_SOCKET": absent,
		}},
		{`["haproxy"]`, "SIGUSR1", map[string]string{
			"NGINX": absent, "LISTEN_FDS": absent, "LISTEN_PID": absent, "NOTIFY_SOCKET": "DIR/notify/web.1",
		}},
		{`["native"]`, "SIGTERM", map[string]string{
			"NGINX": absent, "LISTEN_FDS": absent, "LISTEN_PID": absent, "NOTIFY_SOCKET": absent,
		}},
	}
	always := map[string]string{
		"HANDOVER_FD_HTTP": "3", "HANDOVER_FD_ADMIN": "4", "HANDOVER_FD": "5", "HANDOVER_GENERATION": "1", "HANDOVER_SERVICE": "web",
	}
	for _, row := range rows {
		t.Run(row.dialects, func(t *testing.T) {
			d := NewDaemon(t)
			d.Configure(fmt.Sprintf(`
[service.web]
command = [%q, "1000"]
user = "nobody"
dialects = %s
[service.web.socket]
http = "tcp4://127.0.0.1:0"
admin = "tcp4://127.0.0.1:0"
`, sleeper, row.dialects))
			d.Start()
			p := waitProcess(t, d, 1, sleeper)
			env := p.environ()
			for _, vars := range []map[string]string{row.want, always} {
				for name, want := range vars {
					got, ok := env[name]
					if !ok {
						got = absent
					}
					check(t, name, got, strings.NewReplacer("PID", fmt.Sprint(p.pid), "DIR", d.Dir).Replace(want))
				}
			}
			if len(env["HANDOVER_TOKEN"]) < 16 {
				t.Errorf("HANDOVER_TOKEN is %q", env["HANDOVER_TOKEN"])
			}
			svc := d.Service("web")
			files := p.files()
			log := filepath.Join(d.Dir, "log", "web.1")
			checkFiles(p, map[int]string{
				0: "/dev/null", 1: log, 2: log, 3: fmt.Sprintf("socket:[%d]", svc.Sockets[0].Inode),
				4: fmt.Sprintf("socket:[%d]", svc.Sockets[1].Inode), 5: files[5],
			})
			check(t, "names of the sockets", []string{svc.Sockets[0].Name, svc.Sockets[1].Name}, []string{"http", "admin"})
			if socket, ok := env["NOTIFY_SOCKET"]; ok {
				info, err := os.Stat(socket)
				if err != nil {
					t.Fatal(err)
				}
				if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 65534 || info.Mode().Perm() != 0o600 {
					t.Errorf("the notify socket is of user %d, mode %v, want 65534 and 0600", owner, info.Mode())
				}
			}
		})
	}
}

// TestDrainSignals: the dialect's drain signal is in the status, and what is configured goes before it.
func TestDrainSignals(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	for config, want := range map[string]string{
		"":                        "SIGTERM",
		`dialects = ["systemd"]`:  "SIGTERM",
		`dialects = ["nginx"]`:    "SIGQUIT",
		`dialects = ["haproxy"]`:  "SIGUSR1",
		"retire.signal = \"HUP\"": "SIGHUP",
		"dialects = [\"nginx\"]\nretire.signal = \"SIGWINCH\"": "SIGWINCH",
	} {
		t.Run(config, func(t *testing.T) {
			t.Parallel() // they mostly wait
			d := StartDaemon(t, plain(config, sleeper, "1000"))
			if got := d.Service("web").DrainSignal; got != want {
				t.Errorf("drain signal %s, want %s", got, want)
			}
			if want == "SIGWINCH" { // sleep ignores it
				d.Signal(unix.SIGQUIT)
				d.WaitExit()
				return
			}
			d.MustReload()
			d.WaitLog("signal=" + want)
			d.Stop()
		})
	}
}
