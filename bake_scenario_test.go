//go:build linux

package handover_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// Gates and bakes, under load: what stands between ready and the commit. Until the commit the old generation serves as
// if nothing was; a new one that accepted beside it and is given up is drained, so that nothing is lost with it unless
// its process dies.

// command runs the command against the daemon, as a person would, and returns its exit code and what it wrote.
func (s *scene) command(args ...string) (code int, stdout, stderr string) {
	s.t.Helper()
	cmd := exec.CommandContext(limited(s.t), Program(s.t, handoverdProgram), append(args, "-c", s.ConfigFile())...)
	var out, text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &text
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), text.String()
}

// commanded is a command that runs beside the test.
type commanded struct {
	done   chan struct{}
	code   int
	stdout string
	stderr string
}

func (s *scene) commanding(args ...string) *commanded {
	s.t.Helper()
	Program(s.t, handoverdProgram) // built by the test's own goroutine
	c := &commanded{done: make(chan struct{})}
	go func() { // waited for through done
		defer close(c.done)
		c.code, c.stdout, c.stderr = s.command(args...)
	}()
	return c
}

// ends waits for the command and checks its exit code and that it says why.
func (s *scene) ends(c *commanded, code int, says string) {
	s.t.Helper()
	<-c.done
	if c.code != code || !strings.Contains(c.stdout+c.stderr, says) {
		s.t.Errorf("exit code %d, want %d with %q:\n%s%s", c.code, code, says, c.stdout, c.stderr)
	}
}

// toggle makes an empty file of the daemon's directory, or removes it.
func (s *scene) toggle(name string, there bool) {
	s.t.Helper()
	if there {
		s.write(name, "")
	} else if err := os.Remove(filepath.Join(s.Dir, name)); err != nil {
		s.t.Fatal(err)
	}
}

// switchboard answers for a balancer: 200 while it is set, 503 while it is not, 404 to who does not say which generation
// it means.
type switchboard struct {
	address string
	good    atomic.Bool
}

func newSwitchboard(t *testing.T) *switchboard {
	t.Helper()
	b := &switchboard{}
	b.good.Store(true)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.URL.Query().Get("generation"))
		switch {
		case err != nil || n < 1:
			w.WriteHeader(http.StatusNotFound)
		case !b.good.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	b.address = server.Listener.Addr().String()
	return b
}

// phaseOf is where a generation stands, "" if it is gone.
func (s *scene) phaseOf(service string, generation int) supervisor.Phase {
	s.t.Helper()
	for _, g := range s.service(service).Generations {
		if g.Generation == generation {
			return g.Phase
		}
	}
	return ""
}

// A gate that is closed: no commit, the old one serves, whether it opens later or never.
func TestGate(t *testing.T) {
	for _, kind := range []struct{ name, mode, when, gate string }{
		{"exec", "", "", `gate = { exec = ["/bin/sh", "-c", "test -e %s/go || { echo backend is down; exit 1; }"], interval = "50ms" }`},
		{"http", "", "", `gate = { http = "http://%a/?generation=${HANDOVER_GENERATION}", interval = "50ms" }`},
		{"raw", "accept-notify", "notify", `gate = { exec = ["/bin/test", "-e", "%s/go"], interval = "50ms" }`},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			balancer := newSwitchboard(t)
			service := func(d *Daemon, grace string) childService {
				ready := strings.NewReplacer("%s", d.Dir, "%a", balancer.address).Replace(kind.gate)
				return childService{mode: kind.mode, when: kind.when, ready: ready + "\ninit_grace = " + grace}
			}
			s := newSceneOf(t, func(d *Daemon) []childService { return []childService{service(d, `"60s"`)} })
			set := func(open bool) {
				balancer.good.Store(open)
				s.toggle("go", open)
			}
			fresh, posts := s.fresh(s.address("web", "http")), s.posts(s.address("web", "http"))

			// Closed, then open.
			set(false)
			c := s.commanding("reload")
			s.WaitEvent(s.events, "the gate is waited for", func(e supervisor.Event) bool { return strings.Contains(e.Text, "waits for the gate") })
			s.WaitStatus("the gate has answered", func(st *supervisor.Status) bool {
				g := st.Services[0].Generations
				return len(g) == 2 && g[1].Gate != "" && g[1].Gate != "no answer yet"
			})
			fresh.more(100)
			if n, _ := s.Serving("web"); n != 1 || s.phaseOf("web", 2) != supervisor.PhaseStarting {
				t.Errorf("generation %d serves behind a closed gate", n)
			}
			set(true)
			s.ends(c, 0, "web.2 serves, web.1 released")
			s.only("web", 2)
			fresh.sees(2)

			// Never.
			set(false)
			s.configure(service(s.Daemon, `"1500ms"`))
			c = s.commanding("reload")
			s.ends(c, 1, "the gate has not opened")
			if e := s.reaches("web", 3, supervisor.PhaseDraining); !strings.HasPrefix(e.Why, "rolled back: ") {
				t.Errorf("generation 3 drains because of %q, want rolled back, since it accepted", e.Why)
			}
			s.tells("web", 3, "the gate has not opened")
			s.only("web", 2)
			fresh.more(50)
			fresh.end()
			posts.end()
			s.Stop()
		})
	}
}

// A first start waits for no gate: a balancer may wait for it.
func TestGateOfFirstStart(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{ready: `gate = { exec = ["/bin/false"] }`})
	s.kill("web")
	s.only("web", 2)
	s.Stop()
}

