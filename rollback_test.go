//go:build linux

package handover_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// Rollback rolls back through the control API and waits for the outcome.
func (d *Daemon) Rollback(ctx context.Context, services ...string) (*supervisor.ReloadReport, error) {
	resp, err := d.do(ctx, http.MethodPost, "/v1/rollback", url.Values{"service": services})
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line supervisor.Event
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, err
		}
		if line.Report != nil {
			return line.Report, nil
		}
	}
	return nil, fmt.Errorf("rollback: no outcome: %w", errors.Join(lines.Err(), io.ErrUnexpectedEOF))
}

// deployed is a program at a path that can be overwritten.
type deployed struct {
	t    *testing.T
	path string
	good []byte // the test's child
	next []byte // the same, with another content
}

func deploy(t *testing.T) *deployed {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	good, err := os.ReadFile(Program(t, testchildProgram))
	if err != nil {
		t.Fatal(err)
	}
	p := &deployed{t, filepath.Join(t.TempDir(), "app"), good, append(slices.Clip(good), "next"...)}
	if err := os.WriteFile(p.path, good, 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

// overwrite writes into the file that is there, as cp(1) does.
func (p *deployed) overwrite(b []byte) {
	p.t.Helper()
	f, err := os.OpenFile(p.path, os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = f.Write(b)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func digestOf(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// runs checks what the serving generation runs, and what it is called.
func (s *scene) runs(p *deployed, generation int, want []byte) {
	s.t.Helper()
	s.reachesServing("web", generation)
	_, pid := s.Serving("web")
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		s.t.Fatal(err)
	}
	if digestOf(b) != digestOf(want) {
		s.t.Errorf("generation %d runs a program of %d bytes, want the one of %d bytes", generation, len(b), len(want))
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || strings.TrimSpace(string(comm)) != "app" {
		s.t.Errorf("generation %d is called %q (%v)", generation, comm, err)
	}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, l := range links {
		if to, _ := os.Readlink(l); strings.Contains(to, "app") && !strings.Contains(to, s.Dir) {
			s.t.Errorf("generation %d has its own program open: %s", generation, to)
		}
	}
}

// keeps waits until what serves, and what can be gone back to, are known by their content.
func (s *scene) keeps(serving, previous string) {
	s.t.Helper()
	s.WaitStatus("the programs are kept", func(st *supervisor.Status) bool {
		svc := st.Services[0]
		back := ""
		if svc.Rollback != nil {
			back = svc.Rollback.Program
		}
		return svc.Program == serving && back == previous && svc.Copy != ""
	})
}

// The program's file is overwritten in place: a restart runs what served, also after a kill of handoverd; a reload runs
// what is there; a rollback goes back to what served before, in the content that it had.
func TestScenarioRollbackOverwritten(t *testing.T) {
	t.Parallel()
	p := deploy(t)
	s := &scene{Daemon: NewDaemon(t), t: t}
	config := func(service childService) string {
		return strings.ReplaceAll(service.toml(t, s.Daemon), Program(t, testchildProgram), p.path)
	}
	s.Configure(config(childService{restart: longBackOff}))
	s.Start()
	s.WaitReady()
	s.events = s.Follow()
	good, next := digestOf(p.good), digestOf(p.next)
	s.keeps(good, "")
	if r, err := s.Rollback(limited(t)); err == nil {
		t.Errorf("rolled back to nothing: %+v", r)
	}
	fresh := s.fresh(s.address("web", "http"))

	fresh.more(500) // it serves for longer than a crash loop's programs do, and so was good
	s.kill("web")
	s.WaitStatus("it waits", func(st *supervisor.Status) bool {
		return st.Services[0].RestartIn > 1 && len(st.Services[0].Generations) == 0
	})
	p.overwrite(p.next)
	s.MustReload()
	s.runs(p, 2, p.next)
	s.keeps(next, good)

	r, err := s.Rollback(limited(t))
	if err != nil || !r.OK() || !r.Released() {
		t.Fatalf("rollback: %+v, %v", r, err)
	}
	s.runs(p, 3, p.good)
	fresh.sees(3)
	fresh.more(500) // as above: it is killed below, and is to be gone back to
	s.only("web", 3)
	s.logs("web", 3, "that one is run, from its copy")
	if r, err := s.Rollback(limited(t)); err == nil {
		t.Errorf("rolled back twice: %+v", r)
	}

	// The copy outlives handoverd, in the keeper.
	s.Kill()
	s.Start()
	s.WaitReady()
	s.events = s.Follow()
	s.keeps(good, "")
	s.kill("web")
	s.HUP() // which is not a restart: it runs what is there
	s.runs(p, 4, p.next)
	s.keeps(next, good)
	fresh.sees(4)
	s.only("web", 4)
	fresh.end(dead{"web", 1}, dead{"web", 3})
	s.Stop()
}

// A crash restart runs what served, while a broken deploy lies in its place: overwritten in place, or renamed there.
func TestScenarioRestartRunsWhatServed(t *testing.T) {
	t.Parallel()
	p := deploy(t)
	s := &scene{Daemon: NewDaemon(t), t: t}
	s.Configure(strings.ReplaceAll(childService{restart: "backoff_min = \"1s\"\nbackoff_max = \"1s\""}.toml(t, s.Daemon), Program(t, testchildProgram), p.path))
	s.Start()
	s.WaitReady()
	s.events = s.Follow()
	s.keeps(digestOf(p.good), "")
	fresh := s.fresh(s.address("web", "http"))

	// While it runs the kernel protects it (ETXTBSY), so that a deploy puts another file there.
	if err := os.WriteFile(p.path+".new", []byte("broken"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(p.path+".new", p.path); err != nil {
		t.Fatal(err)
	}
	s.kill("web")
	s.runs(p, 2, p.good)
	s.logs("web", 2, "from its open file")
	fresh.sees(2)
	fresh.more(50)

	// Killed with handoverd dead, and started again by the next one, from what the keeper holds.
	s.Kill()
	s.Start()
	s.WaitReady()
	s.events = s.Follow()
	s.keeps(digestOf(p.good), "")
	s.kill("web")
	s.runs(p, 3, p.good)
	fresh.sees(3)
	s.only("web", 3)
	fresh.more(50)
	s.fails("exec format error")
	s.only("web", 3)
	fresh.end(dead{"web", 1}, dead{"web", 2})
	s.Stop()
	if left, err := os.ReadDir(filepath.Join(s.Dir, "exe")); err != nil || len(left) > 0 {
		t.Errorf("left in exe: %v, %v", left, err)
	}
}

// Where a copy of the program cannot be made, here as the pid namespace forbids to execute memfds, the file is kept all the
// same: what replaces it at its path is not what a restart runs.
func TestScenarioRestartWithoutCopy(t *testing.T) {
	t.Parallel()
	p := deploy(t)
	d := NewDaemon(t)
	s := &scene{Daemon: d, t: t}
	d.Configure(strings.ReplaceAll(childService{}.toml(t, d), Program(t, testchildProgram), p.path))
	f := startFirst(t, d, "sh", "-c", `echo 2 >/proc/sys/vm/memfd_noexec; exec "$@"`, "sh")
	s.WaitReady()
	s.WaitStatus("the program is kept, without a copy", func(st *supervisor.Status) bool {
		return st.Services[0].Program == digestOf(p.good) && st.Services[0].Copy == ""
	})
	s.WaitLog("of the program no copy is kept")
	if err := errors.Join(os.WriteFile(p.path+".new", []byte("broken"), 0o755), os.Rename(p.path+".new", p.path)); err != nil {
		t.Fatal(err)
	}
	_, pid := s.Serving("web")
	f.kill("KILL", pid)
	s.reachesServing("web", 2)
	s.logs("web", 2, "from its open file")
	f.signal(unix.SIGTERM)
	if code := f.exitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
