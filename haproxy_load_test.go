//go:build linux

package handover_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/internal/proc"
	"github.com/handoverd/handover/supervisor"
)

// The reload-under-load test of HAProxy: the two files of examples/haproxy, with nothing changed but ports and paths, HAProxy
// as Debian ships it, and a configuration that is another one at each reload.

// haproxyHeader is the field in which the example's HAProxy tells which configuration answered.
const haproxyHeader = "X-HAProxy-Generation"

// haproxyExample is the example under test.
type haproxyExample struct {
	*Daemon
	t      testing.TB
	port   int // HAProxy's
	config string
}

// rewrite replaces parts of a text. Each must be there: else the example is no longer the one that the test is about.
func rewrite(t testing.TB, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("%q is not in:\n%s", pairs[i], text)
		}
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	return text
}

func exampleFile(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("examples", "haproxy", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// newHAProxy prepares the example on ports of its own. change is made to handoverd.toml, in pairs of old and new.
func newHAProxy(t testing.TB, change ...string) *haproxyExample {
	t.Helper()
	h := &haproxyExample{Daemon: NewDaemon(t), t: t, port: FreePort(t)}
	app := fmt.Sprintf("127.0.0.1:%d", FreePort(t))
	h.config = rewrite(t, exampleFile(t, "haproxy.cfg"), "127.0.0.1:8081", app)
	h.SetGeneration(1)
	h.Configure(rewrite(t, exampleFile(t, "handoverd.toml"), append(change,
		"runtime_dir = \"build/haproxy\"\n", "",
		"examples/haproxy/haproxy.cfg", h.File(),
		"127.0.0.1:8080", h.Address(),
		"127.0.0.1:8081", app,
		"bin/goserver", Program(t, goserverProgram))...))
	return h
}

// startHAProxy is newHAProxy, started and ready.
func startHAProxy(t testing.TB, change ...string) *haproxyExample {
	t.Helper()
	h := newHAProxy(t, change...)
	h.Start()
	h.WaitReady()
	return h
}

// File is HAProxy's configuration file.
func (h *haproxyExample) File() string { return filepath.Join(h.Dir, "haproxy.cfg") }

// Address is HAProxy's.
func (h *haproxyExample) Address() string { return fmt.Sprintf("127.0.0.1:%d", h.port) }

// SetGeneration writes a configuration that tells clients this number.
func (h *haproxyExample) SetGeneration(n int) {
	h.t.Helper()
	h.Write(rewrite(h.t, h.config, haproxyHeader+" 1\n", fmt.Sprintf("%s %d\n", haproxyHeader, n)))
}

// Write replaces the configuration at once.
func (h *haproxyExample) Write(text string) {
	h.t.Helper()
	temp := h.File() + ".new"
	if err := os.WriteFile(temp, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Rename(temp, h.File()); err != nil {
		h.t.Fatal(err)
	}
}

// Load begins a load on HAProxy, whose generations are the ones that count.
func (h *haproxyExample) Load(ctx context.Context, l drill.Load) *drill.Run {
	h.t.Helper()
	l.Network, l.GenerationHeader, l.Duration = "tcp", haproxyHeader, time.Hour
	if l.Address == "" {
		l.Address = h.Address()
	}
	run, err := drill.Start(ctx, l)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { run.Stop() })
	return run
}

// reload writes configuration n and reloads the services in one window; none means all.
func (h *haproxyExample) reload(ctx context.Context, run *drill.Run, n, least int, services ...string) error {
	w := run.Mark(fmt.Sprint(n))
	defer w.End()
	h.SetGeneration(n)
	report, err := h.Reload(ctx, services...)
	if err != nil {
		return err
	}
	if !report.OK() || !report.Released() || report.Results[len(report.Results)-1].Generation != n {
		return fmt.Errorf("reload to generation %d: %+v", n, report)
	}
	if err := run.WaitGeneration(ctx, n); err != nil {
		return err
	}
	return w.Wait(ctx, least)
}

// TestLoadHAProxy reloads HAProxy, the Go server behind it staying, in the same modes as the Go server alone; and at last
// both at once.
func TestLoadHAProxy(t *testing.T) {
	if testing.Short() {
		t.Skip("load needs the machine to itself; it runs without -short")
	}
	reloads := 3
	if full() {
		reloads = 100
	}
	for _, row := range loadRows {
		t.Run(row.name, func(t *testing.T) {
			untilDriven(t, func() error { return runHAProxyRow(t, row, reloads, "web") })
		})
	}
	both := loadRow{name: "both-keepalive-post-64", load: drill.Load{Mode: drill.ModePost, Clients: 64}}
	t.Run(both.name, func(t *testing.T) {
		untilDriven(t, func() error { return runHAProxyRow(t, both, reloads) })
	})
}

// crashAtExit is how a drained HAProxy of version 2.6.10 to 2.6.13 may end, Debian's 2.6.12 among them, when it has answered
// everything and frees what it had (haproxy/haproxy#2114, _fd_delete_orphan under deinit). It is told, and costs nobody
// anything. One that ends so while it serves fails the row: clients see it, and what is started in its place takes a number.
const crashAtExit = "gone killed by SIGSEGV"

// runHAProxyRow is runRow with HAProxy.
func runHAProxyRow(t *testing.T, row loadRow, reloads int, services ...string) error {
	row.name = "haproxy-" + row.name
	if row.least == 0 {
		row.least = 500
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(reloads)*10*time.Second)
	defer cancel()
	h := startHAProxy(t)
	notes := watchNotes(h.Daemon)
	load := row.load
	if !full() {
		load.Rate /= 2 // which a machine that is busy with the other tests drives as well
	}
	if row.relay != 0 {
		relay, err := drill.NewRelay(h.Address(), row.relay)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = relay.Close() }()
		load.Address = relay.Addr()
	}
	run := h.Load(ctx, load)
	if err := run.WaitOK(ctx, row.least); err != nil {
		t.Fatal(err)
	}
	for n := 2; n <= reloads+1; n++ {
		if err := h.reload(ctx, run, n, row.least, services...); err != nil {
			t.Errorf("%v", err)
			break
		}
	}
	// The last of the old generations end under load too.
	h.WaitStatus("only the newest generations live", func(s *supervisor.Status) bool {
		return len(s.Services[0].Generations) == 1 && len(s.Services[1].Generations) == 1
	})
	report := run.Stop()
	h.Stop()
	for _, n := range notes() {
		if strings.Contains(n, crashAtExit) {
			t.Logf("handoverd says: %s", n)
			continue
		}
		t.Errorf("handoverd says: %s", n)
	}
	driven := checkRow(t, row, &report, reloads)
	figures := figuresOf(row, &report, reloads)
	t.Log(figures)
	if full() {
		writeFigures(t, figures)
	}
	if t.Failed() {
		keepLog(t, row.name, h.Daemon)
	}
	return driven
}

// TestHAProxyDrainsIdle: an old HAProxy that holds a stream, while 2,000 new connections arrive each second on the socket
// that it has let go, uses no processor time for them. Without -de it does: its epoll set keeps the socket that it has
// closed, because handoverd holds it too, and wakes it for each connection (epoll(7), questions and answers, 6).
func TestHAProxyDrainsIdle(t *testing.T) {
	if testing.Short() {
		t.Skip("load needs the machine to itself; it runs without -short")
	}
	t.Run("as in the example", func(t *testing.T) {
		var share float64
		var old supervisor.GenerationStatus
		untilDriven(t, func() (err error) {
			var rate float64
			if share, old, rate = drainUnderLoad(t); rate < 0.95*drainRate() {
				err = fmt.Errorf("%.0f connections/s, want %.0f", rate, drainRate())
			}
			return err
		})
		if share > 0.05 {
			t.Errorf("the old HAProxy uses %.1f %% of a core, want at most 5 %%", 100*share)
		}
		if old.Release != supervisor.ReleaseYes || old.StaleEpoll {
			t.Errorf("the status says %+v, want released and no stale epoll entry", old)
		}
	})
	t.Run("with epoll", func(t *testing.T) {
		share, old, _ := drainUnderLoad(t, `"-db", "-de", `, `"-db", `)
		if old.Release != supervisor.ReleaseYes {
			t.Errorf("the status says %+v, want released: no connection can reach it", old)
		}
		if share > 0.05 && !old.StaleEpoll {
			t.Errorf("it uses %.1f %% of a core, and the status does not name the stale epoll entry: %+v", 100*share, old)
		}
	})
}

// drainRate is how many new connections arrive each second while an old HAProxy drains: in short
// half of it, which a busy machine drives as well.
func drainRate() float64 {
	if full() {
		return 2000
	}
	return 1000
}

// drainUnderLoad measures which share of a core an old HAProxy uses while it holds a stream for 3 s, in full for 10 s, under new connections.
func drainUnderLoad(t *testing.T, change ...string) (share float64, old supervisor.GenerationStatus, rate float64) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	h := startHAProxy(t, change...)
	_, pid := h.Serving("web")
	stream := holdStream(t, h.port, 1)
	h.SetGeneration(2)
	h.MustReload("web")

	seconds := 3
	if full() {
		seconds = 10
	}
	run := h.Load(ctx, drill.Load{Mode: drill.ModeFresh, Rate: drainRate()})
	began := time.Now()
	used, err := proc.CPUTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := run.WaitOK(ctx, int(drainRate())*seconds); err != nil {
		t.Fatal(err)
	}
	after, err := proc.CPUTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	for _, g := range h.Service("web").Generations {
		if g.PID == pid {
			old = g
		}
	}
	if old.Phase != supervisor.PhaseDraining {
		t.Errorf("the old generation with its stream is %+v, want draining", old)
	}
	report := run.Stop()
	stream.end()
	h.WaitStatus("the old generation has ended with its stream", func(*supervisor.Status) bool {
		return len(h.Service("web").Generations) == 1
	})
	h.Stop()
	if report.Failed() > 0 || report.Generations[2] != report.OK {
		t.Errorf("beside the stream: %s, want all of it answered by generation 2", &report)
	}
	share = (after - used).Seconds() / took.Seconds()
	t.Logf("the old HAProxy uses %.2f %% of a core (%v in %.1f s) while %.0f connections/s arrive; stale epoll entry: %v",
		100*share, after-used, took.Seconds(), report.Rate, old.StaleEpoll)
	return share, old, report.Rate
}

