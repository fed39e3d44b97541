//go:build linux

package handover_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/supervisor"
)

// The scenarios: what goes wrong, under load, judged from the client's side. Where no process that accepts dies nothing
// may fail. Where one does, exactly what it had accepted and not answered fails, by its own account in shared memory.
// The load is of fresh connections there, so that a connection is a request. A connection is refused in none of them.

// childService is the test's child as one service of a configuration. The zero value of each field is a sensible default.
type childService struct {
	name   string // of the service; web
	mode   string // of the child; ok
	when   string // of its readiness; native
	socket string // the lines of the socket table; one of 127.0.0.1, port 0, called http
	env    string // more of the environment: "A = \"b\", C = \"d\""
	after  string // the service that it comes after
	// Lines of the tables of these names.
	ready, retire, stop, restart string
}

// toml is the service's part of a configuration. What the child counts is in a file of the daemon's directory.
func (p childService) toml(t testing.TB, d *Daemon) string {
	t.Helper()
	name := cmp.Or(p.name, "web")
	var b strings.Builder
	fmt.Fprintf(&b, "[service.%s]\ncommand = [%q]\n", name, Program(t, testchildProgram))
	if p.after != "" {
		fmt.Fprintf(&b, "after = [%q]\n", p.after)
	}
	fmt.Fprintf(&b, "env = { TESTCHILD_MODE = %q, TESTCHILD_MODE_FILE = %q, TESTCHILD_COUNTS = %q",
		cmp.Or(p.mode, "ok"), modeFile(d, name), countsFile(d, name))
	if p.env != "" {
		fmt.Fprintf(&b, ", %s", p.env)
	}
	b.WriteString(" }\n")
	for _, table := range []struct{ name, lines string }{
		{"socket", cmp.Or(p.socket, `http = "tcp4://127.0.0.1:0"`)},
		{"ready", fmt.Sprintf("when = %q\n%s", cmp.Or(p.when, "native"), p.ready)},
		{"retire", p.retire},
		{"stop", p.stop},
		{"restart", p.restart},
	} {
		fmt.Fprintf(&b, "[service.%s.%s]\n%s\n", name, table.name, table.lines)
	}
	return b.String()
}

func countsFile(d *Daemon, service string) string { return filepath.Join(d.Dir, "counts."+service) }

func modeFile(d *Daemon, service string) string { return filepath.Join(d.Dir, "mode."+service) }

