//go:build linux

package handover_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/supervisor"
)

// The reload-under-load test: the real handoverd and the example server, reloaded again and again under load, seen from
// the client's side. The load generator never retries; that it reports a reused connection which the server kills, and
// every other kind of failure, is tested where it lives (internal/drill, TestFailureKinds).

// full says that the numbers of the acceptance are wanted, not the short form of `make test`.
func full() bool { return os.Getenv("HANDOVERD_LOAD") == "full" }

// loadRow is one kind of load that must survive the reloads without a failure.
type loadRow struct {
	name  string
	load  drill.Load
	relay time.Duration // one way, between the clients and the server; 0: none
	least int           // requests that each reload's window must hold
}

var loadRows = []loadRow{
	{name: "fresh-2000-per-second", load: drill.Load{Mode: drill.ModeFresh, Rate: 2000}},
	{name: "fresh-16-clients", load: drill.Load{Mode: drill.ModeFresh, Clients: 16}},
	{name: "fresh-64-clients", load: drill.Load{Mode: drill.ModeFresh, Clients: 64}},
	{name: "keepalive-get", load: drill.Load{Mode: drill.ModeKeepAlive, Clients: 64}},
	{name: "keepalive-post-64", load: drill.Load{Mode: drill.ModePost, Clients: 64}},
	{name: "keepalive-post-64-10ms", load: drill.Load{Mode: drill.ModePost, Clients: 64}, relay: 5 * time.Millisecond},
	{name: "keepalive-post-2000-pause-2s", load: drill.Load{Mode: drill.ModePost, Clients: 2000, Pause: 2 * time.Second}},
	{name: "streams-1-to-2s", load: drill.Load{Mode: drill.ModeStream, Clients: 100}, least: 20},
}

// loadFigures is one row as it came out.
type loadFigures struct {
	Name            string
	Reloads         int
	Generations     int // that clients saw
	Requests        int
	Failures        map[drill.Kind]int
	GeneratorFaults map[string]int
	Rate            float64 // per second
	RateReached     float64 // of the rate asked for; 1 without one
	LeastInWindow   int     // requests
	LongestWindow   float64 // seconds
	Inside, Outside latencies
	LateResets      int
	Seconds         float64
}

// latencies are in milliseconds.
type latencies struct{ P50, P99, Max float64 }

func quantiles(h *hdrhistogram.Histogram) latencies {
	ms := func(us int64) float64 { return float64(us) / 1000 }
	return latencies{ms(h.ValueAtQuantile(50)), ms(h.ValueAtQuantile(99)), ms(h.Max())}
}

func (f loadFigures) String() string {
	return fmt.Sprintf("%-29s %3d reloads %8d requests %6.0f/s  failures %v  window >= %d requests, <= %.2f s  inside p50 %.2f p99 %.2f max %.1f ms  outside p50 %.2f p99 %.2f max %.1f ms  %.1f s",
		f.Name, f.Reloads, f.Requests, f.Rate, f.Failures, f.LeastInWindow, f.LongestWindow,
		f.Inside.P50, f.Inside.P99, f.Inside.Max, f.Outside.P50, f.Outside.P99, f.Outside.Max, f.Seconds)
}

func TestLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("load needs the machine to itself; it runs without -short")
	}
	reloads := 10
	if full() {
		reloads = 200
	}
	for _, row := range loadRows {
		t.Run(row.name, func(t *testing.T) {
			if row.least == 0 {
				row.least = 500
			}
			figures := runRow(t, row, reloads)
			t.Log(figures)
			if full() {
				writeFigures(t, figures)
			}
		})
	}
}

// goserver is the configuration of the example server on a port. Everything else is as it is by default.
func goserver(t testing.TB, port int) string { return webService(t, goserverProgram, port) }

func webService(t testing.TB, program string, port int) string {
	t.Helper()
	return fmt.Sprintf(`
[service.web]
command = [%q]
[service.web.socket]
http = "tcp4://127.0.0.1:%d"
[service.web.ready]
when = "native"
`, Program(t, program), port)
}

// runRow reloads under the load and checks that the row counts and that nothing failed.
func runRow(t *testing.T, row loadRow, reloads int) (figures loadFigures) {
	t.Helper()
	untilDriven(t, func() error {
		d, report, notes := driveRow(t, row, reloads, goserverProgram)
		for _, n := range notes {
			t.Errorf("handoverd says: %s", n)
		}
		driven := checkRow(t, row, &report, reloads)
		if t.Failed() {
			keepLog(t, row.name, d)
		}
		figures = figuresOf(row, &report, reloads)
		return driven
	})
	return figures
}

