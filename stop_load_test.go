//go:build linux

package handover_test

import (
	"context"
	"encoding/csv"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/drill"
)

// The stop, seen by the clients of a balancer: HAProxy before two handoverds, which are stopped and started in turn. The
// balancer retries nothing, and it learns late that a backend goes: it needs so many failed checks in a row. It keeps no
// idle connections to its backends: one that waits for them, as HAProxy does, would wait until its deadline.
const (
	checkEvery = 200 * time.Millisecond
	checkFalls = 4
	lateBy     = checkFalls * checkEvery
)

// balancer is an HAProxy of its own, which no handoverd runs.
type balancer struct {
	t        *testing.T
	port     int
	api      int // its runtime API
	backends []*backend
}

// backend is one handoverd behind it.
type backend struct {
	*Daemon
	name         string
	port, health int
}

// newBalancer starts the backends and HAProxy. toml is the service of a backend, and may name it.
func newBalancer(t *testing.T, backends int, toml func(b *balancer, k *backend) string) *balancer {
	t.Helper()
	b := &balancer{t: t, port: FreePort(t), api: FreePort(t)}
	var servers strings.Builder
	for i := range backends {
		k := &backend{Daemon: NewDaemon(t), name: string(rune('a' + i)), port: FreePort(t), health: FreePort(t)}
		k.Configure(fmt.Sprintf("health = \"127.0.0.1:%d\"\n%s", k.health, toml(b, k)))
		k.Start()
		k.WaitReady()
		b.backends = append(b.backends, k)
		fmt.Fprintf(&servers, "    server %s 127.0.0.1:%d check addr 127.0.0.1 port %d inter %dms fall %d rise 1\n",
			k.name, k.port, k.health, checkEvery.Milliseconds(), checkFalls)
	}
	config := fmt.Sprintf(`global
    maxconn 4000
    stats socket ipv4@127.0.0.1:%d level admin
defaults
    mode http
    retries 0
    timeout connect 5s
    timeout client 30s
    timeout server 30s
    timeout http-request 10s
    timeout http-keep-alive 30s
frontend front
    bind 127.0.0.1:%d
    default_backend app
backend app
    balance roundrobin
    http-reuse never
    option httpchk GET /ready
%s`, b.api, b.port, servers.String())
	file := filepath.Join(t.TempDir(), "balancer.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("haproxy", "-db", "-f", file)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the balancer says:\n%s", out.String())
		}
	})
	for _, k := range b.backends {
		b.waitUp(k, true)
	}
	return b
}

// command asks the runtime API.
func (b *balancer) command(text string) (string, error) {
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", b.api))
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(c, text); err != nil {
		return "", err
	}
	var answer strings.Builder
	buf := make([]byte, 32<<10)
	for {
		n, err := c.Read(buf)
		answer.Write(buf[:n])
		if err != nil {
			return answer.String(), nil // it closes after each answer
		}
	}
}

// waitUp waits until HAProxy takes a backend for up, or for down.
func (b *balancer) waitUp(k *backend, up bool) {
	b.t.Helper()
	eventually(b.t, fmt.Sprintf("backend %s is up: %v", k.name, up), func() bool {
		text, err := b.command("show stat")
		if err != nil {
			return false
		}
		rows, err := csv.NewReader(strings.NewReader(strings.TrimSpace(strings.TrimPrefix(text, "# ")))).ReadAll()
		if err != nil {
			return false
		}
		for _, row := range rows {
			if row[0] == "app" && row[1] == k.name {
				return strings.HasPrefix(row[17], "UP") == up
			}
		}
		return false
	})
}