// TestHAProxyNotify: HAProxy's master-worker form says when it is ready, and passes SIGUSR1 on to its worker.
func TestHAProxyNotify(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	for _, when := range []string{"auto", "notify"} {
		t.Run(when, func(t *testing.T) {
			ctx := limited(t)
			h := startHAProxy(t, `"-db", "-de", `, `"-Ws", "-de", `,
				"[service.web.retire]", fmt.Sprintf("[service.web.ready]\nwhen = %q\n[service.web.retire]", when))
			run := h.Load(ctx, drill.Load{Mode: drill.ModePost, Clients: 16})
			stream := holdStream(t, h.port, 1)
			for n := 2; n <= 4; n++ {
				if err := h.reload(ctx, run, n, 500, "web"); err != nil {
					t.Fatal(err)
				}
			}
			generations := h.Service("web").Generations
			for _, g := range generations {
				if g.Phase == supervisor.PhaseServing && g.ReadyBy != "notify" {
					t.Errorf("ready by %q, want notify", g.ReadyBy)
				}
			}
			if first := generations[0]; first.Generation != 1 || first.Phase != supervisor.PhaseDraining || first.Release != supervisor.ReleaseYes {
				t.Errorf("the generation with the stream: %+v, want it draining and released", first)
			}
			stream.end()
			h.WaitStatus("only the newest lives", func(*supervisor.Status) bool { return len(h.Service("web").Generations) == 1 })
			report := run.Stop()
			if report.Failed()+report.Faults() > 0 || len(report.Generations) != 4 {
				t.Errorf("%s", &report)
			}
			h.Stop()
		})
	}
}