// untilDriven repeats a row, at most twice, that the machine did not drive as asked: one that something else kept from
// its processors. What failed in any of the runs has failed the test.
func untilDriven(t *testing.T, run func() error) {
	t.Helper()
	for range 2 {
		err := run()
		if err == nil || t.Failed() {
			return
		}
		t.Logf("once more: %v", err)
	}
	if err := run(); err != nil {
		t.Errorf("the row does not count: %v", err)
	}
}

// driveRow reloads the program under the load, and returns what the clients counted and what handoverd warned of.
func driveRow(t *testing.T, row loadRow, reloads int, program string) (*Daemon, drill.Report, []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(reloads)*5*time.Second)
	defer cancel()
	port := FreePort(t)
	d := StartDaemon(t, webService(t, program, port))
	notes := watchNotes(d)

	load := row.load
	load.Network, load.Address = "tcp", fmt.Sprintf("127.0.0.1:%d", port)
	load.Duration = time.Hour
	if row.relay != 0 {
		relay, err := drill.NewRelay(load.Address, row.relay)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = relay.Close() }()
		load.Address = relay.Addr()
	}
	run, err := drill.Start(ctx, load)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Stop()
	if err := run.WaitOK(ctx, row.least); err != nil {
		t.Fatal(err)
	}
	for generation := 2; generation <= reloads+1; generation++ {
		if err := reloadInWindow(ctx, d, run, generation, row.least); err != nil {
			t.Errorf("%v", err)
			break
		}
	}
	// The last of the old generations end under load too.
	d.WaitStatus("only the newest generation lives", func(s *supervisor.Status) bool {
		return len(s.Services[0].Generations) == 1
	})
	report := run.Stop()
	d.Stop()
	return d, report, notes()
}

// TestLoadSeesLoss is the load test's own test: the same server with http.Server.Shutdown in place of package drain
// must be seen to lose requests. net/http closes connections whose request is on its way or already read
// (golang/go#75591); with 10 ms of round trip nearly every connection has one on its way at each reload.
func TestLoadSeesLoss(t *testing.T) {
	if testing.Short() {
		t.Skip("load needs the machine to itself; it runs without -short")
	}
	const reloads = 3
	row := loadRow{
		name: "shutdown", load: drill.Load{Mode: drill.ModePost, Clients: 64}, relay: 5 * time.Millisecond, least: 500,
	}
	_, report, _ := driveRow(t, row, reloads, "./testdata/plainserver")
	t.Log(figuresOf(row, &report, reloads))
	if len(report.ReusedFailures) == 0 {
		t.Errorf("no failure on a reused connection was seen: %s", &report)
	}
}

// reloadInWindow reloads once: a window begins, SIGHUP is sent, and the window ends when a client has seen the new
// generation and enough requests are in it.
func reloadInWindow(ctx context.Context, d *Daemon, run *drill.Run, generation, least int) error {
	w := run.Mark(fmt.Sprint(generation))
	defer w.End()
	d.HUP()
	if err := run.WaitGeneration(ctx, generation); err != nil {
		return err
	}
	return w.Wait(ctx, least)
}

// watchNotes collects what handoverd warns of and each generation that was killed or ended badly. That a reload waits for
// max_draining is no fault: streams and pauses are longer than a reload. The function that it returns is called when
// the daemon has ended.
func watchNotes(d *Daemon) func() []string {
	events, notes, over := d.Follow(), []string(nil), make(chan struct{})
	go func() { // waited for by the returned function
		defer close(over)
		for e := range events {
			switch {
			case strings.Contains(e.Text, "max_draining"):
			case e.Kind == "note" && e.Level != "info" && e.Level != "debug",
				e.Kind == "lost", e.To == supervisor.PhaseKilling,
				e.To == supervisor.PhaseGone && e.Why != "exit status 0":
				notes = append(notes, fmt.Sprintf("%s %s: generation %d %s %s: %s", e.Kind, e.Level, e.Generation, e.To, e.Why, e.Text))
			}
		}
	}()
	return func() []string {
		<-over
		return notes
	}
}

// checkRow fails the test for each thing that makes the row not count, and for each failure. It returns an error when the
// load was less than asked for, of which the server may be innocent.
func checkRow(t *testing.T, row loadRow, r *drill.Report, reloads int) error {
	t.Helper()
	for generation := 1; generation <= reloads+1; generation++ {
		if r.Generations[generation] == 0 {
			t.Errorf("the row does not count: no client saw generation %d", generation)
		}
	}
	if len(r.Windows) != reloads {
		t.Errorf("the row does not count: %d windows, want %d", len(r.Windows), reloads)
	}
	for _, w := range r.Windows {
		if w.Requests < row.least {
			t.Errorf("the row does not count: window %s holds %d requests, want %d", w.Name, w.Requests, row.least)
		}
	}
	// Each good answer carried the number of its request: what did not is a failure.
	if r.Failed() > 0 || r.OK != r.Sent {
		t.Errorf("%d of %d requests failed:\n%s%s", r.Failed(), r.Sent, r, whereFailed(r))
	}
	if want := 0.95 * r.Load.Rate; r.Rate < want {
		return fmt.Errorf("%.0f requests/s, want %.0f", r.Rate, want)
	}
	if r.Faults() > 0 {
		return fmt.Errorf("faults of the generator: %v", r.GeneratorFaults)
	}
	return nil
}

