//go:build linux

package handover_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/supervisor"
)

// onlyRefused ends a load on a socket that has gone: who connected was served or refused, never reset, never cut, never
// left hanging.
func (tr *traffic) onlyRefused() {
	t := tr.s.t
	t.Helper()
	// It is refused for as long as it goes on: those that were waiting are told as well.
	eventually(t, "new connections are refused", func() bool { return tr.Snapshot().Failures[drill.KindRefused] >= 50 })
	r := tr.Run.Stop()
	t.Logf("%d requests, %v, %v", r.Sent, r.Failures, r.GeneratorFaults)
	for kind, n := range r.Failures {
		if kind != drill.KindRefused {
			t.Errorf("%d failures of kind %s: %v", n, kind, r.Samples)
		}
	}
}

// attack is new connections as fast as some clients can.
func (s *scene) attack(network, address string) *traffic {
	s.t.Helper()
	return s.load("fresh", drill.Load{Network: network, Address: address, Mode: drill.ModeFresh, Clients: 16})
}

// A client that connects during the final drain is served or refused, whatever the kind of the socket, and of the program.
func TestStopQueue(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, mode, when, socket, network string }{
		{"native", "ok", "native", `http = "tcp4://127.0.0.1:0"`, "tcp"},
		{"signalled", "accept-notify", "notify", `http = "tcp4://127.0.0.1:0"`, "tcp"},
		{"dual-stack", "ok", "native", `http = "tcp://:0"`, "tcp"},
		{"unix", "ok", "native", `http = "unix://DIR/app.sock"`, "unix"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := childService{mode: row.mode, when: row.when, socket: strings.ReplaceAll(row.socket, "DIR", dir)}
			if row.network == "unix" {
				p.env = `TESTCHILD_NETWORK = "unix"`
			}
			s := newScene(t, p)
			address := filepath.Join(dir, "app.sock")
			if row.network == "tcp" {
				at := s.address("web", "http")
				address = "127.0.0.1" + at[strings.LastIndexByte(at, ':'):]
			}
			load := s.attack(row.network, address)
			s.Signal(unix.SIGTERM)
			if code := s.WaitExit(); code != 0 {
				t.Errorf("handoverd exits with %d, want 0", code)
			}
			load.onlyRefused()
		})
	}
}

// The same for a socket that a reload removes, while the other one goes on.
func TestStopQueueRemoved(t *testing.T) {
	t.Parallel()
	kept := `http = "tcp4://127.0.0.1:0"`
	s := newScene(t, childService{socket: kept + "\nold = \"tcp4://127.0.0.1:0\"", env: `TESTCHILD_SOCKETS = "http old"`})
	old, stays := s.attack("tcp", s.address("web", "old")), s.fresh(s.address("web", "http"))
	s.configure(childService{socket: kept})
	s.MustReload()
	stays.sees(2)
	old.onlyRefused()
	stays.end()
	s.Stop()
}

// A drain hook takes the place of the signal: the program is told by it, at a reload and at the stop.
func TestStopDrainHook(t *testing.T) {
	t.Parallel()
	t.Run("exec", func(t *testing.T) {
		t.Parallel()
		s := newScene(t, childService{mode: "accept-notify", when: "notify", retire: `drain = { exec = ["sh", "-c", "kill -TERM $HANDOVER_PID"] }`})
		load := s.fresh(s.address("web", "http"))
		s.MustReload()
		load.sees(2)
		load.end()
		s.Stop()
		if log := s.Log(); strings.Contains(log, "msg=signalled") || strings.Count(log, " drains\n") != 2 {
			t.Errorf("the log does not tell of two drain hooks and no signal:\n%s", log)
		}
	})
	t.Run("http", func(t *testing.T) {
		t.Parallel()
		var asked atomic.Int32
		pid := make(chan int, 1)
		hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var n int
			if _, err := fmt.Sscanf(r.URL.Path, "/drain/web/%d", &n); err != nil || r.Method != http.MethodPost {
				http.Error(w, "not found", http.StatusNotFound)
				return
			}
			asked.Add(1)
			pid <- n
		}))
		defer hook.Close()
		s := newScene(t, childService{
			mode: "accept-notify", when: "notify",
			retire: fmt.Sprintf("drain = { http = \"POST %s/drain/${HANDOVER_SERVICE}/${HANDOVER_PID}\" }", hook.URL),
		})
		_, want := s.Serving("web")
		s.Signal(unix.SIGTERM)
		if got := <-pid; got != want {
			t.Errorf("asked to drain %d, want %d", got, want)
		}
		if err := unix.Kill(want, unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if code := s.WaitExit(); code != 0 || asked.Load() != 1 {
			t.Errorf("handoverd exits with %d after %d requests", code, asked.Load())
		}
	})
}

