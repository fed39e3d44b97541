package supervisor

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/proc"
)

// plainServing is serving with a program that does not speak the child protocol and drains by SIGUSR1.
func plainServing(t *testing.T) *script {
	s := newScript(t).send(evReload{Request: 1, First: true}).prepared(web(func(s *Spec) { s.Drain = sigUSR1 }))
	s.reqs = 1
	s.send(evSpawned{at: g("web", 1), PID: 7}, evReady{g("web", 1), "notify"}, evSight{at: g("web", 1), Polls: true})
	return s.after(20 * time.Second).any()
}

// TestRestoredHalfDone: an upgrade that was half done is finished or rolled back, and never doubled.
func TestRestoredHalfDone(t *testing.T) {
	w1, w2 := g("web", 1), g("web", 2)
	t.Run("spawned, its pid not written", func(t *testing.T) {
		s := serving(t, web()).reload().prepared(web()).any()
		s.send(evRestored{Gone: []at{w2}}).want("reap web2", "accept web1", "ack web1", "done 2: web2 failed")
		s.wantPhase(w1, PhaseServing)
	})
	t.Run("its shim ended before go", func(t *testing.T) {
		s := serving(t, web()).reload().prepared(web()).send(evSpawned{at: w2, PID: 8}).any()
		s.send(evRestored{Gone: []at{w2}}).want("kill web2 9", "accept web1", "ack web1", "kill web2 9", "done 2: web2 failed")
		s.send(evGone{w2}).wantPhase(w1, PhaseServing).wantPhase(w2, "gone")
	})
	t.Run("starting", func(t *testing.T) { // what it says meanwhile lies in its channel
		s := serving(t, web()).reload().prepared(web()).send(evSpawned{at: w2, PID: 8}).any()
		s.send(evRestored{}).want("accept web1", "ack web1")
		s.send(evHello{w2}, evReady{w2, "native"}, evSight{at: w2, Polls: true}).after(100 * time.Millisecond)
		s.wantPhase(w2, PhaseServing).wantPhase(w1, PhaseDraining)
	})
	t.Run("its READY is lost", func(t *testing.T) { // it accepts, which is enough
		s := plainServing(t).reload().prepared(web(readyWhen("notify")))
		s.send(evSpawned{at: w2, PID: 8}, evNotify{w2}).any()
		s.send(evRestored{Deaf: []at{w1, w2}}, evSight{at: w2, Polls: true}).after(249*time.Millisecond).wantPhase(w2, PhaseStarting)
		s.after(101*time.Millisecond).wantPhase(w2, PhaseServing).wantPhase(w1, PhaseDraining)
	})
	t.Run("its READY is lost, and it never accepts", func(t *testing.T) {
		s := plainServing(t).reload().prepared(web(readyWhen("notify")))
		s.send(evSpawned{at: w2, PID: 8}, evNotify{w2}, evRestored{Deaf: []at{w1, w2}}).any()
		s.after(30*time.Second).want("kill web2 9", "done 2: web2 failed").wantPhase(w1, PhaseServing)
	})
	t.Run("remembered", func(t *testing.T) { // who asked is gone
		s := serving(t, web()).reload().prepared(web()).send(evSpawned{at: w2, PID: 8}).reload()
		s.send(evRestored{}).any()
		if len(s.s.Jobs) != 1 {
			t.Fatalf("jobs: %+v", s.s.Jobs)
		}
		s.up(w2).wantPhase(w2, PhaseServing)
		s.reload().want("accept web2", "commit web2", "ack web2", "drain web1", "job 4", "prepare 4")
	})
	t.Run("the grace went on", func(t *testing.T) {
		s := serving(t, web()).reload().prepared(web()).send(evSpawned{at: w2, PID: 8}).any()
		s.now = s.now.Add(time.Minute)
		s.send(evRestored{}).want("accept web1", "ack web1", "kill web2 9", "done 2: web2 failed").wantPhase(w1, PhaseServing)
	})
}

