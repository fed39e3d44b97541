//go:build linux

package handover_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/internal/site"
	"github.com/handoverd/handover/supervisor"
)

// Readiness without a word from the program: it is seen to accept. The programs are real ones, each with its own way of
// waiting for connections.

// proxyHeader is the field in which the proxies of these tests tell their generation.
const proxyHeader = "X-Proxy-Generation"

// server is one program that accepts on the socket http and answers as package site does, itself or as a proxy of one that does.
type server struct {
	name     string
	config   func(t *testing.T, d *Daemon, backend string) string // [service.web] up to its sockets, without ready
	header   string                                               // drill.Load.GenerationHeader
	lossless bool                                                 // it loses nothing when it is drained
	holds    bool                                                 // it finishes what it has accepted: a stream outlives the reload
	stale    bool                                                 // it leaves an entry in an epoll set
}

var servers = []server{
	{name: "haproxy -db", config: haproxyConfig("-db"), header: proxyHeader, lossless: true, holds: true, stale: true},
	{name: "haproxy -db -de", config: haproxyConfig("-db", "-de"), header: proxyHeader, lossless: true, holds: true},
	{name: "nginx", config: nginxConfig, header: proxyHeader, lossless: true, holds: true},
	{name: "node", config: nodeConfig, lossless: true, holds: true},
	{name: "Go", config: stepsConfig("", "serve 3"), lossless: true, holds: true},
	{name: "Go, another user", config: stepsConfig(`user = "nobody"`, "serve 3"), lossless: true, holds: true},
	// These accept in a thread that nothing can wake: what it has accepted in the moment of its end is lost.
	{name: "select", config: testchildConfig("select", "")},
	{name: "blocking accept", config: func(t *testing.T, d *Daemon, backend string) string {
		return strings.Replace(testchildConfig("blocking-accept", "")(t, d, backend),
			`http = "tcp4://127.0.0.1:0"`, `http = { listen = "tcp4://127.0.0.1:0", nonblocking = false }`, 1)
	}},
}

// TestAccepting: each of the programs is ready when it accepts, is seen to, and one reload later the old one is seen to have let go.
func TestAccepting(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	backend := siteBackend(t)
	for _, s := range servers {
		for _, when := range []string{"accepting", "auto"} {
			t.Run(s.name+"/"+when, func(t *testing.T) {
				t.Parallel() // they mostly wait
				d := NewDaemon(t)
				d.Configure(s.config(t, d, backend) + fmt.Sprintf("[service.web.ready]\nwhen = %q\n", when))
				d.Start()
				d.WaitReady()
				checkSeen(t, d, 1)
				reloadUnderLoad(t, d, s, supervisor.ReleaseYes)
				checkSeen(t, d, 2)
				d.Stop()
			})
		}
	}
}

// checkSeen checks that a generation serves and was seen to accept.
func checkSeen(t *testing.T, d *Daemon, generation int) {
	t.Helper()
	checkReady(t, d, generation, "accepting", "seen")
}

func checkReady(t *testing.T, d *Daemon, generation int, by, adoption string) {
	t.Helper()
	for _, g := range d.Service("web").Generations {
		if g.Phase == supervisor.PhaseServing && g.Generation == generation {
			if g.ReadyBy != by || g.Adoption != adoption {
				t.Errorf("generation %d: ready by %q, adoption %q, want %q and %q", generation, g.ReadyBy, g.Adoption, by, adoption)
			}
			return
		}
	}
	t.Errorf("generation %d does not serve: %+v", generation, d.Service("web"))
}

