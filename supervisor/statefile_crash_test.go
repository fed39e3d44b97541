package supervisor

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// writes are the state files of a life in which everything happens, in the order of the writes: a start, a reload that bakes,
// a death while serving, one that fails, a removed service, a stop.
func writes(t *testing.T) [][]byte {
	t.Helper()
	d := &runtimeDir{path: t.TempDir()}
	var all [][]byte
	s := newScript(t)
	note := func() {
		if err := d.save(&s.s, held{PIDNS: 7, Sockets: map[string]heldSocket{"tcp:80": {Inode: 9}}, Keeper: heldProcess{PID: 50, StartTime: 5}}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(d.file("state.json"))
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == 0 || !bytes.Equal(text, all[len(all)-1]) {
			all = append(all, text)
		}
	}
	w1, w2, w3 := g("web", 1), g("web", 2), g("web", 3)
	bakes := func(s *Spec) { s.Config.Ready.Bake = time.Second }
	spawned := func(a at) event { return evSpawned{at: a, PID: 100 + a.Gen, StartTime: 1, Token: "t"} }
	note()
	for _, step := range []func(){
		func() { s.send(evReload{Request: 1, First: true}) }, func() { s.prepared(web(), testSpec("app")) },
		func() { s.send(spawned(w1)) }, func() { s.up(w1) }, func() { s.up(g("app", 1)) }, func() { s.after(20 * time.Second) },
		func() { s.reload("web") }, func() { s.prepared(web(bakes)) }, func() { s.send(spawned(w2), evHello{w2}) },
		func() { s.send(evReady{w2, "native"}, evSight{at: w2, Polls: true}) }, func() { s.after(200 * time.Millisecond) },
		func() { s.after(time.Second) }, func() { s.send(evSight{at: w1}) }, func() { s.send(evExited{w1, 0}) }, func() { s.send(evGone{w1}) },
		func() { s.send(evExited{w2, crash}) }, func() { s.send(evGone{w2}) }, func() { s.send(spawned(w3)) },
		func() { s.send(evExited{w3, crash}) }, func() { s.send(evGone{w3}) }, func() { s.after(time.Second) },
		func() { s.reload() }, func() { s.prepared(web()) }, func() { s.after(time.Second) },
		func() { s.send(evStop{}) }, func() { s.after(10 * time.Second) },
	} {
		step()
		note()
	}
	return all
}

// TestStateCrashes: handoverd, or the machine, ends in the middle of a write of the state: of any write, after any part of it,
// with its rename lost, with the directory not synced, or with the rename on the disk before what was written. What the
// next start reads is the state of before or the new one, whole, or nothing; and what it makes of it signals no process
// that the state does not name.
func TestStateCrashes(t *testing.T) {
	all := writes(t)
	if len(all) < 20 {
		t.Fatalf("only %d writes", len(all))
	}
	const every = 499 // bytes; TestStateEveryPrefix takes each
	starts, dir := 0, t.TempDir()
	for i, text := range all {
		var before []byte // nil: there was none
		if i > 0 {
			before = all[i-1]
		}
		check := func(what string, state, temp []byte) {
			t.Helper()
			d := &runtimeDir{path: dir}
			for name, content := range map[string][]byte{"state.json": state, ".state.json.tmp": temp, "state.json.damaged": nil} {
				if content == nil {
					_ = os.Remove(d.file(name))
					continue
				}
				if err := os.WriteFile(d.file(name), content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			saved, err := d.readState("boot", 7)
			whole := state == nil || bytes.Equal(state, text) || before != nil && bytes.Equal(state, before)
			switch {
			case whole && (err != nil || (saved != nil) != (state != nil)):
				t.Fatalf("write %d, %s: %v, %v", i, what, saved, err)
			case !whole && (err == nil || saved != nil || errors.Is(err, errElsewhere)):
				t.Fatalf("write %d, %s: obeyed: %v, %v", i, what, saved, err)
			case !whole:
				if _, err := os.Stat(d.file("state.json.damaged")); err != nil {
					t.Fatalf("write %d, %s: %v", i, what, err)
				}
			case saved != nil:
				starts += restoredWell(t, saved)
			}
		}
		check("the rename lost, or the directory not synced", before, text)
		check("all of it", text, nil)
		for n := 0; n < len(text); n += every {
			check("a part of it in the temporary file", before, text[:n])
			check("the rename before the end of it", text[:n], nil)
			late := make([]byte, len(text)) // blocks that never came to the disk are zeros
			copy(late, text[:n])
			check("the rename before its last blocks", late, nil)
			copy(late, make([]byte, n))
			copy(late[n:], text[n:])
			if n > 0 {
				check("the rename before its first blocks", late, nil)
			}
		}
	}
	t.Logf("%d writes, %d starts that go on", len(all), starts)
}

// restoredWell goes on with a state, with all of its processes gone, and with none.
func restoredWell(t *testing.T, saved *savedState) int {
	t.Helper()
	var gone, never []at // never: there was no process yet
	known := map[at]bool{}
	for name, svc := range saved.Services {
		for _, gen := range svc.Generations {
			gone, known[g(name, gen.N)] = append(gone, g(name, gen.N)), gen.PID != 0
			if gen.PID == 0 {
				never = append(never, g(name, gen.N))
			}
		}
	}
	for _, e := range []evRestored{{Gone: never}, {Gone: gone}, {Gone: never, Deaf: gone}} {
		next, actions := transition(saved.State, e, proc.Instant(1e15))
		if err := next.validate(); err != nil {
			t.Fatalf("after %+v: %v", e, err)
		}
		for _, a := range actions {
			var to at
			switch a := a.(type) {
			case acKill:
				to = a.at
			case acSignal:
				to = a.at
			default:
				continue
			}
			if !known[to] {
				t.Fatalf("after %+v: %s of a process that the state does not name", e, tell(a))
			}
		}
	}
	return 3
}