// TestRestoredDrain: a drain message is sent again, a signal only to one that still accepts.
func TestRestoredDrain(t *testing.T) {
	w1, w2 := g("web", 1), g("web", 2)
	draining := func(t *testing.T) *script {
		s := plainServing(t).reload().prepared(web()).up(w2)
		return s.wantPhase(w1, PhaseDraining).any()
	}
	t.Run("it has let go", func(t *testing.T) {
		s := draining(t).send(evSight{at: w1}, evRestored{}).after(5 * time.Second)
		s.want("done 2: web2 serving released", "accept web2", "ack web2")
	})
	t.Run("it lets go", func(t *testing.T) {
		s := draining(t).send(evRestored{}).any().after(500 * time.Millisecond).send(evSight{at: w1}).after(3 * time.Second)
		s.want("done 2: web2 serving released")
	})
	t.Run("it accepts on", func(t *testing.T) {
		s := draining(t).send(evRestored{}, evSight{at: w1, Polls: true}).any()
		s.after(time.Second - 1).want().after(1).want("signal web1 10").after(3 * time.Second).want()
	})
	t.Run("a library child that has not answered", func(t *testing.T) {
		s := serving(t, web(func(s *Spec) { s.Drain = sigUSR1 })).reload().prepared(web()).up(w2).any()
		s.after(900*time.Millisecond).send(evRestored{}).want("drain web1", "accept web2", "ack web2")
		s.after(900 * time.Millisecond).want().send(evAnswered{w1}).after(5 * time.Second).want("done 2: web2 serving not released")
	})
	t.Run("its deadline has passed", func(t *testing.T) {
		s := draining(t)
		s.now = s.now.Add(time.Hour)
		s.send(evRestored{})
		s.wantPhase(w1, PhaseKilling).wantPhase(w2, PhaseServing)
	})
}

// TestRestoredRelease: what fell due for a release check is judged after a look, and what belongs to one is over with it.
func TestRestoredRelease(t *testing.T) {
	w1 := g("web", 1)
	restored := func(t *testing.T, polls bool) *script {
		s := plainServing(t).reload().prepared(web()).up(g("web", 2)).wantPhase(w1, PhaseDraining).any()
		s.now = s.now.Add(10 * time.Second) // its release was to be judged meanwhile
		return s.send(evRestored{}, evSight{at: w1, Polls: polls})
	}
	t.Run("it let go meanwhile", func(t *testing.T) {
		restored(t, false).want("accept web2", "ack web2", "done 2: web2 serving released").after(10 * time.Second).want()
	})
	t.Run("it never lets go", func(t *testing.T) {
		s := restored(t, true).want("accept web2", "ack web2").after(time.Second).want("signal web1 10")
		s.after(time.Second - 1).want().after(1).want("done 2: web2 serving not released")
	})
	for name, e := range map[string]evSight{"it lets go": {at: w1}, "it cannot be seen": {at: w1, Blind: true}} {
		t.Run(name, func(t *testing.T) { // nothing is left that is no deadline
			s := restored(t, true).send(e).any()
			due := nextDeadline(&s.s, s.now)
			if got := s.s.Services["web"].gen(1); due != got.TermAt && due != got.KillAt {
				t.Fatalf("the next deadline is %v: %+v", due, got)
			}
			next, acts := transition(s.s, evTick{}, due-1)
			if d := cmp.Diff(s.s, next); d != "" || len(acts) > 0 {
				t.Errorf("before the next deadline: %v\n%s", acts, d)
			}
		})
	}
}

// TestRestoredBake: a stop has ended its bake, and the reload was refused: it does not bake for ever.
func TestRestoredBake(t *testing.T) {
	w1, w2 := g("web", 1), g("web", 2)
	lame := func(s *Spec) { s.Config.Stop.LameDuck.For = 5 * time.Second }
	stopped := func(t *testing.T) *script {
		s := serving(t, web(lame)).reload().prepared(web(lame, bakes(time.Minute))).up(w2).wantPhase(w2, PhaseBaking).any()
		return s.send(evStop{}).want("lame web1", "lame web2", "done 2: web0 refused").wantPhase(w2, PhaseBaking)
	}
	t.Run("it is rolled back", func(t *testing.T) {
		s := stopped(t).send(evRestored{}).want("accept web1", "ack web1", "drain web2")
		s.wantPhase(w1, PhaseServing).wantPhase(w2, PhaseDraining).failure("web", PhaseBaking, "stopping")
	})
	t.Run("the old one is gone", func(t *testing.T) {
		s := stopped(t).send(evRestored{Gone: []at{w1}}).want("kill web1 15", "accept web2", "commit web2", "ack web2")
		s.wantPhase(w2, PhaseServing)
	})
	t.Run("it is gone", func(t *testing.T) {
		s := stopped(t).send(evRestored{Gone: []at{w2}}).any()
		s.wantPhase(w1, PhaseServing).wantPhase(w2, PhaseKilling).end(w2, 0).wantPhase(w2, "gone")
	})
	t.Run("no stop", func(t *testing.T) {
		s := serving(t, web()).reload().prepared(web(bakes(time.Minute))).up(w2).any().send(evRestored{}).any()
		s.after(time.Minute).wantPhase(w2, PhaseServing)
	})
}

