package supervisor

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/handoverd/handover/drain"
)

// answer_timeout = "0s": who says nothing is not signalled before its SIGTERM.
func TestAnswerTimeoutOff(t *testing.T) {
	off := func(s *Spec) { s.Config.Retire.AnswerTimeout, s.Drain = 0, sigUSR1 }
	s := serving(t, web(off)).send(evStop{}).want("drain web1")
	s.after(20*time.Second - 1).want().after(1).want("signal web1 15").after(5 * time.Second).want("kill web1 9")

	term := func(s *Spec) { s.Config.Retire.AnswerTimeout = 0 }
	s = serving(t, web(term)).send(evStop{}).want("drain web1")
	s.after(20*time.Second - 1).want().after(1).want("signal web1 15")

	// One that speaks no protocol gets its signal as ever.
	s = newScript(t)
	s.send(evReload{Request: 1, First: true}).prepared(web(off, readyWhen("alive")))
	s.send(evSpawned{at: g("web", 1), PID: 7, StartTime: 1}, evSight{at: g("web", 1), Polls: true})
	s.after(20 * time.Second).any().send(evStop{}).want("signal web1 10")
}

// A state written before there was the key means its default.
func TestAnswerTimeoutOfAnOlderState(t *testing.T) {
	for text, want := range map[string]time.Duration{`{}`: drain.AnswerTimeout, `{"answer_timeout":0}`: 0, `{"answer_timeout":7}`: 7} {
		var r RetireConfig
		if err := json.Unmarshal([]byte(text), &r); err != nil || r.AnswerTimeout != want {
			t.Errorf("%s: %v, %v; want %v", text, r.AnswerTimeout, err, want)
		}
	}
}
