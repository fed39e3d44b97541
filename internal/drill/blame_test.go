package drill_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/internal/drill"
)

// TestBlame: a request that is cut in the second of two windows counts in both, and is the second's fault alone.
func TestBlame(t *testing.T) {
	asked, cut := make(chan struct{}), make(chan struct{})
	addr := breakable(t, func(p *peer) {
		p.next()
		close(asked)
		<-cut
	})
	r, err := drill.Start(t.Context(), drill.Load{Network: "tcp", Address: addr, Mode: drill.ModeFresh, Clients: 1, Requests: 1})
	if err != nil {
		t.Fatal(err)
	}
	<-asked
	first := r.Mark("reload")
	first.End()
	r.Mark("kill")
	close(cut)
	<-r.Done()
	rep := r.Stop()
	one, none := map[drill.Kind]int{drill.KindEOF: 1}, map[drill.Kind]int{}
	for i, want := range []map[drill.Kind]int{none, one} {
		if d := cmp.Diff(want, rep.Windows[i].Blamed); d != "" {
			t.Errorf("%s is blamed (-want +got):\n%s", rep.Windows[i].Name, d)
		}
		if d := cmp.Diff(one, rep.Windows[i].Failures); d != "" {
			t.Errorf("%s has (-want +got):\n%s", rep.Windows[i].Name, d)
		}
	}
	if w := rep.Windows[0]; !w.FirstBlamed.IsZero() || !w.LastBlamed.IsZero() {
		t.Errorf("the first window has no failure of its own, and saw one from %v to %v", w.FirstBlamed, w.LastBlamed)
	}
	if w := rep.Windows[1]; !w.FirstBlamed.After(w.Begin) || !w.LastBlamed.Equal(w.FirstBlamed) {
		t.Errorf("the only failure was seen from %v to %v, after %v", w.FirstBlamed, w.LastBlamed, w.Begin)
	}
	if d := cmp.Diff(one, rep.InsideFailures); d != "" {
		t.Errorf("inside (-want +got):\n%s", d)
	}
}
