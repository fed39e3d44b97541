package supervisor

import (
	"encoding/json"
	"testing"

	"github.com/handoverd/handover/internal/proc"
)

// FuzzState: whatever a state file holds, it is refused or transition can go on
// from it: no panic, and every deadline that has passed is acted upon.
func FuzzState(f *testing.F) {
	for seed := range uint64(12) {
		w := newWalk(seed)
		w.step(evReload{First: true, Request: 1})
		for range 12 + seed {
			w.step(w.next(&w.state))
		}
		f.Add(mustJSON(&w.state), seed)
	}
	f.Add([]byte(`{"version":2,"services":{"a":null},"order":["a"]}`), uint64(1))
	f.Add([]byte(`{"version":2,"services":{"a":{"name":"a","generations":[null]}},"order":["a"]}`), uint64(1))
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		var s State
		if json.Unmarshal(text, &s) != nil || s.validate() != nil {
			return
		}
		w := newWorld(seed)
		w.hostile = true
		w.now = proc.Instant(w.rnd.Int64N(1 << 40))
		for range 8 {
			before := mustJSON(&s)
			e := w.next(&s)
			next, acts := transition(s, e, w.now)
			if string(before) != string(mustJSON(&s)) {
				t.Fatalf("%#v changed its input", e)
			}
			for _, svc := range next.Services {
				for _, g := range svc.Generations {
					if (g.Phase == PhaseDraining || g.Phase == PhaseEnding) && (g.KillAt == 0 || w.now >= g.KillAt) {
						t.Fatalf("%s generation %d passes its deadline", svc.Name, g.N)
					}
				}
			}
			for _, a := range acts {
				w.carryOut(&next, a)
			}
			s = next
		}
	})
}