// reloadUnderLoad reloads once under a light load. A stream that is held over the reload keeps the old generation alive, so
// that it is seen to have let go and not merely gone.
func reloadUnderLoad(t *testing.T, d *Daemon, s server, release supervisor.Release) {
	t.Helper()
	ctx, address := limited(t), socketAddress(t, d, "http")
	run, err := drill.Start(ctx, drill.Load{
		Network: "tcp", Address: address, Mode: drill.ModeFresh, Rate: 200, GenerationHeader: s.header, Duration: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Stop()
	if err := run.WaitOK(ctx, 20); err != nil {
		t.Fatal(err)
	}
	if s.holds {
		endStream := openStream(t, address)
		defer endStream()
	}
	report := d.MustReload()
	if got := report.Results[0].Release; got != release {
		t.Errorf("release %q, want %q", got, release)
	}
	if s.holds {
		old := d.Service("web").Generations[0]
		if old.Generation != 1 || old.Phase != supervisor.PhaseDraining || old.Release != release || old.StaleEpoll != s.stale {
			t.Errorf("the old generation with its stream: %+v, want it draining, release %q, with a stale epoll entry: %v", old, release, s.stale)
		}
	}
	if err := run.WaitGeneration(ctx, 2); err != nil {
		t.Fatal(err)
	}
	r := run.Stop()
	checkSent(t, &r)
	if s.lossless && (r.Failed() > 0 || r.OK != r.Sent) {
		t.Errorf("the load: %s", &r)
	}
}

// openStream begins a response that lasts until the function returned is called.
func openStream(t *testing.T, address string) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/stream?n=1&ms=600000", nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	return func() {
		cancel()
		_ = resp.Body.Close()
	}
}

// socketAddress is where a socket of the service web is bound.
func socketAddress(t *testing.T, d *Daemon, name string) string {
	t.Helper()
	for _, s := range d.Service("web").Sockets {
		if s.Name == name {
			_, address, _ := strings.Cut(s.Address, "://")
			return address
		}
	}
	t.Fatalf("no socket %s", name)
	return ""
}

