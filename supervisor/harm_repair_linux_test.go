package supervisor

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
)

// outdatedLoop is a loop with a service whose generation 1 serves, with a socket and one of its own that were bound anew.
func outdatedLoop(t *testing.T) *loop {
	t.Helper()
	dir := t.TempDir()
	tab, s := oneSocket(t, "unix://"+filepath.Join(dir, "s"))
	own := bindFor(t, "unix://"+filepath.Join(dir, "own.1"))
	tab.add(map[string]*fdpass.Socket{"own#1": own})
	spec := &Spec{Keys: []SocketKey{{Name: "http", Key: "key"}, {Name: "own", Key: "own", Own: true}}}
	gen := &Generation{N: 1, PID: 1, Spec: spec, Phase: PhaseServing}
	l := &loop{
		log: slog.New(slog.DiscardHandler), sockets: tab, calls: make(chan func(), 4), ended: make(chan struct{}),
		children: map[at]*child{{"web", 1}: {inodes: []uint64{s.Inode(), own.Inode()}}},
		state:    State{Order: []string{"web"}, Services: map[string]*Service{"web": {Name: "web", Good: true, Spec: spec, Generations: []*Generation{gen}}}},
	}
	return l
}

// repairsAsked is how many repairs have been asked for since the last call.
func (l *loop) repairsAsked() int {
	n := len(l.pending)
	l.pending = nil
	return n
}

// What holds the sockets that are handed out is left alone; what does not is repaired, also for a socket of its own alone.
func TestRepairWhatIsOutdated(t *testing.T) {
	l := outdatedLoop(t)
	c := l.children[at{"web", 1}]
	if l.repair(); l.repairsAsked() != 0 {
		t.Error("what is up to date is repaired")
	}
	for i := range c.inodes {
		was := c.inodes[i]
		c.inodes[i], l.sockets.repairs = was+1, map[string]repairs{}
		if l.repair(); l.repairsAsked() != 1 {
			t.Errorf("a generation without the socket %d is not repaired", i)
		}
		c.inodes[i] = was
	}
	c.outdated, l.sockets.repairs = true, map[string]repairs{}
	svc := l.state.Services["web"]
	svc.Upgrade = &Upgrade{}
	if l.repair(); l.repairsAsked() != 0 {
		t.Error("it is repaired beside an upgrade")
	}
	svc.Upgrade = nil
	l.state.Jobs = []*Job{{Why: WhyRepair, Services: []string{"web"}}}
	if l.repair(); l.repairsAsked() != 0 {
		t.Error("it is repaired twice at a time")
	}
	l.state.Jobs[0].Results = []Result{{Service: "web", Outcome: OutcomeFailed}}
	if l.repair(); l.repairsAsked() != 1 {
		t.Error("after a repair that failed there is none")
	}
}

// Each repair that follows soon waits for twice as long, up to a minute, and one that comes after a quiet time does not wait.
func TestRepairsAreBounded(t *testing.T) {
	l := outdatedLoop(t)
	l.children[at{"web", 1}].outdated = true
	ago := func(d time.Duration) {
		r := l.sockets.repairs["web"]
		r.at = proc.Now().Add(-d)
		l.sockets.repairs["web"] = r
	}
	pause := mendPause
	for n := range 14 {
		if l.repair(); l.repairsAsked() != 1 {
			t.Fatalf("the %d. repair does not come when its pause is over", n+1)
		}
		if got := l.sockets.repairs["web"].pause; got != pause {
			t.Errorf("after the %d. repair it is left alone for %v, want %v", n+1, got, pause)
		}
		ago(0)
		if l.repair(); l.repairsAsked() != 0 {
			t.Fatalf("the %d. repair comes at once", n+2)
		}
		if l.sockets.repairs["web"].later == nil {
			t.Fatal("nothing looks again")
		}
		ago(pause)
		pause = min(2*pause, repairMost)
	}
	ago(repairMost + steadyAfter)
	if l.repair(); l.repairsAsked() != 1 || l.sockets.repairs["web"].pause != mendPause {
		t.Errorf("after a quiet time: %+v", l.sockets.repairs["web"])
	}
	l.sockets.repairs["web"].later.Stop()
}