// load begins 500 requests a second of new connections to the balancer.
func (b *balancer) load(ctx context.Context, rate float64, plain *drill.Plain) *drill.Run {
	b.t.Helper()
	run, err := drill.Start(ctx, drill.Load{
		Network: "tcp", Address: fmt.Sprintf("127.0.0.1:%d", b.port), Mode: drill.ModeFresh, Rate: rate,
		Plain: plain, Duration: time.Hour,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { run.Stop() })
	if err := run.WaitOK(ctx, 200); err != nil {
		report := run.Snapshot()
		b.t.Fatalf("%v: %v", err, report.Samples)
	}
	return run
}

// stops stops and starts the backends in turn, and returns what the clients saw.
func (b *balancer) stops(ctx context.Context, run *drill.Run, n int) drill.Report {
	b.t.Helper()
	for i := range n {
		k := b.backends[i%len(b.backends)]
		w := run.Mark(fmt.Sprint(i))
		k.Signal(unix.SIGTERM)
		if code := k.WaitExit(); code != 0 {
			b.t.Errorf("stop %d: backend %s exits with %d, want 0", i, k.name, code)
		}
		if left := k.Left(); len(left) > 0 {
			b.t.Errorf("stop %d: left: %v", i, left)
		}
		k.Start()
		k.WaitReady()
		b.waitUp(k, true)
		if err := w.Wait(ctx, 100); err != nil {
			b.t.Fatal(err)
		}
		w.End()
	}
	return run.Stop()
}

// lossless fails the test for each request that was lost. It returns an error when the load was less than asked for.
func (b *balancer) lossless(report *drill.Report, stops int) error {
	b.t.Helper()
	b.t.Logf("%d stops: %d requests, %d failed %v", stops, report.Sent, report.Failed(), report.Failures)
	if report.Failed() > 0 {
		b.t.Errorf("%d requests were lost: %v", report.Failed(), report.Samples)
	}
	if report.Sent < 100*stops {
		b.t.Errorf("%d requests in %d stops prove nothing", report.Sent, stops)
	}
	if report.Faults() > 0 {
		return fmt.Errorf("faults of the generator: %v", report.GeneratorFaults)
	}
	return nil
}

// plainAnswer is what the servers without a handler say.
var plainAnswer = &drill.Plain{Path: "/", Status: []int{200}, Body: "answered"}

// noHandler is the service of a server that SIGTERM ends at once.
func noHandler(t *testing.T, k *backend, node bool, stop string) string {
	t.Helper()
	command := fmt.Sprintf("%q", Program(t, "./testdata/nohandler"))
	if node {
		file, err := filepath.Abs("testdata/nohandler/server.js")
		if err != nil {
			t.Fatal(err)
		}
		command = fmt.Sprintf("%q, %q", "node", file)
	}
	return fmt.Sprintf(`[service.web]
command = [%s]
[service.web.socket]
http = "tcp4://127.0.0.1:%d"
[service.web.retire]
kill_grace = "1s"
[service.web.stop]
deadline = "25s"
%s
`, command, k.port, stop)
}

// holds keeps the signal from it until its connections are silent.
const holds = "hold = \"quiet:500ms\"\n"

// stopLoops are the three ways to know that the balancer has noticed.
func stopLoops(b *balancer, k *backend) map[string]string {
	api := func(command string) string {
		return fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d; echo '%s' >&3; cat <&3", b.api, command)
	}
	bash := func(script string) string { return fmt.Sprintf(`["bash", "-c", %q]`, script) }
	return map[string]string{
		"timer":  fmt.Sprintf(`lame_duck = { until = "timer", for = "%dms" }`, (lateBy + 2*checkEvery).Milliseconds()),
		"probes": fmt.Sprintf(`lame_duck = { until = "probes", probes = { count = %d, per = "address", then = "100ms" } }`, checkFalls),
		"exec": fmt.Sprintf("announce = { exec = %s, exec_off = %s }\nlame_duck = { until = \"exec\", exec = %s }",
			bash(api("set server app/"+k.name+" state drain")), bash(api("set server app/"+k.name+" state ready")),
			bash(api("show stat")+` | awk -F, '$1 == "app" && $2 == "`+k.name+`" { exit $5 != 0 || $18 !~ /DRAIN/ }'`)),
	}
}

// stopsOf is how many stops a row has.
func stopsOf(short int) int {
	if full() {
		return 50
	}
	return short
}

// Servers that have never heard of a signal, stopped behind a balancer that is late: nothing is lost, by each of the
// three loops.
func TestStopLoadNoHandler(t *testing.T) {
	if testing.Short() {
		t.Skip("load needs the machine to itself; it runs without -short")
	}
	for _, row := range []struct {
		name, loop string
		node       bool
	}{{"go-timer", "timer", false}, {"go-probes", "probes", false}, {"go-acknowledged", "exec", false}, {"node-probes", "probes", true}} {
		t.Run(row.name, func(t *testing.T) {
			untilDriven(t, func() error { return runNoHandlerRow(t, row.loop, row.node) })
		})
	}
}

// runNoHandlerRow stops the servers in turn.
func runNoHandlerRow(t *testing.T, loop string, node bool) error {
	n := stopsOf(2)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(n)*20*time.Second)
	defer cancel()
	b := newBalancer(t, 2, func(b *balancer, k *backend) string {
		return noHandler(t, k, node, holds+stopLoops(b, k)[loop])
	})
	report := b.stops(ctx, b.load(ctx, 500, plainAnswer), n)
	driven := b.lossless(&report, n)
	for _, k := range b.backends {
		log := k.Log()
		if got := strings.Count(log, "lame duck: the wait is over\" service=web by="+loop); got < n/2 {
			t.Errorf("backend %s: %d of %d waits were ended by %s:\n%s", k.name, got, n/2, loop, log)
		}
	}
	return driven
}

// The same without what it is about: the balancer goes on sending to who is gone. Else the rows above would prove nothing.
func TestStopLoadSeesLoss(t *testing.T) {
	if testing.Short() {
		t.Skip("load needs the machine to itself; it runs without -short")
	}
	ctx := limited(t)
	b := newBalancer(t, 2, func(b *balancer, k *backend) string {
		return noHandler(t, k, false, `lame_duck = { until = "timer", for = "0s" }`)
	})
	report := b.stops(ctx, b.load(ctx, 500, plainAnswer), 2)
	t.Logf("%d requests, %d failed %v", report.Sent, report.Failed(), report.Failures)
	if report.Failed() == 0 {
		t.Error("a balancer that was told nothing has lost nothing: the other rows prove nothing")
	}
}

// HAProxy and the Go server of the examples as two services of one handoverd, behind a second balancer.
func TestStopLoadTwoServices(t *testing.T) {
	if testing.Short() {
		t.Skip("load needs the machine to itself; it runs without -short")
	}
	untilDriven(t, func() error { return runTwoServices(t) })
}

func runTwoServices(t *testing.T) error {
	n := stopsOf(2)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(n)*20*time.Second)
	defer cancel()
	b := newBalancer(t, 2, func(b *balancer, k *backend) string {
		app := FreePort(t)
		file := filepath.Join(k.Dir, "haproxy.cfg")
		config := rewrite(t, exampleFile(t, "haproxy.cfg"), "127.0.0.1:8081", fmt.Sprintf("127.0.0.1:%d", app))
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`[service.app]
command = [%q]
[service.app.socket]
http = "tcp4://127.0.0.1:%d"
[service.web]
command = ["haproxy", "-db", "-de", "-f", %q]
after = ["app"]
[service.web.socket]
http = "tcp4://127.0.0.1:%d"
[service.web.stop]
%s
`, Program(t, goserverProgram), app, file, k.port, stopLoops(b, k)["probes"])
	})
	report := b.stops(ctx, b.load(ctx, 500, nil), n)
	return b.lossless(&report, n)
}