// siteBackend serves package site for the proxies and returns its address.
func siteBackend(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(site.Handler(1))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// writeFile writes a file into the daemon's directory and returns its path.
func writeFile(t *testing.T, d *Daemon, name, text string) string {
	t.Helper()
	path := filepath.Join(d.Dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// publicProgram is Program where every user may run it.
func publicProgram(t testing.TB, pkg string) string {
	t.Helper()
	path := Program(t, pkg)
	if err := os.Chmod(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// stepsProgram is the program whose behaviour is its arguments.
const stepsProgram = "./internal/teststeps"

// stepsConfig is a service with one socket that takes these steps.
func stepsConfig(more string, steps ...string) func(*testing.T, *Daemon, string) string {
	return func(t *testing.T, _ *Daemon, _ string) string {
		return fmt.Sprintf(`
[service.web]
command = %s
%s
[service.web.socket]
http = "tcp4://127.0.0.1:0"
`, quoted(append([]string{publicProgram(t, stepsProgram)}, steps...)...), more)
	}
}

// quoted is a list of strings as TOML has it.
func quoted(list ...string) string { return `["` + strings.Join(list, `", "`) + `"]` }

func testchildConfig(mode, more string) func(*testing.T, *Daemon, string) string {
	return func(t *testing.T, _ *Daemon, _ string) string {
		return fmt.Sprintf(`
[service.web]
command = [%q]
env = { TESTCHILD_MODE = %q }
%s
[service.web.socket]
http = "tcp4://127.0.0.1:0"
`, publicProgram(t, testchildProgram), mode, more)
	}
}

func haproxyConfig(flags ...string) func(*testing.T, *Daemon, string) string {
	return func(t *testing.T, d *Daemon, backend string) string {
		file := writeFile(t, d, "haproxy.cfg", `
defaults
	mode http
	timeout connect 10s
	timeout client 60s
	timeout server 60s
frontend web
	bind fd@${HANDOVER_FD_HTTP}
	http-response set-header `+proxyHeader+` "${HANDOVER_GENERATION}"
	default_backend app
backend app
	server app `+backend+`
`)
		return fmt.Sprintf(`
[service.web]
command = ["/usr/sbin/haproxy", "%s", "-f", %q]
[service.web.socket]
http = "tcp4://127.0.0.1:0"
`, strings.Join(flags, `", "`), file)
	}
}

// nginxConfig has workers that are processes of another user than their master, and a pid file and a configuration for each
// generation: the old master removes its pid file when it ends.
func nginxConfig(t *testing.T, d *Daemon, backend string) string {
	port := FreePort(t) // nginx finds a socket by its address
	for generation := 1; generation <= 2; generation++ {
		writeFile(t, d, fmt.Sprintf("nginx.%d.conf", generation), fmt.Sprintf(`
user www-data;
worker_processes 2;
error_log stderr;
events {}
http {
	access_log off;
	server {
		listen 127.0.0.1:%d;
		location / {
			proxy_pass http://%s;
			proxy_http_version 1.1;
			proxy_buffering off;
			add_header %s %d;
		}
	}
}
`, port, backend, proxyHeader, generation))
	}
	return fmt.Sprintf(`
[service.web]
command = ["/usr/sbin/nginx", "-c", %q, "-g", %q]
[service.web.socket]
http = "tcp4://127.0.0.1:%d"
`, filepath.Join(d.Dir, "nginx.${HANDOVER_GENERATION}.conf"),
		"daemon off; pid "+filepath.Join(d.Dir, "nginx.${HANDOVER_GENERATION}.pid")+";", port)
}

// nodeServer answers as package site does: /fast, and /stream for as long as the client wants it.
const nodeServer = `
'use strict';
const http = require('http');
const generation = process.env.HANDOVER_GENERATION;
const table = Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n >>> 0;
});
const crc32 = (text) =>
  ([...Buffer.from(text)].reduce((c, b) => table[(c ^ b) & 255] ^ (c >>> 8), 0xffffffff) ^ 0xffffffff) >>> 0;
const server = http.createServer((request, response) => {
  const url = new URL(request.url, 'http://localhost');
  const number = url.searchParams.get('n');
  response.setHeader('X-Generation', generation);
  response.setHeader('X-Request-Number', number);
  if (url.pathname === '/stream') {
    response.write('.');
    return;
  }
  const body = 'generation=' + generation + ' n=' + number;
  response.end(body + ' crc32=' + crc32(body).toString(16).padStart(8, '0') + '\n');
});
server.listen({ fd: 3 });
process.on('SIGTERM', () => server.close(() => process.exit(0)));
`

func nodeConfig(t *testing.T, d *Daemon, _ string) string {
	return fmt.Sprintf(`
[service.web]
command = ["node", %q]
[service.web.socket]
http = "tcp4://127.0.0.1:0"
`, writeFile(t, d, "server.js", nodeServer))
}

// TestAcceptingUnseen: where handoverd may not look itself, somebody looks who may; where nobody may, a program is ready when it has
// been alive for a second, and log and status say so.
func TestAcceptingUnseen(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	backend := siteBackend(t)
	another := stepsConfig(`user = "nobody"`, "serve 3")
	tests := []struct {
		name    string
		wrapper []string
		server
		seen bool
	}{
		{"another user, no CAP_SYS_PTRACE", withoutPtrace, server{config: another}, true},
		{"another user, hidepid", hiddenProc, server{config: another}, true},
		{"undumpable", withoutPtrace, server{config: stepsConfig("", "undumpable", "serve 3")}, false},
		{"undumpable, another user", withoutPtrace, server{config: stepsConfig(`user = "nobody"`, "undumpable", "serve 3")}, false},
		{"undumpable, hidepid", hiddenProc, server{config: stepsConfig(`user = "nobody"`, "undumpable", "serve 3")}, false},
		// The workers are of a user whom nothing in the configuration names.
		{"nginx, no CAP_SYS_PTRACE", withoutPtrace, server{config: nginxConfig, header: proxyHeader}, false},
		{"nginx, hidepid", hiddenProc, server{config: nginxConfig, header: proxyHeader}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			tt.lossless, tt.holds = true, true
			d := NewDaemon(t)
			d.Configure(tt.config(t, d, backend))
			d.startUnder(t, nil, tt.wrapper...)
			d.WaitReady()
			by, adoption, release := "accepting", "seen", supervisor.ReleaseYes
			if !tt.seen {
				by, adoption, release = "alive", "not visible", supervisor.ReleaseUnknown
				d.WaitLog("cannot be looked at")
				d.WaitLog("ready by alive")
			}
			checkReady(t, d, 1, by, adoption)
			reloadUnderLoad(t, d, tt.server, release)
			checkReady(t, d, 2, by, adoption)
			if !tt.seen {
				d.WaitLog("release unknown")
			}
			d.Stop()
		})
	}
	t.Run("accepting is not replaced", func(t *testing.T) {
		t.Parallel()
		d := NewDaemon(t)
		d.Configure(stepsConfig("", "undumpable", "serve 3")(t, d, "") + "[service.web.ready]\nwhen = \"accepting\"\ninit_grace = \"4s\"\n") // in which it makes itself undumpable
		d.startUnder(t, nil, withoutPtrace...)
		checkFailure(t, d, "cannot be looked at")
		d.Stop()
	})
}

// checkFailure waits for a failed start and checks what is said of it.
func checkFailure(t *testing.T, d *Daemon, reason string) {
	t.Helper()
	s := d.WaitStatus("a failed start", func(s *supervisor.Status) bool {
		return len(s.Services) > 0 && s.Services[0].Failure != nil
	})
	if got := s.Services[0].Failure.Reason; !strings.Contains(got, reason) {
		t.Errorf("it failed with %q, want %q in it", got, reason)
	}
}

// adoptionRow is a new generation that is not what it seems.
type adoptionRow struct {
	name  string
	more  string // keys of the service
	http  string // the socket; empty: the usual one
	steps []string
	fails string // the reason, with the port for %d; empty: it serves
	idle  []string
}

var adoptionRows = []adoptionRow{
	{name: "another port", steps: []string{"listen 127.0.0.1:0"}, fails: "listens on 127.0.0.1:%d and on none of the sockets it was given"},
	{
		name: "another port, says ready", steps: []string{"listen 127.0.0.1:0", "notify READY=1"},
		fails: "ready by notify, but process PID listens on 127.0.0.1:%d and on none of the sockets it was given",
	},
	{name: "another port, in a child", steps: []string{"child listen 127.0.0.1:0"}, fails: "listens on 127.0.0.1:%d and on none of the sockets it was given"},
	{
		name: "our address, by itself", http: `{ listen = "tcp4://ADDRESS", reuse_port = true }`, steps: []string{"listen-reuseport ADDRESS"},
		fails: `listens on ADDRESS itself instead of on the socket "http" it was given`,
	},
	{
		name: "our address, beside the socket", http: `{ listen = "tcp4://ADDRESS", reuse_port = true }`, steps: []string{"serve 3", "listen-reuseport ADDRESS"},
		fails: `listens on ADDRESS itself instead of on the socket "http" it was given`,
	},
	{name: "nothing at all", steps: nil, fails: "accepts on none of its sockets"},
	{name: "nothing at all, says ready", steps: []string{"notify READY=1"}, fails: "ready by notify, but it accepts on none of its sockets"},
	{name: "another port beside the socket", steps: []string{"serve 3", "listen 127.0.0.1:0"}, idle: []string{"admin"}},
	{name: "a socket that nobody polls", steps: []string{"serve 3"}, idle: []string{"admin"}},
	{name: "a socket that nobody polls, adopt all", more: `adopt = "all"`, steps: []string{"serve 3"}, fails: `nobody polls admin (adopt = "all")`},
	{name: "all, adopt all", more: `adopt = "all"`, steps: []string{"serve 3", "serve 4"}},
	{name: "all, in two processes, adopt all", more: `adopt = "all"`, steps: []string{"child serve 4", "serve 3"}},
	{name: "a blocking loop on a non-blocking socket", steps: []string{"spin 3"}, fails: "nonblocking = false"},
}

// TestAdoption: a new generation that says or seems to be ready and does not accept where it should is not taken; what is
// lacking is said, and the old one serves on.
func TestAdoption(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	for _, row := range adoptionRows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			address := fmt.Sprintf("127.0.0.1:%d", FreePort(t))
			fill := func(s string) string { return strings.ReplaceAll(s, "ADDRESS", address) }
			if row.http == "" {
				row.http = `"tcp4://ADDRESS"`
			}
			grace := "60s"
			if row.fails != "" {
				grace = "3s"
			}
			config := func(more string, steps ...string) string {
				return fill(fmt.Sprintf(`
[service.web]
command = %s
%s
[service.web.socket]
http = %s
admin = "tcp4://127.0.0.1:0"
[service.web.ready]
init_grace = %q
`, quoted(append([]string{Program(t, stepsProgram)}, steps...)...), more, row.http, grace))
			}
			d := StartDaemon(t, rewrite(t, config("", "serve 3"), grace, "60s"))
			_, pid := d.Serving("web")
			d.Configure(config(row.more, row.steps...))
			report, err := d.Reload(limited(t))
			if err != nil {
				t.Fatal(err)
			}
			if row.fails == "" {
				checkAdopted(t, d, report, row.idle)
			} else {
				row.fails = fill(row.fails)
				checkNotAdopted(t, d, report, row.fails)
				if generation, now := d.Serving("web"); generation != 1 || now != pid {
					t.Errorf("generation %d, process %d serves, want 1 and %d", generation, now, pid)
				}
			}
			d.Stop()
		})
	}
}

func checkAdopted(t *testing.T, d *Daemon, report *supervisor.ReloadReport, idle []string) {
	t.Helper()
	if !report.OK() {
		t.Fatalf("reload: %+v", report)
	}
	for _, g := range d.Service("web").Generations {
		if g.Generation == 2 && (g.Adoption != "seen" || !slices.Equal(g.Idle, idle)) {
			t.Errorf("adoption %q, unpolled sockets %q, want %q and %q", g.Adoption, g.Idle, "seen", idle)
		}
	}
	d.WaitLog("gen=2")
	if idle != nil {
		d.WaitLog("sockets that nobody polls: [admin]\" service=web gen=2")
	}
	if said := strings.Contains(d.Log(), "gen=2") && strings.Contains(d.Log(), "sockets that nobody polls: [admin]\" service=web gen=2"); said != (idle != nil) {
		t.Errorf("the log warns of unpolled sockets: %v, want %v", said, idle != nil)
	}
}

var portInLog = regexp.MustCompile(`web\.2 \| .*listening on 127\.0\.0\.1:(\d+)`)

func checkNotAdopted(t *testing.T, d *Daemon, report *supervisor.ReloadReport, reason string) {
	t.Helper()
	r := report.Results[0]
	if report.OK() || r.Outcome != supervisor.OutcomeFailed || r.Phase != supervisor.PhaseStarting {
		t.Fatalf("reload: %+v, want it failed", report)
	}
	if strings.Contains(reason, "%d") {
		said := portInLog.FindStringSubmatch(d.Log())
		if said == nil {
			t.Fatalf("the program has not said its port: %s", d.Log())
		}
		reason = strings.Replace(reason, "%d", said[1], 1)
	}
	got := regexp.MustCompile(`process \d+`).ReplaceAllString(r.Reason, "process PID")
	if !strings.Contains(got, "init grace of 3s is over") || !strings.Contains(got, reason) {
		t.Errorf("reason %q, want the init grace and %q in it", r.Reason, reason)
	}
	if f := d.Service("web").Failure; f == nil || f.Reason != r.Reason {
		t.Errorf("the status says %+v, want %q", f, r.Reason)
	}
	d.WaitLog(strings.ReplaceAll(r.Reason, `"`, `\"`))
}
