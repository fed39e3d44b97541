//go:build linux

package handover_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// A generation that does not run when it is told to drain, because it is stopped here, and elsewhere because the machine is
// busy, has not refused to answer: the drain signal would end it with all that it has accepted. It is waited for, and drains
// as soon as it runs.
func TestScenarioFrozen(t *testing.T) {
	t.Parallel()
	for _, killed := range []bool{false, true} {
		t.Run(map[bool]string{false: "handoverd lives", true: "handoverd is killed meanwhile"}[killed], func(t *testing.T) {
			t.Parallel()
			s := newScene(t, childService{retire: "answer_timeout = \"300ms\""})
			fresh, posts := s.fresh(s.address("web", "http")), s.posts(s.address("web", "http"))
			_, pid := s.Serving("web")
			if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			s.HUP()
			s.reaches("web", 1, supervisor.PhaseDraining)
			s.WaitLog("the drain message has not been read for 300ms")
			if killed {
				s.Kill()
				s.Start()
				s.WaitReady()
				s.events = s.Follow()
			}
			fresh.more(100) // of the new generation, for some time more
			if err := unix.Kill(pid, unix.SIGCONT); err != nil {
				t.Fatal(err)
			}
			s.only("web", 2)
			posts.sees(2)
			fresh.end()
			posts.end()
			s.Stop()
		})
	}
}
