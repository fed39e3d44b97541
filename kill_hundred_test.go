//go:build linux

package handover_test

import (
	"context"
	"testing"
	"time"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/supervisor"
)

// The serving program is killed every 2 s, at 2,000 new connections a second: none is refused or reset, they wait in the
// accept queue; others fail only as many as the dead process had accepted and not answered, by its own account. In full
// 100 kills, in short 3 at a tenth of the load.
func TestKilledEveryTwoSeconds(t *testing.T) {
	kills, rate := 3, 200.0
	if full() {
		kills, rate = 100, 2000
	} else {
		t.Parallel()
	}
	s := newScene(t, childService{when: "native"})
	address := s.address("web", "http")
	fresh := s.load("fresh", drill.Load{Network: "tcp", Address: address, Mode: drill.ModeFresh, Rate: rate, Delay: 2 * time.Millisecond})
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience+time.Duration(kills)*10*time.Second)
	defer cancel()
	var deaths []dead
	for n := 1; n <= kills; n++ {
		s.reachesServing("web", n)
		fresh.sees(n)
		// Counted from when it serves: on a busy machine it would else be killed within its first second, which is a crash.
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
			t.Fatalf("%d of %d kills", n-1, kills)
		}
		deaths = append(deaths, dead{"web", s.kill("web")})
	}
	last := kills + 1
	s.reachesServing("web", last)
	fresh.sees(last)
	fresh.more(50)
	r := fresh.end(deaths...)
	t.Logf("%d kills at %.0f/s, p99 of what was answered %d µs", kills, rate, r.All.ValueAtQuantile(99))
	if svc := s.service("web"); svc.CrashLoop != "" {
		t.Errorf("a program that served for 2 s each time is in a crash loop: %+v", svc)
	}
	s.WaitStatus("one generation", func(st *supervisor.Status) bool { return len(st.Services[0].Generations) == 1 })
	s.Stop()
}