// TestRestoredDeath: what has died meanwhile is replaced, with its back-off.
func TestRestoredDeath(t *testing.T) {
	w1 := g("web", 1)
	s := serving(t, web()).send(evRestored{Gone: []at{w1}}).want("kill web1 15", "spawn web2")
	s.failure("web", PhaseServing, "its exit status went to nobody")
	s.send(evGone{w1}).any()
	s = newScript(t).send(evReload{Request: 1, First: true}).prepared(web()).up(w1).end(w1, crash).any() // in back-off
	at, failures := s.s.Services["web"].Restart.At, s.s.Services["web"].Failures
	s.send(evRestored{}).want()
	if r := s.s.Services["web"].Restart; r.At != at || s.s.Services["web"].Failures != failures {
		t.Errorf("the back-off became %+v", r)
	}
	s.after(time.Second).want("spawn web2")
}

// TestRestoredStop: a stop does not go on. What was not told yet serves on, what was told is replaced.
func TestRestoredStop(t *testing.T) {
	w1 := g("web", 1)
	s := serving(t, web())
	s.full = true // its queue is never seen empty
	s.send(evStop{}).wantPhase(w1, PhaseDraining).any()
	s.send(evRestored{}).want("accept web1", "ack web1").wantPhase(w1, PhaseServing)
	if s.s.Stop != nil || nextDeadline(&s.s, s.now) != 0 {
		t.Errorf("of the stop is left: %+v, deadline %v", s.s.Stop, nextDeadline(&s.s, s.now))
	}
	s.reload().any().prepared(web()).up(g("web", 2)).wantPhase(g("web", 2), PhaseServing)

	s = serving(t, web())
	s.full = true
	s.send(evStop{}).any()
	untold := s.s.Services["web"].gen(1).KillAt
	s.now = untold.Add(-time.Second)
	s.send(evRestored{Gone: []at{w1}}).want("kill web1 15", "spawn web2").wantPhase(w1, PhaseEnding)
	if got := s.s.Services["web"].gen(1).KillAt; got > untold {
		t.Errorf("the deadline of what died moved from %v to %v", untold, got)
	}

	// One that an upgrade had replaced is not what serves when its successor has died.
	two := web(func(s *Spec) { s.Keys = append(s.Keys, SocketKey{Name: "more", Key: "tcp:81"}) })
	s = serving(t, two)
	s.full = true
	s.reload().prepared(web()).up(g("web", 2)).send(evStop{}).any()
	if !s.s.Services["web"].gen(1).Untold {
		t.Fatal("it was told before its queue was empty")
	}
	s.send(evRestored{Gone: []at{g("web", 2)}}).wantPhase(w1, PhaseDraining).wantPhase(g("web", 3), PhaseStarting)

	s = serving(t, web()).send(evStop{}).wantPhase(w1, PhaseDraining).any()
	kill := s.s.Services["web"].gen(1).KillAt
	s.send(evRestored{}).want("drain web1", "spawn web2")
	if got := s.s.Services["web"].gen(1).KillAt; got != kill {
		t.Errorf("the deadline of what was told moved from %v to %v", kill, got)
	}
}

