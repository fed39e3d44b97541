//go:build linux

package handover_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// TestTerminations: how each life of handoverd has ended is judged by the next one.
func TestTerminations(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := NewDaemon(t)
	d.Configure(plain("", sleeper, "1000"))
	is := func(want supervisor.Terminations) {
		t.Helper()
		d.WaitReady()
		if got := d.Status().Terminations; got != want {
			t.Errorf("terminations %+v, want %+v", got, want)
		}
	}
	d.Start()
	is(supervisor.Terminations{})
	d.Stop()
	d.Start()
	is(supervisor.Terminations{Whole: 1, Last: "whole"})
	d.Kill()
	d.Start()
	is(supervisor.Terminations{Whole: 1, NoNotice: 1, Last: "no notice"})
	events := d.Follow()
	d.Signal(15)
	d.WaitEvent(events, "draining", func(e supervisor.Event) bool { return e.To == supervisor.PhaseDraining })
	d.Kill()
	d.Start()
	is(supervisor.Terminations{Whole: 1, NoNotice: 1, Cut: 1, Last: "cut"})
	d.Stop()
}

// TestSurvivalIsShown: status and metrics say what there is for the case that handoverd is killed.
func TestSurvivalIsShown(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	port := FreePort(t)
	admin := "127.0.0.1:" + strconv.Itoa(FreePort(t))
	d := StartDaemon(t, "admin = \""+admin+"\"\n"+goserver(t, port))
	keeperOf(d, 0)
	if s := d.Service("web").Sources; s == nil || s.Store == "" || *s != (supervisor.Sources{Store: s.Store}) {
		t.Errorf("as root with all rights everything works but a service manager's store, and the status says: %#v", s)
	}
	d.Kill()
	d.Start()
	d.WaitReady()
	resp, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"handoverd_keeper 1\n", `handoverd_terminations_total{kind="no_notice"} 1` + "\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in the metrics:\n%s", want, text)
		}
	}
	d.Stop()
}

// TestFilesOfTheGone: what a generation has left below the runtime directory goes, also when it died while no handoverd ran,
// and when handoverd was killed between writing down that it is gone and removing its files. What it wrote is passed on.
func TestFilesOfTheGone(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{mode: "accept-notify", when: "notify"})
	_, pid := s.Serving("web")
	s.Kill()
	endStray(pid)
	for name, text := range map[string]string{"notify/web.77": "", "log/web.77": "its last words\n", "log/web.77.offset": "", "log/web.78.offset": "", "log/.beside-1": ""} {
		if err := os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.Start()
	s.WaitStatus("generation 2 serves", func(st *supervisor.Status) bool {
		g := st.Services[0].Generations
		return st.Ready && len(g) == 1 && g[0].Generation == 2
	})
	s.WaitLog("web.77 | its last words\n")
	want := []string{"log/web.2", "log/web.2.offset", "notify/web.2"}
	var got []string
	eventually(t, "only the files of generation 2 are there", func() bool {
		got = nil
		for _, dir := range []string{"log", "notify"} {
			files, err := os.ReadDir(filepath.Join(s.Dir, dir))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				got = append(got, dir+"/"+f.Name())
			}
		}
		return slices.Equal(got, want)
	})
	s.Stop()
}

// TestFilesOfAnotherBoot: the same after a restart of the machine, and where the state is damaged: in a runtime directory on a
// disk they would stay for ever.
func TestFilesOfAnotherBoot(t *testing.T) {
	for name, generation := range map[string]int{"another boot": 2, "damaged": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, childService{mode: "accept-notify", when: "notify"})
			_, pid := s.Serving("web")
			s.Kill()
			endStray(pid)
			path := filepath.Join(s.Dir, "state.json")
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			before, after, ok := strings.Cut(string(text), `"boot_id":"`)
			if !ok {
				t.Fatalf("no boot in %s", text)
			}
			edited := before + `"boot_id":"x` + after
			if name == "damaged" {
				edited = before
			}
			if err := os.WriteFile(path, []byte(edited), 0o600); err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string]string{"notify/web.77": "", "log/web.77": "its last words\n", "log/web.77.offset": ""} {
				if err := os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s.Start()
			s.WaitReady()
			if now, _ := s.Serving("web"); now != generation {
				t.Errorf("generation %d serves, want %d", now, generation)
			}
			s.WaitLog("web.77 | its last words\n")
			want := []string{fmt.Sprintf("log/web.%d", generation), fmt.Sprintf("log/web.%d.offset", generation), fmt.Sprintf("notify/web.%d", generation)}
			eventually(t, "only the files of what runs are there", func() bool {
				logs, err1 := filepath.Glob(filepath.Join(s.Dir, "log", "*"))
				sockets, err2 := filepath.Glob(filepath.Join(s.Dir, "notify", "*"))
				if err := errors.Join(err1, err2); err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, path := range append(logs, sockets...) {
					rel, err := filepath.Rel(s.Dir, path)
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, rel)
				}
				return slices.Equal(got, want)
			})
			s.Stop()
		})
	}
}

// TestStateSaysWhatIsHeld: the state file says which sockets there are and which keeper, also where their change was the last
// thing that happened.
func TestStateSaysWhatIsHeld(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{
		mode: "accept-notify", when: "notify", socket: "http = \"tcp4://127.0.0.1:0\"\n" +
			`own = { listen = "unix:@own.` + t.Name() + `.${HANDOVER_GENERATION}", per_generation = true }`,
	})
	says := func(text string) bool {
		state, err := os.ReadFile(filepath.Join(s.Dir, "state.json"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(state), text)
	}
	if !says("#web/own#1") {
		t.Fatal("the test does not look for what is written")
	}
	s.MustReload()
	s.only("web", 2)
	eventually(t, "the state has the socket of generation 2 alone", func() bool { return !says("#web/own#1") && says("#web/own#2") })
	pid := keeperOf(s.Daemon, 0)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	next := keeperOf(s.Daemon, pid)
	eventually(t, "the state has the other keeper", func() bool { return says(fmt.Sprintf(`"keeper":{"pid":%d,`, next)) })
	s.Stop()
}
