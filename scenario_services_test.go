//go:build linux

package handover_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/supervisor"
)

// outcomes are those of a report, by service.
func outcomes(r *supervisor.ReloadReport) map[string]supervisor.Outcome {
	m := map[string]supervisor.Outcome{}
	for _, res := range r.Results {
		m[res.Service] = res.Outcome
	}
	return m
}

// order is that in which services came to a phase from now on, until n of them have.
func (s *scene) order(to supervisor.Phase, n int) []string {
	s.t.Helper()
	var names []string
	for range n {
		e := s.WaitEvent(s.events, string(to), func(e supervisor.Event) bool { return e.Kind == "transition" && e.To == to })
		names = append(names, e.Service)
	}
	return names
}

// Several services: started and reloaded in their order, stopped in reverse; one that fails keeps what it had, and stops
// those that come after it.
func TestScenarioServices(t *testing.T) {
	t.Parallel()
	// The order is not that of the names, nor that of the file.
	front := childService{name: "a-front", after: "middle"}
	middle := childService{name: "middle", after: "z-base"}
	base := childService{name: "z-base"}
	beside := childService{name: "beside"}
	s := newScene(t, front, middle, base, beside)
	all := map[string]*traffic{}
	for _, name := range []string{"a-front", "middle", "z-base", "beside"} {
		all[name] = s.fresh(s.address(name, "http"))
	}
	if r := s.MustReload(); len(r.Results) != 4 {
		t.Errorf("the report has %d results, want 4: %+v", len(r.Results), r)
	}
	got := slices.DeleteFunc(s.order(supervisor.PhaseServing, 4), func(n string) bool { return n == "beside" })
	if want := []string{"z-base", "middle", "a-front"}; !slices.Equal(got, want) {
		t.Errorf("reloaded in the order %v, want %v", got, want)
	}

	digests := func() map[string]string {
		m := map[string]string{}
		for _, svc := range s.Status().Services {
			m[svc.Name] = svc.Digest
		}
		return m
	}
	before := digests()
	bad := middle
	bad.mode = "crash-init"
	s.configure(front, bad, base, beside)
	r, err := s.Reload(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]supervisor.Outcome{
		"z-base": supervisor.OutcomeServing, "middle": supervisor.OutcomeFailed,
		"a-front": supervisor.OutcomeSkipped, "beside": supervisor.OutcomeServing,
	}
	if got := outcomes(r); !maps.Equal(got, want) || r.OK() {
		t.Errorf("the reload answers %v, want %v", got, want)
	}
	s.tells("middle", 3, "exit status 3 before it was ready")
	mixed := digests()
	for name, outcome := range want {
		if serves := outcome == supervisor.OutcomeServing; (mixed[name] != before[name]) != serves {
			t.Errorf("%s is %s, its digest was %s and is %s", name, outcome, before[name], mixed[name])
		}
	}
	if mixed["z-base"] != mixed["beside"] || mixed["z-base"] != s.Status().Digest {
		t.Errorf("what was reloaded has the digests %v, the file %s", mixed, s.Status().Digest)
	}

	// The last good spec of the one that failed is the old one.
	s.kill("middle")
	all["middle"].sees(4)
	s.only("middle", 4)

	// One service alone, and the fixed file for all.
	s.configure(front, middle, base, beside)
	if r := s.MustReload("middle"); len(r.Results) != 1 || r.Results[0].Generation != 5 {
		t.Errorf("the reload of one service answers %+v", r)
	}
	s.MustReload()
	for name, tr := range all {
		tr.more(30)
		var deaths []dead
		if name == "middle" {
			deaths = append(deaths, dead{"middle", 2})
		}
		tr.end(deaths...)
	}
	for name := range all {
		s.WaitStatus(name+" has one generation", func(st *supervisor.Status) bool {
			return !slices.ContainsFunc(st.Services, func(svc supervisor.ServiceStatus) bool { return len(svc.Generations) != 1 })
		})
	}
	stopped := s.Follow()
	s.Stop()
	var ended []string
	for e := range stopped {
		if e.To == supervisor.PhaseDraining && e.Service != "beside" {
			ended = append(ended, e.Service)
		}
	}
	if want := []string{"a-front", "middle", "z-base"}; !slices.Equal(ended, want) {
		t.Errorf("stopped in the order %v, want %v", ended, want)
	}
}

// Two services that name the same bind share one socket, and each may be reloaded for itself.
func TestScenarioSharedBind(t *testing.T) {
	t.Parallel()
	socket := `http = "tcp4://127.0.0.1:` + fmt.Sprint(FreePort(t)) + `"`
	one, two := childService{name: "one", socket: socket}, childService{name: "two", socket: socket}
	s := newScene(t, one, two)
	if a, b := s.socket("one", "http"), s.socket("two", "http"); a.Inode != b.Inode || a.Inode == 0 {
		t.Errorf("the sockets are %+v and %+v, want one", a, b)
	}
	inode := s.socket("one", "http").Inode
	fresh, posts := s.fresh(s.address("one", "http")), s.posts(s.address("one", "http"))
	s.MustReload("one")
	s.MustReload("two")
	s.MustReload()
	fresh.sees(3)

	// One is removed: the other goes on with the socket, and nothing is lost.
	s.configure(two)
	if r := s.MustReload(); outcomes(r)["one"] != supervisor.OutcomeRemoved {
		t.Errorf("the reload answers %+v, want one removed", r)
	}
	s.WaitStatus("one is gone", func(st *supervisor.Status) bool { return len(st.Services) == 1 })
	fresh.sees(4)
	s.only("two", 4)
	fresh.more(50)
	if now := s.socket("two", "http").Inode; now != inode {
		t.Errorf("the shared socket was %d and is %d", inode, now)
	}
	fresh.end()
	posts.end()
	s.Stop()
}

// A service that is added serves, one that is removed is refused; nothing is lost on the others.
func TestScenarioServiceAddedRemoved(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{name: "kept"}, childService{name: "removed"})
	kept, removed := s.fresh(s.address("kept", "http")), s.fresh(s.address("removed", "http"))
	s.configure(childService{name: "kept"}, childService{name: "added", after: "kept"})
	r := s.MustReload()
	want := map[string]supervisor.Outcome{
		"kept": supervisor.OutcomeServing, "added": supervisor.OutcomeServing, "removed": supervisor.OutcomeRemoved,
	}
	if got := outcomes(r); !maps.Equal(got, want) {
		t.Errorf("the reload answers %v, want %v", got, want)
	}
	drains := s.reaches("removed", 1, supervisor.PhaseDraining).Time
	added := s.fresh(s.address("added", "http"))
	eventually(t, "the removed service's socket refuses", func() bool { return removed.Snapshot().Failures[drill.KindRefused] > 0 })
	report := removed.Run.Stop()
	t.Logf("%-11s %6d requests  %v on the removed service's socket, all after its drain began", "removed", report.Sent, report.Failures)
	for _, f := range report.Samples {
		if f.End.Before(drains) {
			t.Errorf("a request of the removed service failed %v before its drain began: %v", drains.Sub(f.End), f)
		}
	}
	s.WaitStatus("the removed service is gone", func(st *supervisor.Status) bool { return len(st.Services) == 2 })
	kept.sees(2)
	s.only("kept", 2)
	added.more(20)
	kept.more(20)
	added.end()
	kept.end()
	s.Stop()
}