// setMode says how the generations of a service behave that start from now on, whatever their configuration says;
// "": as that says.
func (s *scene) setMode(service, mode string) {
	s.t.Helper()
	temp := modeFile(s.Daemon, service) + ".new"
	err := os.WriteFile(temp, []byte(mode), 0o644)
	if err == nil {
		err = os.Rename(temp, modeFile(s.Daemon, service))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// account is what one generation of the child counted.
type account struct{ requests, answered, connections, answering, entered, left, doomed uint64 }

// accountOf reads it, also after the death of the process. The layout is that of internal/testchild.
func accountOf(t testing.TB, d *Daemon, service string, generation int) account {
	t.Helper()
	const slotSize = 64
	f, err := os.Open(countsFile(d, service))
	if errors.Is(err, fs.ErrNotExist) {
		return account{}
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var slot [slotSize]byte
	if _, err := f.ReadAt(slot[:], int64(generation)*slotSize); err != nil {
		t.Fatal(err)
	}
	at := func(n int) uint64 { return binary.NativeEndian.Uint64(slot[8*n:]) }
	return account{at(0), at(1), at(2), at(3), at(4), at(5), at(6)}
}

// lost is what the death of this process may cost: accepted and not answered. The two are equal but where the process died
// inside the accept or the write of an answer: it cannot have known how that call ended.
func (a account) lost() (least, most int) {
	return int(a.connections) - int(a.answering), int(a.connections+a.entered-a.left) - int(a.answered)
}

// scene is one daemon under test, with what drives it.
type scene struct {
	*Daemon
	t      *testing.T
	events <-chan supervisor.Event
}

// newScene starts a daemon with these services and waits until they serve.
func newScene(t *testing.T, services ...childService) *scene {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	s := &scene{Daemon: NewDaemon(t), t: t}
	s.configure(services...)
	s.Start()
	s.WaitReady()
	s.events = s.Follow()
	return s
}

func (s *scene) configure(services ...childService) {
	s.t.Helper()
	var b strings.Builder
	for _, p := range services {
		b.WriteString(p.toml(s.t, s.Daemon))
	}
	s.Configure(b.String())
}

// service is one service's part of the status.
func (s *scene) service(name string) *supervisor.ServiceStatus {
	s.t.Helper()
	svc := s.Service(name)
	return &svc
}

// address is that of a socket, as the status shows it, without its scheme.
func (s *scene) address(service, socket string) string {
	s.t.Helper()
	_, address, _ := strings.Cut(s.socket(service, socket).Address, "://")
	return address
}

func (s *scene) socket(service, socket string) supervisor.SocketStatus {
	s.t.Helper()
	for _, so := range s.service(service).Sockets {
		if so.Name == socket {
			return so
		}
	}
	s.t.Fatalf("no socket %s of %s in the status", socket, service)
	return supervisor.SocketStatus{}
}

// fresh is the usual load: a connection for each request, answered after 2 to 22 ms.
func (s *scene) fresh(address string) *traffic {
	s.t.Helper()
	return s.load("fresh", drill.Load{
		Network: "tcp", Address: address, Mode: drill.ModeFresh, Rate: 300, Delay: 2 * time.Millisecond, Spread: 20 * time.Millisecond,
	})
}

// posts is load on kept connections.
func (s *scene) posts(address string) *traffic {
	s.t.Helper()
	return s.load("keep-alive", drill.Load{
		Network: "tcp", Address: address, Mode: drill.ModePost, Clients: 16, Pause: 50 * time.Millisecond,
	})
}

// traffic is a load under way.
type traffic struct {
	*drill.Run
	s      *scene
	name   string
	report *drill.Report
}

// load starts it and waits until it is served.
func (s *scene) load(name string, l drill.Load) *traffic {
	s.t.Helper()
	l.Duration, l.Timeout = cmp.Or(l.Duration, 5*time.Minute), 30*time.Second
	run, err := drill.Start(context.Background(), l)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { run.Stop() })
	tr := &traffic{Run: run, s: s, name: name}
	tr.more(50)
	return tr
}

// more waits until so many more requests have been answered.
func (tr *traffic) more(n int) {
	tr.s.t.Helper()
	r := tr.Snapshot()
	if err := tr.WaitOK(limited(tr.s.t), r.OK+n); err != nil {
		tr.s.t.Fatalf("%s: %v", tr.name, err)
	}
}

// sees waits until a client has been answered by the generation.
func (tr *traffic) sees(generation int) {
	tr.s.t.Helper()
	if err := tr.WaitGeneration(limited(tr.s.t), generation); err != nil {
		tr.s.t.Fatalf("%s: %v", tr.name, err)
	}
}

// dead names a generation that died while it accepted.
type dead struct {
	service    string
	generation int
}

// end stops the load and checks that exactly that failed which may: what the generations named had accepted and not
// answered. It returns the report.
func (tr *traffic) end(deaths ...dead) *drill.Report {
	t := tr.s.t
	t.Helper()
	r := tr.Run.Stop()
	tr.report = &r
	least, most := 0, 0
	for _, g := range deaths {
		a := accountOf(t, tr.s.Daemon, g.service, g.generation)
		if a.connections == 0 {
			t.Errorf("the scenario does not count: generation %d of %s has accepted nothing", g.generation, g.service)
		}
		l, m := a.lost()
		if l < 0 {
			t.Errorf("the account of generation %d of %s does not count: it has more answers than connections: %+v", g.generation, g.service, a)
		}
		least, most = least+l, most+m
	}
	allowed := fmt.Sprint(least)
	if most != least {
		allowed = fmt.Sprintf("%d to %d", least, most)
	}
	t.Logf("%-11s %6d requests  %3d failures %v  allowed %s  by %d generations", tr.name, r.Sent, r.Failed(), r.Failures, allowed, len(r.Generations))
	if n := r.Failed(); n < least || n > most {
		t.Errorf("%d failures, allowed are %s:\n%s", n, allowed, &r)
	}
	for _, kind := range slices.Sorted(maps.Keys(r.Failures)) {
		switch kind {
		case drill.KindReset, drill.KindEOF, drill.KindTruncated:
		default:
			t.Errorf("%d failures of kind %s: no death of a program costs that:\n%s", r.Failures[kind], kind, &r)
		}
	}
	checkSent(t, &r)
	return tr.report
}

// checkSent tells what the generator did not send. The bar is that what was sent is answered. What a busy machine did not
// send is no answer to that, and where it is more than what a rate may miss, as in the load tests, too little was asked.
func checkSent(t *testing.T, r *drill.Report) {
	t.Helper()
	n := r.Faults()
	if n > 0 {
		t.Logf("faults of the generator: %v", r.GeneratorFaults)
	}
	if full() && n > 0 || 20*n > r.Sent {
		t.Errorf("%d requests were not sent, %d were", n, r.Sent)
	}
}

// fails reloads, and checks that the reload fails for the reason given, and that report, status and log say so.
func (s *scene) fails(reason string) *supervisor.ReloadReport {
	s.t.Helper()
	r, err := s.Reload(limited(s.t))
	if err != nil {
		s.t.Fatal(err)
	}
	if len(r.Results) != 1 || r.Results[0].Outcome != supervisor.OutcomeFailed || !strings.Contains(r.Results[0].Reason, reason) {
		s.t.Fatalf("the reload answers %+v, want failed with %q", r, reason)
	}
	if r.OK() {
		s.t.Errorf("a report of a failed service is OK: %+v", r)
	}
	s.tells(r.Results[0].Service, r.Results[0].Generation, reason)
	return r
}

// tells checks that status and log say what went wrong with a generation.
func (s *scene) tells(service string, generation int, reason string) {
	s.t.Helper()
	f := s.service(service).Failure
	if f == nil || f.Generation != generation || !strings.Contains(f.Reason, reason) {
		s.t.Errorf("the status has %+v as the last failure, want generation %d with %q", f, generation, reason)
	}
	s.logs(service, generation, reason)
}

// logs checks that a line of the log names the generation and the reason.
func (s *scene) logs(service string, generation int, reason string) {
	s.t.Helper()
	// An event may be there before its line is: neither waits for whoever reads the other.
	eventually(s.t, fmt.Sprintf("a line of the log says %q of generation %d of %s", reason, generation, service), func() bool {
		for line := range strings.Lines(s.Log()) {
			fields := strings.Fields(line)
			if slices.Contains(fields, "service="+service) && slices.Contains(fields, "gen="+fmt.Sprint(generation)) && strings.Contains(line, reason) {
				return true
			}
		}
		return false
	})
}

// reaches waits for the event that a generation has come to a phase.
func (s *scene) reaches(service string, generation int, to supervisor.Phase) supervisor.Event {
	s.t.Helper()
	return s.WaitEvent(s.events, fmt.Sprintf("%s generation %d is %s", service, generation, to), func(e supervisor.Event) bool {
		return e.Kind == "transition" && e.Service == service && e.Generation == generation && e.To == to
	})
}

// only waits until this generation serves and no other one of the service lives, and nothing else is wanted.
func (s *scene) only(service string, generation int) {
	s.t.Helper()
	s.WaitStatus(fmt.Sprintf("%s: only generation %d lives, and serves", service, generation), func(st *supervisor.Status) bool {
		for _, svc := range st.Services {
			if svc.Name == service {
				g := svc.Generations
				return len(st.Reloads) == 0 && len(g) == 1 && g[0].Generation == generation && g[0].Phase == supervisor.PhaseServing
			}
		}
		return false
	})
}

// reloading is a reload that somebody waits for beside the test.
type reloading struct {
	t    *testing.T
	done chan struct{}
	r    *supervisor.ReloadReport
	err  error
}

func (s *scene) reloading() *reloading {
	r := &reloading{t: s.t, done: make(chan struct{})}
	ctx := limited(s.t)
	go func() { // waited for through done
		defer close(r.done)
		r.r, r.err = s.Reload(ctx)
	}()
	return r
}

// wait returns the outcome.
func (r *reloading) wait() *supervisor.ReloadReport {
	r.t.Helper()
	<-r.done
	if r.err != nil {
		r.t.Fatal(r.err)
	}
	return r.r
}

// serves waits and checks that the generation serves.
func (r *reloading) serves(generation int) {
	r.t.Helper()
	if got := r.wait(); !got.OK() || got.Results[0].Generation != generation {
		r.t.Fatalf("the reload answers %+v, want that generation %d serves", got, generation)
	}
}

// kill sends SIGKILL to the main process of the generation that serves, and returns its number.
func (s *scene) kill(service string) int {
	s.t.Helper()
	generation, pid := s.Serving(service)
	if pid == 0 {
		s.t.Fatalf("no generation of %s serves", service)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	return generation
}