// whereFailed places each sampled failure after the begin of the newest window before it.
func whereFailed(r *drill.Report) string {
	var b strings.Builder
	for _, f := range r.Samples {
		for _, w := range slices.Backward(r.Windows) {
			if !w.Begin.After(f.End) {
				fmt.Fprintf(&b, "\n  request %d begun %v, failed %v after the begin of window %s", f.Number, f.Begin.Sub(w.Begin), f.End.Sub(w.Begin), w.Name)
				break
			}
		}
	}
	return b.String()
}

func figuresOf(row loadRow, r *drill.Report, reloads int) loadFigures {
	f := loadFigures{
		Name: row.name, Reloads: reloads, Generations: len(r.Generations), Requests: r.Sent,
		Failures: r.Failures, GeneratorFaults: r.GeneratorFaults, Rate: r.Rate, RateReached: 1,
		Inside: quantiles(r.Inside), Outside: quantiles(r.Outside), LateResets: r.LateResets, Seconds: r.Sending.Seconds(),
	}
	if r.Load.Rate > 0 {
		f.RateReached = r.Rate / r.Load.Rate
	}
	for i, w := range r.Windows {
		if i == 0 || w.Requests < f.LeastInWindow {
			f.LeastInWindow = w.Requests
		}
		f.LongestWindow = max(f.LongestWindow, w.End.Sub(w.Begin).Seconds())
	}
	return f
}

// writeFigures leaves the row for whoever writes them down.
func writeFigures(t *testing.T, f loadFigures) {
	t.Helper()
	text, err := json.MarshalIndent(f, "", "  ")
	if err == nil {
		err = writeBuild("load-"+f.Name+".json", append(text, '\n'))
	}
	if err != nil {
		t.Error(err)
	}
}

func writeBuild(name string, text []byte) error {
	if err := os.MkdirAll("build", 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join("build", name), text, 0o644)
}

// keepLog keeps the whole log of a failed row.
func keepLog(t *testing.T, name string, d *Daemon) {
	t.Helper()
	if err := writeBuild("load-"+name+".log", []byte(d.Log())); err != nil {
		t.Error(err)
	}
}

