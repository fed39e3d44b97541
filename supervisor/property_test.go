package supervisor

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// TestPropertyRandomWalks walks random sequences of events and checks after every
// step all that must hold always, and at the end of each that everything that was
// asked for has been answered. HANDOVERD_WALKS sets the number of sequences,
// HANDOVERD_FIRST the seed of the first (1), and HANDOVERD_SEED walks one only and
// tells its steps.
func TestPropertyRandomWalks(t *testing.T) {
	if seed := setting(t, "HANDOVERD_SEED", -1); seed >= 0 {
		w := newWalk(uint64(seed))
		w.trace = t.Logf
		w.walk()
		if w.fault != "" {
			t.Fatal(w.fault)
		}
		return
	}
	walks := int64(100_000)
	if testing.Short() {
		walks = 1_000
	}
	walks = setting(t, "HANDOVERD_WALKS", walks)
	first := setting(t, "HANDOVERD_FIRST", 1)
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // nothing lives long here
	began := time.Now()
	var next, steps, faults atomic.Int64
	workers := runtime.GOMAXPROCS(0)
	at := make([]atomic.Int64, workers) // the seed of each worker, for the watchdog
	var seen sync.Map
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for {
				seed := first + next.Add(1) - 1
				if seed >= first+walks || faults.Load() >= 5 {
					return
				}
				at[i].Store(seed)
				w := newWalk(uint64(seed))
				w.walk()
				steps.Add(int64(w.steps))
				if w.fault != "" {
					faults.Add(1)
					t.Errorf("HANDOVERD_SEED=%d, step %d: %s", seed, w.steps, w.fault)
				}
				for what := range w.seen {
					seen.Store(what, true)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	watchdog(t, done, at)
	t.Logf("%d sequences, %d steps in %v", min(next.Load()-int64(workers), walks), steps.Load(), time.Since(began).Round(time.Millisecond))
	// A walk that never gets somewhere proves nothing about it.
	for _, what := range []string{
		"baking", "rolled back", "SIGKILL at the deadline", "SIGTERM on the ladder", "removed", "skipped", "refused",
		"rollback", "rolled back to what served before", "repair", "restart",
		"crash loop", "exit 4", "closed by a crash loop", "open again after a crash loop", "a crash loop is over",
		"waiting for a place", "restart", "exit 0", "exit 3", "stuck", "not released", "released", "merged reload",
		"through the gate", "rolled back while starting", "rolled back while baking",
		"aborted", "aborted, then a newer one",
		"lame duck by timer", "lame duck by probes", "lame duck by exec", "lame duck by http", "lame duck by max", "lame duck by stop now",
		"held after its queue was empty", "forced", "exclusive",
		"restored", "restored in a stop", "serves on after a stop",
		"upgraded", "not upgraded",
	} {
		if _, ok := seen.Load(what); !ok && faults.Load() == 0 && walks >= 20_000 {
			t.Errorf("no walk has come to: %s", what)
		}
	}
}

// setting is a number from the environment, or else the one given.
func setting(t *testing.T, name string, or int64) int64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return or
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// watchdog ends the test if a walk makes no progress: a transition that does not
// end cannot be ended.
func watchdog(t *testing.T, done <-chan struct{}, at []atomic.Int64) {
	t.Helper()
	last := make([]int64, len(at))
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			for i := range at {
				if seed := at[i].Load(); seed == last[i] {
					t.Fatalf("HANDOVERD_SEED=%d does not end", seed)
				}
				last[i] = at[i].Load()
			}
		}
	}
}

// walk is one sequence: the state, the world around it, and what has happened.
type walk struct {
	*world
	seed   uint64
	state  State
	read   State // the same after JSON
	ledger ledger
	steps  int
	fault  string
	seen   map[string]bool
	trace  func(string, ...any)
}

func newWalk(seed uint64) *walk {
	return &walk{world: newWorld(seed), seed: seed, state: emptyState(), read: emptyState(), seen: map[string]bool{}, ledger: newLedger()}
}

func (w *walk) fail(format string, args ...any) {
	if w.fault == "" {
		w.fault = fmt.Sprintf(format, args...)
	}
}

func (w *walk) walk() {
	w.requests++
	w.step(evReload{First: true, Request: w.requests})
	if w.chance(25) { // the rest begins where everything serves: else few walks come to a second generation
		w.kind = true
		w.settle()
		w.kind = false
		w.requests++
		w.step(evReload{Request: w.requests})
	}
	for n := 4 + w.rnd.IntN(16); n > 0 && w.fault == "" && !w.ledger.exited; n-- {
		w.step(w.next(&w.state))
	}
	if w.fault != "" {
		return
	}
	stop := w.chance(40)
	w.forgive(&w.state)
	if stop {
		w.step(evStop{})
	}
	w.settle()
	if w.fault == "" {
		w.settled()
	}
}

// settle goes on until nothing is left to happen.
func (w *walk) settle() {
	for n := 0; w.fault == ""; n++ {
		e := w.calm(&w.state)
		if e == nil {
			break
		}
		w.step(e)
		if n > 1000 {
			w.fail("it does not settle: %s", slimJSON(&w.state))
		}
	}
}