// written is a state file as it is written, of a service that serves beside one that starts.
func written(t *testing.T) (dir *runtimeDir, text []byte) {
	t.Helper()
	d := &runtimeDir{path: t.TempDir()}
	s := serving(t, web()).reload().prepared(web())
	if err := d.save(&s.s, held{PIDNS: 7, Sockets: map[string]heldSocket{"tcp:80": {Inode: 9}}}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(d.file("state.json"))
	if err != nil {
		t.Fatal(err)
	}
	return d, text
}

// TestStateEveryPrefix: whatever part of the state file has come to the disk, it is set aside or is whole.
func TestStateEveryPrefix(t *testing.T) {
	d, text := written(t)
	for n := range len(text) + 1 {
		if err := os.WriteFile(d.file("state.json"), text[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := d.readState("boot", 7)
		if whole := n == len(text); (s != nil) != whole || (err == nil) != whole {
			t.Fatalf("%d of %d bytes: %v, %v", n, len(text), s, err)
		}
		if n < len(text) {
			if aside, err := os.ReadFile(d.file("state.json.damaged")); err != nil || string(aside) != string(text[:n]) {
				t.Fatalf("%d bytes set aside: %q, %v", n, aside, err)
			}
		}
	}
	for name, c := range map[string]struct {
		boot    string
		pidns   uint64
		change  func(string) string
		aside   string
		why     string
		numbers bool
	}{
		"newer":                 {"boot", 7, func(s string) string { return strings.Replace(s, `"version":2`, `"version":3`, 1) }, "newer", "newer handoverd", false},
		"zeros":                 {"boot", 7, func(s string) string { return strings.Repeat("\x00", len(s)) }, "damaged", "invalid", false},
		"two serve":             {"boot", 7, func(s string) string { return strings.Replace(s, `"starting"`, `"serving"`, 1) }, "damaged", "not a state", false},
		"another boot":          {"reboot", 7, nil, "", "restarted", true},
		"another pid namespace": {"boot", 8, nil, "", "pid namespace 7", true},
	} {
		t.Run(name, func(t *testing.T) {
			d, text := written(t)
			if c.change != nil {
				changed := c.change(string(text))
				if changed == string(text) {
					t.Fatalf("nothing to change in %s", text)
				}
				if err := os.WriteFile(d.file("state.json"), []byte(changed), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s, err := d.readState(c.boot, c.pidns)
			if err == nil || !strings.Contains(err.Error(), c.why) || (s != nil) != c.numbers || errors.Is(err, errElsewhere) != c.numbers {
				t.Errorf("read: %v, %v", s, err)
			}
			if c.numbers && numbersOf(&s.State)["web"] != 2 {
				t.Errorf("numbers: %v", numbersOf(&s.State))
			}
			_, statErr := os.Stat(filepath.Join(d.path, "state.json."+c.aside))
			if c.aside != "" && statErr != nil {
				t.Error(statErr)
			}
		})
	}
}

// TestLostRename: a temporary file that was never renamed is passed over, and replaced by the next write.
func TestLostRename(t *testing.T) {
	d, _ := written(t)
	if err := os.WriteFile(d.file(".state.json.tmp"), []byte("half a st"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := d.readState("boot", 7)
	if err != nil || s == nil {
		t.Fatalf("%v, %v", s, err)
	}
	if err := d.save(&State{Version: StateVersion, BootID: "boot"}, held{PIDNS: 7}); err != nil {
		t.Fatal(err)
	}
	if s, err := d.readState("boot", 7); err != nil || len(s.Order) != 0 {
		t.Errorf("%v, %v", s, err)
	}
}

// FuzzStateFile: whatever the state file holds, it is refused or the next handoverd can go on from it: whatever is gone
// and whoever is deaf, without a panic and with every deadline acted upon.
func FuzzStateFile(f *testing.F) {
	for seed := range uint64(8) {
		w := newWalk(seed)
		w.step(evReload{First: true, Request: 1})
		for range 10 + seed {
			w.step(w.next(&w.state))
		}
		b, err := encodeState(&w.state, held{PIDNS: 1})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(stamped(b, 5), seed)
	}
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		saved, err := decodeState(text)
		if err != nil {
			return
		}
		w := newWorld(seed)
		w.hostile = true
		w.now = proc.Instant(w.rnd.Int64N(1 << 40))
		var e evRestored
		for _, name := range saved.Order {
			for _, g := range saved.Services[name].Generations {
				switch w.rnd.IntN(3) {
				case 0:
					e.Gone = append(e.Gone, at{name, g.N})
				case 1:
					e.Deaf = append(e.Deaf, at{name, g.N})
				}
			}
		}
		next, _ := transition(saved.State, e, w.now)
		if next.Stop != nil {
			t.Fatal("a stop goes on")
		}
		for _, svc := range next.Services {
			for _, g := range svc.Generations {
				if (g.Phase == PhaseDraining || g.Phase == PhaseEnding) && (g.KillAt == 0 || w.now >= g.KillAt) {
					t.Fatalf("%s generation %d passes its deadline", svc.Name, g.N)
				}
			}
		}
	})
}

// TestOpenExactly: a number that belongs to another process now is nobody's.
func TestOpenExactly(t *testing.T) {
	started, err := proc.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if fd := openExactly(os.Getpid(), started+1); fd >= 0 {
		closeFDs(map[string]int{"": fd})
		t.Error("a process with another start time was opened")
	}
	if fd := openExactly(0, started); fd >= 0 {
		closeFDs(map[string]int{"": fd})
		t.Error("process 0 was opened")
	}
	fd := openExactly(os.Getpid(), started)
	if fd < 0 {
		t.Error("the process itself was not opened")
	}
	closeFDs(map[string]int{"": fd})
}

// TestJudge: a life that nobody closed ended without notice, or in a stop.
func TestJudge(t *testing.T) {
	d := &runtimeDir{path: t.TempDir()}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	life := func(found *savedState) *loop {
		l := &loop{dir: d, log: log, found: found}
		l.beginLife()
		return l
	}
	life(nil)
	l := life(nil) // the one before was killed
	if want := (Terminations{NoNotice: 1, Last: endNoNotice}); l.ends != want {
		t.Errorf("%+v, want %+v", l.ends, want)
	}
	l.endLife(nil)
	if l = life(nil); l.ends != (Terminations{NoNotice: 1, Whole: 1, Last: endWhole}) {
		t.Errorf("%+v", l.ends)
	}
	l.code = ExitCut
	l.endLife(nil)
	l = life(nil)
	l.endLife(errors.New("could not start")) // counts for nothing
	if l = life(nil); l.ends != (Terminations{NoNotice: 1, Whole: 1, Cut: 1, Last: endCut}) {
		t.Errorf("%+v", l.ends)
	}
	if l = life(&savedState{State: State{Stop: &Stop{}}}); l.ends.Cut != 2 { // killed in a stop
		t.Errorf("%+v", l.ends)
	}
	if err := os.WriteFile(d.file(livesFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l = life(nil); l.ends != (Terminations{}) {
		t.Errorf("from a damaged file: %+v", l.ends)
	}
	if l = life(nil); l.ends != (Terminations{NoNotice: 1, Last: endNoNotice}) {
		t.Errorf("after the life that has found it: %+v", l.ends)
	}
}

// TestLockSoon: the lock of a dead owner is waited for, that of a living one is not.
func TestLockSoon(t *testing.T) {
	open := func(path string) *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	path := filepath.Join(t.TempDir(), "lock")
	first, second := open(path), open(path)
	if err := lockSoon(first); err != nil {
		t.Fatal(err)
	}
	if _, err := first.WriteString(strconv.Itoa(os.Getpid())); err != nil {
		t.Fatal(err)
	}
	if err := lockSoon(second); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("beside a living owner: %v", err)
	}
	dead := exec.Command("/bin/sleep", "1000")
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	if err := first.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if _, err := first.WriteAt([]byte(strconv.Itoa(dead.Process.Pid)+"\n"), 0); err != nil {
		t.Fatal(err)
	}
	locked := make(chan error, 1)
	go func() { locked <- lockSoon(second) }()  // waited for below
	if err := dead.Process.Kill(); err != nil { // nobody waits for it: a zombie has its number
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = unlock(first) })
	if err := <-locked; err != nil {
		t.Errorf("beside one that has been killed: %v", err)
	}
	_ = dead.Wait()
	if err := errors.Join(unlock(second), flock(first)); err != nil {
		t.Fatal(err)
	}
	if _, err := first.WriteAt([]byte("4194304999"), 0); err != nil { // no process has such a number
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = first.Close() }) // the copy of it that a fork had
	if err := lockSoon(second); err != nil {
		t.Errorf("after a dead owner: %v", err)
	}
}

// TestStrangerOfTheSameTick: a process that began in the tick in which the state was written may have been given the
// number of a generation since then. It is not taken for what is left of that.
func TestStrangerOfTheSameTick(t *testing.T) {
	started, err := proc.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const tick = proc.Instant(10 * time.Millisecond)
	for saved, ours := range map[proc.Instant]bool{
		proc.Instant(started) * tick: false, proc.Instant(started+1)*tick - 1: false, proc.Instant(started+1) * tick: true,
	} {
		gen := &Generation{N: 1, PID: os.Getpid(), StartTime: started - 1}
		c := verified(g("web", 1), gen, saved)
		if c.proc.Pidfd() >= 0 {
			t.Error("a process with another start time was opened")
		}
		if got := started <= c.bound(); got != ours {
			t.Errorf("state of %v, process of tick %d: counts %v, want %v", saved, started, got, ours)
		}
	}
}

// TestStrangerAfterTwoKills: the state is written again by a handoverd that has found the process gone, and is killed as
// well. A process that has been given the number in between is still not taken for what is left of the generation.
func TestStrangerAfterTwoKills(t *testing.T) {
	started, err := proc.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const tick = proc.Instant(10 * time.Millisecond)
	first, second := proc.Instant(started-5)*tick, proc.Instant(started+5)*tick // this process began between the two
	s := plainServing(t)
	gen := s.s.Services["web"].gen(1)
	gen.PID, gen.StartTime = os.Getpid(), started-10
	if c := verified(g("web", 1), gen, first); started <= c.bound() {
		t.Fatal("the first one takes it for its own")
	}
	b, err := encodeState(&s.s, held{PIDNS: 1})
	if err != nil {
		t.Fatal(err)
	}
	saved, err := decodeState(stamped(b, second))
	if err != nil {
		t.Fatal(err)
	}
	if c := verified(g("web", 1), saved.Services["web"].gen(1), saved.Saved); started <= c.bound() {
		t.Error("the second one takes it for its own")
	}

	// The same where it had been adopted, and its end was seen.
	s = plainServing(t)
	s.send(evUnheld{g("web", 1), first}, evExited{g("web", 1), statusUnknown}).any()
	if c := verified(g("web", 1), s.s.Services["web"].gen(1), second); started <= c.bound() {
		t.Error("an end that was seen is forgotten")
	}
}

// TestRestoredKilling: handoverd is killed between the SIGKILL of a generation and the end of it. What else the generation has
// started is ended by the next one.
func TestRestoredKilling(t *testing.T) {
	w1 := g("web", 1)
	for name, gone := range map[string][]at{"it has ended": {w1}, "it lives": nil} {
		s := plainServing(t).reload().prepared(web()).up(g("web", 2)).wantPhase(w1, PhaseDraining).any()
		s.now = s.s.Services["web"].gen(1).KillAt
		s.send(evTick{}).wantPhase(w1, PhaseKilling).any()
		if s.s.Services["web"].gen(1).Exited {
			t.Fatal("its end was seen already")
		}
		s.send(evRestored{Gone: gone})
		if !slices.Contains(s.acts, "kill web1 9") {
			t.Errorf("%s: nobody ends what is left of it: %v", name, s.acts)
		}
		s.any().end(w1, 0).wantPhase(w1, "gone")
	}
}

// TestRestoredRepair: nobody has asked for a repair, so it is not forgotten with who asked.
func TestRestoredRepair(t *testing.T) {
	for _, stage := range []JobStage{JobPreparing, JobRemembered} {
		s := plainServing(t)
		if stage == JobRemembered {
			s.reload().any() // another one is under way
		}
		s.send(evReload{Services: []string{"web"}, Why: WhyRepair}).any()
		jobs := s.s.Jobs
		if j := jobs[len(jobs)-1]; j.Stage != stage || j.Why != WhyRepair {
			t.Fatalf("%+v, want it %s", j, stage)
		}
		s.send(evRestored{})
		if len(s.s.Jobs) != 1 || s.s.Jobs[0].Stage != JobPreparing || s.s.Jobs[0].Why != WhyRepair {
			t.Errorf("%s: after it: %+v", stage, s.s.Jobs)
		}
	}
}

func unlock(f *os.File) error {
	return control(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_UN) })
}