// TestHAProxyBroken: a configuration that HAProxy does not take costs nothing, with the check of the example and without.
func TestHAProxyBroken(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	const broken, complaint = "default_backend nowhere", "unable to find required default_backend: 'nowhere'"
	check := regexp.MustCompile(`(?m)^check .*\n`).FindString(exampleFile(t, "handoverd.toml"))
	outputOf := func(r supervisor.ServiceResult) string { return strings.Join(r.Output, "\n") }
	tests := []struct {
		name    string
		change  []string
		outcome supervisor.Outcome
		said    func(supervisor.ServiceResult) string
		next    int // number of the generation that the mended configuration gets
	}{
		{"check", nil, supervisor.OutcomeRefused, func(r supervisor.ServiceResult) string { return r.Reason }, 2},
		{"no check", []string{check, ""}, supervisor.OutcomeFailed, outputOf, 3},
		{"no check, -Ws", []string{check, "", `"-db", "-de", `, `"-Ws", "-de", `}, supervisor.OutcomeFailed, outputOf, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx := limited(t)
			h := startHAProxy(t, tt.change...)
			run := h.Load(ctx, drill.Load{Mode: drill.ModePost, Clients: 16})
			if err := run.WaitOK(ctx, 100); err != nil {
				t.Fatal(err)
			}
			_, pid := h.Serving("web")
			h.Write(rewrite(t, h.config, "default_backend app", broken, haproxyHeader+" 1", haproxyHeader+" 99"))
			report, err := h.Reload(ctx, "web")
			if err != nil {
				t.Fatal(err)
			}
			if report.OK() || len(report.Results) != 1 || report.Results[0].Outcome != tt.outcome {
				t.Fatalf("reload with a broken configuration: %+v, want %s", report, tt.outcome)
			}
			if said := tt.said(report.Results[0]); !strings.Contains(said, complaint) {
				t.Errorf("the report does not say what HAProxy said (%s): %+v", complaint, report.Results[0])
			}
			if generation, now := h.Serving("web"); generation != 1 || now != pid {
				t.Errorf("generation %d, process %d serves, want 1 and %d", generation, now, pid)
			}
			h.SetGeneration(2)
			if r := h.MustReload("web").Results[0]; r.Generation != tt.next {
				t.Errorf("the mended configuration is generation %d, want %d", r.Generation, tt.next)
			}
			if err := run.WaitGeneration(ctx, 2); err != nil {
				t.Fatal(err)
			}
			if rep := run.Stop(); rep.Failed()+rep.Faults() > 0 || rep.Generations[99] > 0 {
				t.Errorf("%s", &rep)
			}
			h.Stop()
		})
	}
}