// step makes one transition from the state and one from what was read of it after
// JSON, and compares.
func (w *walk) step(e event) {
	w.steps++
	if e, ok := e.(evTick); ok && w.steps%2 == 0 {
		w.early(e)
	}
	prev := w.state
	next, acts := transition(prev, e, w.now)
	if w.steps%4 == 0 && !sameState(&prev, &w.read) { // which this event has not been shown yet
		w.fail("the input was changed by %#v, or by a tick before, or is not the same after JSON:\n%s\n%s", e, slimJSON(&prev), slimJSON(&w.read))
		return
	}
	again, acts2 := transition(w.read, e, w.now)
	if !sameState(&next, &again) || !same(&acts, &acts2) {
		w.fail("it behaves otherwise after JSON on %#v:\n%s\n%s\n%v\n%v", e, slimJSON(&next), slimJSON(&again), acts, acts2)
		return
	}
	read, err := w.readBack(&prev, &next)
	if err != nil {
		w.fail("state not read back: %v\n%s", err, slimJSON(&next))
		return
	}
	if w.trace != nil {
		w.trace("%v %T%+v", w.now.Sub(1e9), e, short(e))
		for _, a := range acts {
			w.trace("      %T%+v", a, a)
		}
		w.trace("   => %s", outline(&next))
	}
	w.check(&prev, e, &next, acts)
	w.state, w.read = next, read
	for _, a := range acts {
		w.carryOut(&w.state, a)
	}
	w.around(&w.state)
	if w.steps%4 == 1 && w.fault == "" { // nothing more follows from the same
		s, more := transition(next, evTick{}, w.now)
		if len(more) > 0 || !sameState(&next, &s) {
			w.fail("a second tick at the same time does something: %v", more)
		}
	}
}

func short(e event) any {
	if e, ok := e.(evPrepared); ok {
		return fmt.Sprintf("{%d %v %d %q}", e.Job, e.Order, len(e.Specs), e.Fault)
	}
	return e
}

func outline(s *State) string {
	var b strings.Builder
	for _, name := range s.Order {
		svc := s.Services[name]
		fmt.Fprintf(&b, "%s[", name)
		for _, g := range svc.Generations {
			fmt.Fprintf(&b, " %d:%s", g.N, g.Phase)
		}
		fmt.Fprintf(&b, " ] ")
		if svc.Upgrade != nil {
			fmt.Fprintf(&b, "upgrade(gen %d jobs %v waiting %v after %v) ", svc.Upgrade.Gen, svc.Upgrade.Jobs, svc.Upgrade.Waiting, svc.Upgrade.Spec.Config.After)
		}
		if svc.Restart != nil {
			fmt.Fprintf(&b, "restart(%v) ", svc.Restart.At.Sub(1e9))
		}
	}
	for _, j := range s.Jobs {
		fmt.Fprintf(&b, "job %d %s ", j.ID, j.Stage)
	}
	return b.String()
}

// early makes sure that nothing fell due between the last step and the next
// deadline: whatever does has to be one.
func (w *walk) early(evTick) {
	d := nextDeadline(&w.state, w.ledger.last)
	if w.ledger.last == 0 || d == 0 || d <= w.ledger.last+1 {
		return
	}
	for _, t := range []proc.Instant{d - 1, w.ledger.last + proc.Instant(w.rnd.Int64N(int64(d-w.ledger.last)))} {
		s, acts := transition(w.state, evTick{}, t)
		if len(acts) > 0 || !sameState(&w.state, &s) {
			w.fail("something is due at %v, before the next deadline %v: %v\n%s\n%s", t, d, acts, slimJSON(&w.state), slimJSON(&s))
			return
		}
	}
}

func (w *walk) settled() {
	l := &w.ledger
	s := &w.state
	w.checkUpgraded()
	for _, j := range s.Jobs {
		w.fail("job %d never ends: %s", j.ID, slimJSON(&w.state))
	}
	for id := 1; id <= w.requests; id++ {
		if l.answered[id] != 1 {
			w.fail("request %d was answered %d times", id, l.answered[id])
		}
	}
	for id := 1; id <= w.lames; id++ {
		if !l.lamed[id] {
			w.fail("lame duck %d was not answered", id)
		}
	}
	for id := 1; id <= s.LastJob; id++ {
		if l.done[id] != 1 {
			w.fail("job %d ended %d times", id, l.done[id])
		}
	}
	if s.Stop != nil {
		if l.exits != 1 {
			w.fail("%d exits after a stop", l.exits)
		}
		return
	}
	for name, svc := range s.Services {
		if svc.Good && svc.Serving() == nil {
			w.fail("%s does not serve in the end: %s", name, slimJSON(&w.state))
		}
		if n := len(svc.Generations); n > 1 {
			w.fail("%s has %d generations in the end: %s", name, n, slimJSON(&w.state))
		}
		if svc.Removed {
			w.fail("%s is removed and not forgotten", name)
		}
	}
}
