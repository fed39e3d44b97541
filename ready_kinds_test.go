//go:build linux

package handover_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/handoverd/handover/supervisor"
)

// The ways to become ready that need a word of the program, or an answer: each with a real program, under load, and
// with one that never gets there.

// healthSockets are where the probe of a generation asks: bound for it alone.
const (
	sharedSocket = `http = "tcp4://127.0.0.1:0"`
	unixHealth   = `health = { listen = "unix://%s/health.${HANDOVER_GENERATION}.sock", per_generation = true }`
	tcpHealth    = `health = { listen = "tcp4://127.0.0.1:0", per_generation = true }`
)

var readyKinds = []struct {
	name, when string
	mode       string // of the child
	health     string // its second socket
	network    string // of that
	ready      string // the lines that say what is asked; %s: the daemon's directory
}{
	{name: "newline", when: "newline", mode: "accept-newline"},
	{name: "newline-fd", when: "newline", mode: "accept-newline", ready: "fd = 100"},
	{name: "http-unix", when: "http", health: unixHealth, network: "unix", ready: `http = { socket = "health", path = "/healthz" }`},
	{name: "http-tcp-raw", when: "http", mode: "accept-raw", health: tcpHealth, network: "tcp4", ready: `http = { socket = "health", status = 200 }`},
	{name: "http-three", when: "http", health: tcpHealth, network: "tcp4", ready: "http = { socket = \"health\" }\nsuccesses = 3\ninterval = \"20ms\""},
	{name: "tcp", when: "tcp", health: tcpHealth, network: "tcp4", ready: `tcp = { socket = "health" }`},
	{name: "exec", when: "exec", ready: `exec = ["/bin/sh", "-c", "test -e %s/go && test $HANDOVER_GENERATION -gt 0"]`},
}

// healthService is a service that is asked, in a daemon's directory.
func healthService(d *Daemon, when, mode, health, network, ready string) childService {
	p := childService{when: when, mode: mode, socket: sharedSocket, ready: strings.ReplaceAll(ready, "%s", d.Dir)}
	if health != "" {
		p.socket += "\n" + strings.ReplaceAll(health, "%s", d.Dir)
		p.env = fmt.Sprintf("TESTCHILD_HEALTH = %q, TESTCHILD_HEALTH_FILE = %q", "health "+network, healthFile(d))
	}
	return p
}

func healthFile(d *Daemon) string { return filepath.Join(d.Dir, "health") }

// write replaces a file of the daemon's directory at once.
func (s *scene) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.Dir, name)
	err := os.WriteFile(path+".new", []byte(text), 0o644)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// newSceneOf is newScene for services that need to know the daemon's directory.
func newSceneOf(t *testing.T, services func(d *Daemon) []childService) *scene {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	s := &scene{Daemon: NewDaemon(t), t: t}
	s.write("go", "")
	s.configure(services(s.Daemon)...)
	s.Start()
	s.WaitReady()
	s.events = s.Follow()
	return s
}

func TestReadyKinds(t *testing.T) {
	for _, k := range readyKinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			const reloads = 5
			s := newSceneOf(t, func(d *Daemon) []childService {
				return []childService{healthService(d, k.when, k.mode, k.health, k.network, k.ready)}
			})
			fresh := s.fresh(s.address("web", "http"))
			for n := 2; n <= 1+reloads; n++ {
				s.MustReload()
				fresh.sees(n)
				for _, g := range s.service("web").Generations {
					if g.Generation == n && g.ReadyBy != k.when {
						t.Errorf("generation %d is ready by %q, want %q", n, g.ReadyBy, k.when)
					}
				}
			}
			s.only("web", 1+reloads)
			fresh.end()
			if left, err := filepath.Glob(filepath.Join(s.Dir, "health.*.sock")); err != nil || len(left) > 1 {
				t.Errorf("sockets of one generation: %v %v", left, err)
			}
			s.Stop()
			if left, err := filepath.Glob(filepath.Join(s.Dir, "*.sock")); err != nil || len(left) > 0 {
				t.Errorf("sockets are left after the stop: %v %v", left, err)
			}
		})
	}
}

// One that does not say or answer what is awaited fails with its grace, and what it was asked is in the reason.
func TestReadyNever(t *testing.T) {
	for _, k := range []struct {
		name, when, mode, health, network, ready string
		reason                                   string
	}{
		{"newline", "newline", "accept-newline", "", "", "", "not ready (waited for newline)"},
		{"http-status", "http", "", unixHealth, "unix", `http = { socket = "health" }`, "HTTP status 503"},
		{"http-hangs", "http", "", tcpHealth, "tcp4", "http = { socket = \"health\" }\ntimeout = \"300ms\"", "no answer in time"},
		{"tcp", "tcp", "", tcpHealth, "tcp4", "tcp = { socket = \"health\" }\ntimeout = \"300ms\"", "the program does not accept the connection"},
		{"exec", "exec", "", "", "", `exec = ["/bin/sh", "-c", "test -e %s/go || { echo not yet; exit 7; }"]`, "exit status 7: not yet"},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			service := func(d *Daemon, grace string) childService {
				return healthService(d, k.when, k.mode, k.health, k.network, k.ready+"\ninit_grace = "+grace)
			}
			s := newSceneOf(t, func(d *Daemon) []childService { return []childService{service(d, `"60s"`)} })
			fresh := s.fresh(s.address("web", "http"))
			bad := service(s.Daemon, `"2s"`)
			if k.name == "tcp" {
				bad.env = "" // it has the socket and does not know what it is for
			}
			s.configure(bad)
			switch k.name {
			case "http-status":
				s.write("health", "bad")
			case "http-hangs":
				s.write("health", "hang")
			case "exec":
				if err := os.Remove(filepath.Join(s.Dir, "go")); err != nil {
					t.Fatal(err)
				}
			case "newline":
				s.setMode("web", "hang-init")
			}
			r := s.fails(k.reason)
			if r.Results[0].Phase != supervisor.PhaseStarting {
				t.Errorf("it failed while %s", r.Results[0].Phase)
			}
			s.only("web", 1)
			fresh.more(50)
			fresh.end()
			s.Stop()
		})
	}
}
