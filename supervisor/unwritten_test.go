package supervisor

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// unwritable is a loop whose state file cannot be written until the function returned is called: a folder is in the place of
// the temporary file.
func unwritable(t *testing.T) (*loop, func()) {
	t.Helper()
	dir := t.TempDir()
	s, err := New(Options{Log: slog.New(slog.DiscardHandler), Load: func() (*Config, error) { return &Config{RuntimeDir: dir}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	l, err := newLoop(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.output.close(0)
		if err := l.dir.close(false); err != nil {
			t.Error(err)
		}
	})
	l.ctx = t.Context()
	full := l.dir.file(".state.json.tmp")
	if err := os.Mkdir(full, 0o700); err != nil {
		t.Fatal(err)
	}
	return l, func() {
		if err := os.Remove(full); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStateNotWritten: beside a generation that serves nothing is spawned, told to go or committed that the state file cannot
// tell of. What keeps a service alive is done all the same.
func TestStateNotWritten(t *testing.T) {
	w1, w2 := g("web", 1), g("web", 2)
	preparedWeb := func(s *script) event {
		return evPrepared{Job: s.s.LastJob, Order: []string{"web"}, Specs: map[string]*Spec{"web": web()}}
	}
	spawned := func(a at) event { return evSpawned{at: a, PID: 100 + a.Gen, StartTime: 1, Token: "t"} }
	bakes := func(s *Spec) { s.Config.Ready.Bake = time.Minute }
	for name, c := range map[string]struct {
		story func(*script)
		last  func(*script) event // what the state cannot be written after
		want  []string
		phase map[at]Phase
	}{
		"spawn": {
			func(s *script) { s.reload() }, preparedWeb,
			[]string{"reap web2", "done 2: web2 failed"},
			map[at]Phase{w1: PhaseServing, w2: "gone"},
		},
		"go": {
			func(s *script) { s.reload().prepared(web()) }, func(*script) event { return spawned(w2) },
			[]string{"kill web2 9", "done 2: web2 failed"},
			map[at]Phase{w1: PhaseServing, w2: PhaseKilling},
		},
		"commit": {
			func(s *script) {
				s.reload().prepared(web()).send(spawned(w2), evHello{w2}, evReady{w2, "native"}).after(100 * time.Millisecond)
			},
			func(*script) event { return evSight{at: w2, Polls: true} },
			[]string{"drain web2", "done 2: web2 failed"},
			map[at]Phase{w1: PhaseServing, w2: PhaseDraining},
		},
		"commit after the bake": {
			func(s *script) {
				s.reload().prepared(web(bakes)).up(w2)
				s.now = s.now.Add(time.Minute)
			},
			func(*script) event { return evTick{} },
			[]string{"drain web2", "done 2: web2 failed"},
			map[at]Phase{w1: PhaseServing, w2: PhaseDraining},
		},
		"restart": {
			func(*script) {}, func(*script) event { return evExited{w1, crash} },
			[]string{"kill web1 15", "spawn web2"},
			map[at]Phase{w1: PhaseEnding, w2: PhaseStarting},
		},
		"go of a restart": {
			func(s *script) { s.end(w1, crash) }, func(*script) event { return spawned(w2) },
			[]string{"go web2"},
			map[at]Phase{w2: PhaseStarting},
		},
		"stop": {
			func(*script) {}, func(*script) event { return evStop{} },
			nil,
			map[at]Phase{w1: PhaseDraining},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, mend := unwritable(t)
			s := serving(t, web())
			c.story(s)
			l.state, s.acts = s.s, nil
			for _, a := range l.decide(c.last(s), s.now) {
				if text := tell(a); text != "" {
					s.acts = append(s.acts, text)
				}
			}
			slices.Sort(s.acts)
			slices.Sort(c.want)
			if diff := cmp.Diff(c.want, s.acts); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
			s.s = l.state
			for a, phase := range c.phase {
				s.wantPhase(a, phase)
			}
			if f := l.state.Services["web"].Failure; c.phase[w1] == PhaseServing && (f == nil || !strings.Contains(f.Reason, "the state could not be written: ")) {
				t.Errorf("failure: %+v", f)
			}
			if !errors.Is(l.saveErr, unix.EISDIR) {
				t.Errorf("the error is %v", l.saveErr)
			}
			mend()
			l.decide(evTick{}, s.now)
			saved, err := l.dir.readState(l.state.BootID, l.pidns)
			if err != nil || l.saveErr != nil {
				t.Fatalf("%v, %v", err, l.saveErr)
			}
			if s.s = saved.State; s.phase(w2) != c.phase[w2] && c.phase[w2] != "" {
				t.Errorf("written is %s, want %s", s.phase(w2), c.phase[w2])
			}
		})
	}
}