// TestPromise1: once a reload has been reported serving and released, no new connection reaches older code.
func TestPromise1(t *testing.T) {
	if testing.Short() {
		t.Skip("load needs the machine to itself; it runs without -short")
	}
	reloads, connections := 10, 1000
	if full() {
		reloads, connections = 50, 10_000
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(reloads)*20*time.Second)
	defer cancel()
	port := FreePort(t)
	d := StartDaemon(t, goserver(t, port))
	address := fmt.Sprintf("127.0.0.1:%d", port)
	background, err := drill.Start(ctx, drill.Load{Network: "tcp", Address: address, Mode: drill.ModeFresh, Clients: 16, Duration: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer background.Stop()
	probes, old := 0, map[int]int{}
	for want := 2; want <= reloads+1; want++ {
		if got := d.MustReload().Results[0].Generation; got != want {
			t.Fatalf("reload answers generation %d, want %d", got, want)
		}
		probe, err := drill.Start(ctx, drill.Load{
			Network: "tcp", Address: address, Mode: drill.ModeFresh, Clients: 16, Requests: connections,
		})
		if err != nil {
			t.Fatal(err)
		}
		<-probe.Done()
		report := probe.Stop()
		if report.Failed() > 0 || report.Faults() > 0 || report.OK != connections {
			t.Errorf("after the reload to generation %d: %s", want, &report)
		}
		probes += report.OK
		for generation, n := range report.Generations {
			if generation != want {
				old[generation] += n
				t.Errorf("%d connections made after generation %d was reported serving were answered by generation %d", n, want, generation)
			}
		}
	}
	report := background.Stop()
	if report.Failed() > 0 {
		t.Errorf("the load beside it: %s%s", &report, whereFailed(&report))
	}
	d.Stop()
	t.Logf("%d reloads, %d connections after them, answered by older generations: %v; %d requests beside them, failures %v",
		reloads, probes, old, report.Sent, report.Failures)
}

// heldStream is a response under way. It is held open by its server until end is called.
type heldStream struct{ end func() }

// holdStream begins a stream that lasts longer than the test, and returns when its generation has begun to answer.
func holdStream(t *testing.T, port, wantGeneration int) heldStream {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/stream?n=1&ms=600000", port), nil)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	if got := resp.Header.Get("X-Generation"); got != fmt.Sprint(wantGeneration) {
		t.Errorf("the stream is answered by generation %s, want %d", got, wantGeneration)
	}
	s := heldStream{end: func() {
		cancel()
		_, _ = io.Copy(io.Discard, resp.Body) // ends with the cancelled context
		_ = resp.Body.Close()
	}}
	t.Cleanup(s.end)
	return s
}

// TestMaxDraining: with max_draining streams held open, the next reload waits, visibly, and goes ahead by itself when
// one of them ends.
func TestMaxDraining(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	port := FreePort(t)
	d := StartDaemon(t, goserver(t, port)+"[service.web.retire]\nmax_draining = 2\n")
	events := d.Follow()
	first := holdStream(t, port, 1)
	d.MustReload()
	second := holdStream(t, port, 2)
	d.MustReload()

	// By the control API.
	streamed := make(chan supervisor.Event, 64)
	type answer struct {
		report *supervisor.ReloadReport
		err    error
	}
	answered := make(chan answer, 1)
	go func() { // waited for through answered
		report, err := d.ReloadWith(limited(t), ReloadOptions{Event: func(e supervisor.Event) { streamed <- e }})
		answered <- answer{report, err}
	}()
	checkWaits(t, d, 3)
	saysWaiting := func(e supervisor.Event) bool { return e.Kind == "note" && strings.Contains(e.Text, "max_draining") }
	d.WaitEvent(events, "one that says that the reload waits", saysWaiting)
	d.WaitEvent(streamed, "one in the reload's own answer that says that it waits", saysWaiting)
	_, err := d.ReloadWith(limited(t), ReloadOptions{NoQueue: true})
	if busy := (*APIError)(nil); !errors.As(err, &busy) || busy.Code != "busy" || busy.Status != http.StatusConflict {
		t.Errorf("a reload that must not wait answers %v, want busy", err)
	}
	select {
	case a := <-answered:
		t.Fatalf("the reload has not waited: %+v, %v", a.report, a.err)
	default:
	}
	first.end()
	a := <-answered
	if a.err != nil || !a.report.OK() || a.report.Results[0].Generation != 4 {
		t.Fatalf("the reload that waited: %+v, %v", a.report, a.err)
	}

	// By SIGHUP. Generation 3 had nothing open and is gone; 2 still drains.
	third := holdStream(t, port, 4)
	d.HUP()
	d.WaitStatus("generation 5 serves, 2 and 4 drain", func(s *supervisor.Status) bool {
		return maps.Equal(phases(s), map[int]supervisor.Phase{2: "draining", 4: "draining", 5: "serving"})
	})
	d.HUP()
	checkWaits(t, d, 5)
	d.WaitEvent(events, "one that says that the SIGHUP's reload waits", saysWaiting)
	third.end()
	d.WaitStatus("generation 6 serves", func(s *supervisor.Status) bool { return phases(s)[6] == supervisor.PhaseServing })
	second.end()
	d.WaitStatus("nothing drains", func(s *supervisor.Status) bool { return len(phases(s)) == 1 })
	eventually(t, "the log speaks of max_draining for each of two waits", func() bool {
		return strings.Count(d.Log(), "max_draining") >= 2
	})
	d.Stop()
}

// checkWaits waits until the status shows a reload that waits, and checks that nothing has been started for it.
func checkWaits(t *testing.T, d *Daemon, serving int) {
	t.Helper()
	s := d.WaitStatus("a reload waits", func(s *supervisor.Status) bool { return s.Services[0].Waiting != "" })
	if !strings.Contains(s.Services[0].Waiting, "max_draining") {
		t.Errorf("the status says %q of the wait, want max_draining named", s.Services[0].Waiting)
	}
	for generation, phase := range phases(s) {
		if generation > serving || phase == supervisor.PhaseStarting {
			t.Errorf("generation %d is %s while the reload waits", generation, phase)
		}
	}
	if got := phases(s)[serving]; got != supervisor.PhaseServing {
		t.Errorf("generation %d is %s while the reload waits, want serving", serving, got)
	}
}

// phases are those of the first service's generations.
func phases(s *supervisor.Status) map[int]supervisor.Phase {
	m := map[int]supervisor.Phase{}
	for _, g := range s.Services[0].Generations {
		m[g.Generation] = g.Phase
	}
	return m
}
