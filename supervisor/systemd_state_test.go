package supervisor

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/internal/proc"
)

// said collects what a service manager would be told now.
func (t *tidings) said(s *State, now proc.Instant) []string {
	var out []string
	for {
		say, after := t.next(s, now, func() uint64 { return 42 })
		if say == "" {
			return out
		}
		*t = after
		out = append(out, say)
	}
}

const second = proc.Instant(time.Second)

func managedState(phases ...Phase) *State {
	svc := &Service{Name: "web"}
	for i, p := range phases {
		svc.Generations = append(svc.Generations, &Generation{N: i + 1, Phase: p})
	}
	return &State{Services: map[string]*Service{"web": svc}, Order: []string{"web"}}
}

func TestTidings(t *testing.T) {
	first := managedState(PhaseStarting)
	first.Jobs = []*Job{{ID: 1, First: true}}
	first.Services["web"].Generations[0].GraceEnds = 160 * second
	reloading := managedState(PhaseServing, PhaseStarting)
	reloading.Jobs = []*Job{{ID: 2}}
	reloading.Services["web"].Generations[1].GraceEnds = 110 * second
	stopping := managedState(PhaseDraining)
	stopping.Stop = &Stop{Hard: 125 * second}
	serves := managedState(PhaseServing)
	now := 100 * second

	for _, row := range []struct {
		name string
		t    tidings
		s    *State
		want []string
	}{
		{
			"a slow start asks for its grace and some more",
			tidings{},
			first,
			[]string{"STATUS=starting; web: generation 1 starts|EXTEND_TIMEOUT_USEC=65000000"},
		},
		{"nothing twice", tidings{status: "starting; web: generation 1 starts", promised: 165 * second}, first, nil},
		{
			"asked again before it is over",
			tidings{began: true, reloading: true, status: "reloading; web: generation 1 serves, generation 2 starts", promised: 114 * second},
			reloading,
			[]string{"EXTEND_TIMEOUT_USEC=30000000"},
		},
		{"ready once all serve", tidings{}, serves, []string{"READY=1|STATUS=web: generation 1 serves"}},
		{"what was down when handoverd was killed does not hold READY up", tidings{restored: true}, managedState(), []string{"READY=1|STATUS=web: down"}},
		{"not ready", tidings{}, managedState(), []string{"STATUS=web: down"}},
		{
			"a reload that was over before anybody was told has both",
			tidings{began: true, asked: true, status: "web: generation 1 serves", trouble: "the last reload refused: why"},
			serves,
			[]string{"RELOADING=1|MONOTONIC_USEC=42|STATUS=the last reload refused: why; web: generation 1 serves", "READY=1"},
		},
		{
			"asked again in a reload",
			tidings{began: true, reloading: true, asked: true, status: "reloading; web: generation 1 serves, generation 2 starts", promised: 130 * second},
			reloading,
			[]string{"RELOADING=1|MONOTONIC_USEC=42"},
		},
		{
			"a reload in the start is the start",
			tidings{asked: true},
			first,
			[]string{"STATUS=starting; web: generation 1 starts|EXTEND_TIMEOUT_USEC=65000000"},
		},
		{
			"a stop in a reload",
			tidings{began: true, reloading: true, asked: true},
			stopping,
			[]string{"STOPPING=1|STATUS=stopping; web: 1 draining|EXTEND_TIMEOUT_USEC=30000000"},
		},
		{"nothing after it", tidings{began: true, stopping: true, asked: true, reloading: true, status: "stopping; web: 1 draining", promised: 130 * second}, stopping, nil},
		{"the watchdog is fed at half of its time", tidings{began: true, status: "web: generation 1 serves", watchdog: 10 * time.Second, fed: 95 * second}, serves, []string{"WATCHDOG=1"}},
		{"and not before", tidings{began: true, status: "web: generation 1 serves", watchdog: 10 * time.Second, fed: 95*second + 1}, serves, nil},
	} {
		got := row.t.said(row.s, now)
		for i := range got {
			got[i] = strings.ReplaceAll(got[i], "\n", "|")
		}
		if d := cmp.Diff(row.want, got); d != "" {
			t.Errorf("%s (want, got):\n%s", row.name, d)
		}
		if next := row.t.wake(); next != 0 && next < now {
			t.Errorf("%s: wakes up in the past, at %v", row.name, next)
		}
		idle := len(row.s.Jobs) == 0 && row.s.Stop == nil && row.t.watchdog == 0
		if next := row.t.wake(); idle && next != 0 {
			t.Errorf("%s: wakes up at %v, and nothing is under way", row.name, next)
		}
	}
}

// TestTidingsFit: what is said of many services, of long names and of reasons of many lines is one line that fits.
func TestTidingsFit(t *testing.T) {
	s := &State{Services: map[string]*Service{}}
	for i := range 200 {
		name := strings.Repeat("ü", 20) + strconv.Itoa(i)
		s.Services[name], s.Order = &Service{Name: name}, append(s.Order, name)
	}
	said := tidings{trouble: troubleOf(&Job{Results: []Result{{Service: "web", Outcome: OutcomeFailed, Reason: "a\nb\x00\xff" + strings.Repeat("c", 5000)}}})}
	for _, text := range said.said(s, second) {
		_, status, _ := strings.Cut(text, "STATUS=")
		if strings.ContainsAny(status, "\n\x00") || len(status) > maxStatus || !strings.HasPrefix(status, "the last reload of web failed: a b ?c") {
			t.Errorf("%q", text)
		}
	}
}