// readmeStep is a command that the README tells to type, and what it says then comes.
type readmeStep struct{ command, output string }

// readmeSteps reads the console blocks of a README.
func readmeSteps(text string) (steps []readmeStep) {
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(text, -1) {
		for line := range strings.Lines(block[1]) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				steps = append(steps, readmeStep{command: strings.TrimSpace(command)})
			} else {
				steps[len(steps)-1].output += line
			}
		}
	}
	return steps
}

// TestHAProxyReadme types what the README says, word by word, but for the ports and what builds programs, and gets what the
// README says.
func TestHAProxyReadme(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	d := NewDaemon(t)
	tree := filepath.Join(d.Dir, "tree")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(tree, "bin"), 0o755),
		os.CopyFS(filepath.Join(tree, "examples/haproxy"), os.DirFS("examples/haproxy")),
		os.Symlink(Program(t, handoverdProgram), filepath.Join(tree, "bin/handoverd")),
		os.Symlink(Program(t, goserverProgram), filepath.Join(tree, "bin/goserver")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ports := strings.NewReplacer("127.0.0.1:8080", fmt.Sprintf("127.0.0.1:%d", FreePort(t)),
		"127.0.0.1:8081", fmt.Sprintf("127.0.0.1:%d", FreePort(t)), `"build/haproxy"`, fmt.Sprintf("%q", d.Dir))
	original := map[string]string{}
	for _, name := range []string{"haproxy.cfg", "handoverd.toml"} {
		original[name] = ports.Replace(exampleFile(t, name))
		if err := os.WriteFile(filepath.Join(tree, "examples/haproxy", name), []byte(original[name]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range readmeSteps(exampleFile(t, "README.md")) {
		switch command := step.command; {
		case command == "make build", strings.Contains(command, "go build -o bin/goserver ./examples/goserver"):
		case command == "bin/handoverd run -c examples/haproxy/handoverd.toml &":
			d.Work = tree
			d.Run("run", "-c", "examples/haproxy/handoverd.toml")
			d.WaitReady()
		case command == "git checkout -q examples/haproxy/haproxy.cfg":
			if err := os.WriteFile(filepath.Join(tree, "examples/haproxy/haproxy.cfg"), []byte(original["haproxy.cfg"]), 0o644); err != nil {
				t.Fatal(err)
			}
		default:
			cmd := exec.CommandContext(limited(t), "bash", "-c", ports.Replace(command))
			cmd.Dir = tree
			out, err := cmd.Output()
			got := strings.ReplaceAll(string(out), "\r", "")
			got = strings.Replace(got, fmt.Sprintf("handoverd %d:", d.PID), "handoverd 12345:", 1)
			if err != nil || got != step.output {
				t.Errorf("$ %s\n%s(%v), the README says:\n%s", command, got, err, step.output)
			}
		}
	}
	if code := d.WaitExit(); code != 0 {
		t.Errorf("handoverd exited with %d, want 0", code)
	}
	if left := d.Left(); len(left) > 0 {
		t.Errorf("processes are left after the stop: %v", left)
	}
}
