package supervisor

import "testing"

// TestNothingOfNobody: of a generation without a process nothing is seen or heard, so it is never drained in place of
// being given up.
func TestNothingOfNobody(t *testing.T) {
	w2 := g("web", 2)
	events := []event{
		evSight{at: w2, Polls: true},
		evHello{w2},
		evNotify{w2},
		evReady{w2, "native"},
		evReady{w2, "alive"},
		evProbe{at: w2, OK: true},
		evOpen{at: w2, Connections: 3},
		evAnswered{w2},
		evExtend{w2, 1e9},
	}
	spawning := func(t *testing.T) *script {
		return serving(t, web()).reload().prepared(web(probes)).want("job 2", "prepare 2", "spawn web2")
	}
	for name, end := range map[string]func(*script) *script{
		"aborted": func(s *script) *script {
			return s.send(evAbort{Request: 9}).want("aborted 1 then job 0", "done 2: web2 failed")
		},
		"stop":             func(s *script) *script { return s.send(evStop{}).want("done 2: web0 refused", "drain web1") },
		"its probe fails":  func(s *script) *script { return s.send(evProbe{at: w2, Bad: true}, evAbort{Request: 9}).any() },
		"replaced, reload": func(s *script) *script { return s.reload().want("job 3").send(evAbort{Request: 9}).any() },
	} {
		t.Run(name, func(t *testing.T) {
			end(spawning(t).send(events...).want()).wantPhase(w2, PhaseKilling).send(evSpawned{at: w2, PID: 8}).want("kill web2 9")
		})
	}
	t.Run("it says draining unasked", func(t *testing.T) { // it is signalled all the same
		plainServing(t).send(evAnswered{g("web", 1)}, evStop{}).want("signal web1 10")
	})
	s := spawning(t)
	before := *s.s.Services["web"].gen(2)
	if after := *s.send(events...).s.Services["web"].gen(2); !same(&before, &after) {
		t.Errorf("it is %+v, was %+v", after, before)
	}
}