// Hooks that hang are ended with everything they have started, inside the deadline that contains them.
func TestStopHooksHang(t *testing.T) {
	t.Parallel()
	hang := `["sh", "-c", "sleep 1000 & sleep 1000"]`
	s := newScene(t, childService{mode: "accept-notify", when: "notify", stop: fmt.Sprintf(`deadline = "4s"
lame_duck = { until = "exec", exec = %s, max = "500ms" }
announce = { exec = %s }`, hang, hang), retire: fmt.Sprintf("kill_grace = \"500ms\"\ndrain = { exec = %s }", hang)})
	begin := time.Now()
	s.Signal(unix.SIGTERM)
	if code := s.WaitExit(); code != 0 { // it obeys the SIGTERM a kill grace before the deadline
		t.Errorf("handoverd exits with %d, want 0", code)
	}
	if after := time.Since(begin); after < 3*time.Second || after > 6*time.Second {
		t.Errorf("it took %v, want 3.5 s: the deadline less the kill grace", after)
	}
	if left := s.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	inOrder(t, s.Log(), "lame duck: serves on", "lame duck: the wait is over, by its max", "from=serving to=draining", "socket closed",
		"signal=SIGTERM", "from=draining to=ending")
}

// A program that ends at once at its signal, with connections in hand: they are counted, and nobody is told that all was well.
func TestStopOpenAtExit(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := StartDaemon(t, fmt.Sprintf(`[service.web]
command = [%q]
[service.web.socket]
http = "tcp4://127.0.0.1:0"
[service.web.stop]
deadline = "6s"
hold = "quiet:2s"
lame_duck = { max = "1s" }
[service.web.retire]
kill_grace = "500ms"
`, Program(t, "./testdata/nohandler")))
	s := &scene{Daemon: d, t: t}
	load, err := drill.Start(limited(t), drill.Load{Network: "tcp", Address: s.address("web", "http"), Mode: drill.ModeKeepAlive, Clients: 8, Plain: plainAnswer})
	if err != nil {
		t.Fatal(err)
	}
	defer load.Stop()
	if err := load.WaitOK(limited(t), 50); err != nil {
		t.Fatal(err)
	}
	d.Signal(unix.SIGTERM)
	if code := d.WaitExit(); code != supervisor.ExitCut {
		t.Errorf("handoverd exits with %d, want %d: clients were never silent", code, supervisor.ExitCut)
	}
	inOrder(t, d.Log(), "hold: its connections were not silent for 2s", "signal=SIGTERM", "connections open at its exit: 8")
}

// With handoff = "exclusive" a generation begins when the one before it has ended, and clients wait meanwhile.
func TestStopExclusive(t *testing.T) {
	t.Parallel()
	p := childService{retire: "parent_shutdown = \"20s\""}
	s := newScene(t, p)
	exclusive := strings.Replace(p.toml(t, s.Daemon), "env = {", "handoff = \"exclusive\"\nenv = {", 1)
	s.Configure(exclusive)
	load := s.fresh(s.address("web", "http"))
	s.MustReload()
	load.sees(2)
	s.reaches("web", 1, supervisor.PhaseGone)
	s.reaches("web", 2, supervisor.PhaseStarting) // the events are in order: after the end of the first
	load.end()
	s.Stop()
}

// inOrder wants the texts in the log, one after another.
func inOrder(t *testing.T, log string, texts ...string) {
	t.Helper()
	rest := log
	for _, text := range texts {
		_, after, ok := strings.Cut(rest, text)
		if !ok {
			t.Errorf("%q is not in the log after what comes before it:\n%s", text, log)
			return
		}
		rest = after
	}
}

// An announcement is a file, too, and the start of the next handoverd takes it back.
func TestStopAnnounceFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "lame")
	s := newScene(t, childService{stop: fmt.Sprintf("announce = { file = %q }\nlame_duck = { for = \"200ms\" }", file)})
	s.Signal(unix.SIGTERM)
	eventually(t, "it is announced", func() bool { _, err := os.Stat(file); return err == nil })
	if code := s.WaitExit(); code != 0 {
		t.Errorf("handoverd exits with %d, want 0", code)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("after the stop: %v", err)
	}
	s.Start()
	s.WaitReady()
	eventually(t, "it is taken back", func() bool { _, err := os.Stat(file); return err != nil })
	s.Stop()
}