const bakeTime = "4s"

// The new one dies while it bakes, or its probe fails: at its begin, in the middle, near its end. Back to the old one.
func TestBakeRollsBack(t *testing.T) {
	moments := []struct {
		name string
		left float64 // seconds of the bake
	}{{"begin", 4}, {"middle", 2}, {"late", 1}}
	for _, how := range []string{"dies", "probe"} {
		for _, moment := range moments {
			t.Run(how+"-"+moment.name, func(t *testing.T) {
				t.Parallel()
				s := newSceneOf(t, func(d *Daemon) []childService {
					return []childService{healthService(d, "native", "", unixHealth, "unix",
						"bake = \""+bakeTime+"\"\nhttp = { socket = \"health\" }\ninterval = \"20ms\"")}
				})
				fresh := s.fresh(s.address("web", "http"))
				var posts *traffic
				if how != "dies" { // what a death may cost is counted in connections
					posts = s.posts(s.address("web", "http"))
				}
				c := s.commanding("reload")
				s.reaches("web", 2, supervisor.PhaseBaking)
				eventually(t, fmt.Sprintf("%v s of the bake are left", moment.left), func() bool {
					g := s.service("web").Generations
					return len(g) == 2 && g[1].Phase == supervisor.PhaseBaking && g[1].Ends <= moment.left
				})
				var deaths []dead
				reason := "its probe fails: HTTP status 503"
				if how == "dies" {
					reason = "killed by SIGKILL while baking"
					s.killGeneration("web", 2)
				} else {
					s.write("health", "bad")
				}
				s.ends(c, 1, "web.2 failed while baking: "+reason)
				s.tells("web", 2, reason)
				s.only("web", 1)
				fresh.more(50)
				if how == "dies" && accountOf(t, s.Daemon, "web", 2).connections > 0 {
					deaths = append(deaths, dead{"web", 2})
				}

				// And it is as if nothing was: the next one bakes and serves.
				s.write("health", "")
				if r := s.MustReload(); r.Results[0].Generation != 3 || r.Results[0].Old != 1 {
					t.Errorf("the next reload answers %+v", r)
				}
				fresh.sees(3)
				fresh.end(deaths...)
				if posts != nil {
					posts.sees(3)
					posts.end()
				}
				s.Stop()
			})
		}
	}
}

// While one bakes: a reload is remembered once, an abort begins it, the death of the old one commits, a stop stops both.
func TestBakeWhoWins(t *testing.T) {
	bake := childService{ready: `bake = "10m"`}
	start := func(t *testing.T) (*scene, *traffic, *commanded) {
		s := newScene(t, childService{})
		fresh := s.fresh(s.address("web", "http"))
		s.configure(bake)
		c := s.commanding("reload")
		s.reaches("web", 2, supervisor.PhaseBaking)
		fresh.sees(2)
		return s, fresh, c
	}
	t.Run("abort", func(t *testing.T) {
		t.Parallel()
		s, fresh, c := start(t)
		if code, out, text := s.command("reload", "--abort"); code != 0 || !strings.Contains(out, "web.2 rolled back while baking: aborted") {
			t.Errorf("exit code %d\n%s%s", code, out, text)
		}
		s.ends(c, 1, "web.2 failed while baking: aborted")
		s.only("web", 1)
		if code, _, text := s.command("reload", "--abort"); code != 1 || !strings.Contains(text, "nothing to abort") {
			t.Errorf("a second abort: exit code %d\n%s", code, text)
		}
		fresh.more(50)
		fresh.end()
		s.Stop()
	})
	t.Run("abort-newer", func(t *testing.T) {
		t.Parallel()
		s, fresh, c := start(t)
		s.configure(childService{})
		newer := s.commanding("reload")
		s.WaitStatus("a newer reload is remembered", func(st *supervisor.Status) bool { return len(st.Reloads) == 2 })
		if code, out, text := s.command("reload", "--abort"); code != 0 ||
			!strings.Contains(out, "web.2 rolled back while baking: aborted") || !strings.Contains(out, "web.3 serves, web.1 released") {
			t.Errorf("exit code %d\n%s%s", code, out, text)
		}
		s.ends(c, 1, "web.2 failed while baking: aborted")
		s.ends(newer, 0, "web.3 serves, web.1 released")
		s.only("web", 3)
		fresh.sees(3)
		fresh.end()
		s.Stop()
	})
	t.Run("the-old-one-dies", func(t *testing.T) {
		t.Parallel()
		s, fresh, c := start(t)
		s.kill("web")
		s.ends(c, 0, "web.2 serves")
		s.only("web", 2)
		fresh.more(50)
		fresh.end(dead{"web", 1})
		s.Stop()
	})
	t.Run("stop", func(t *testing.T) {
		t.Parallel()
		s, fresh, c := start(t)
		fresh.Run.Stop()
		s.Stop() // exit 0: nothing was cut
		s.ends(c, 1, "stopping")
	})
}

func (s *scene) killGeneration(service string, generation int) {
	s.t.Helper()
	for _, g := range s.service(service).Generations {
		if g.Generation == generation {
			if err := unix.Kill(g.PID, unix.SIGKILL); err != nil {
				s.t.Fatal(err)
			}
			return
		}
	}
	s.t.Fatalf("no generation %d of %s", generation, service)
}
