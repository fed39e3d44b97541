//go:build linux

package handover_test

import (
	"fmt"
	"strings"
	"testing"
)

// TestLimitsAtStart: handoverd is started with every number of descriptors, to take over what a killed one has left. It
// takes over, or says what it lacks and leaves everything as it was: the next start takes over, and nobody is refused.
func TestLimitsAtStart(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	s, _ := newKilled(t)
	fresh := s.lightLoad()
	generation, pid := s.Serving("web")
	inode := s.socket("web", "http").Inode
	s.Kill()
	step := 18
	if full() {
		step = 1
	}
	outcomes := map[string][]int{}
	for most := 12; most <= 66; most += step { // with fewer Go's runtime does not begin
		log := len(s.Log())
		s.startUnder(t, nil, "prlimit", fmt.Sprintf("--nofile=%d:%d", most, most))
		eventually(t, "it serves or has ended", func() bool {
			st, err := s.status()
			return s.ended() || err == nil && settledStatus(st)
		})
		outcome := "takes over"
		if s.ended() {
			outcome = "refuses"
			if code, said := s.WaitExit(), s.Log()[log:]; code != 1 || !strings.Contains(said, "too many open files") {
				t.Errorf("with %d descriptors: exit code %d, and it says %q", most, code, said)
			}
			s.Start()
			s.WaitReady()
		}
		outcomes[outcome] = append(outcomes[outcome], most)
		s.settle()
		if after, now := s.Serving("web"); after != generation || now != pid {
			t.Errorf("with %d descriptors: generation %d (%d) serves, before it was %d (%d)", most, after, now, generation, pid)
			generation, pid = after, now
		}
		if got := s.socket("web", "http").Inode; got != inode {
			t.Errorf("with %d descriptors: socket %d, before it was %d", most, got, inode)
			inode = got
		}
		fresh.more(5)
		s.Kill()
	}
	t.Logf("by the number of descriptors: %v", outcomes)
	for _, outcome := range []string{"takes over", "refuses"} {
		if len(outcomes[outcome]) == 0 {
			t.Errorf("with no number it %s", outcome)
		}
	}
	s.Start()
	s.WaitReady()
	fresh.end()
	s.Stop()
}
