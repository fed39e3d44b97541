//go:build linux

package handover_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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
				reloadServer(t, d, s)
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

// reloadServer reloads once under a light load. A stream that is held over the reload keeps the old generation alive, so
// that it is seen to have let go and not merely gone.
func reloadServer(t *testing.T, d *Daemon, s server) {
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
	if got := report.Results[0].Release; got != supervisor.ReleaseYes {
		t.Errorf("release %q, want it seen", got)
	}
	if s.holds {
		old := d.Service("web").Generations[0]
		if old.Generation != 1 || old.Phase != supervisor.PhaseDraining || old.Release != supervisor.ReleaseYes || old.StaleEpoll != s.stale {
			t.Errorf("the old generation with its stream: %+v, want it draining and released, with a stale epoll entry: %v", old, s.stale)
		}
	}
	if err := run.WaitGeneration(ctx, 2); err != nil {
		t.Fatal(err)
	}
	if r := run.Stop(); r.Faults() > 0 || s.lossless && (r.Failed() > 0 || r.OK != r.Sent) {
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
