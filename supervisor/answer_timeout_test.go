package supervisor

import (
	"encoding/json"
	"fmt"
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

// One that does not run has not refused to answer: its time begins when it has received the message.
func TestUnreadIsNotSilent(t *testing.T) {
	w1 := g("web", 1)
	busy := func(t *testing.T, drains int) *script {
		s := serving(t, web(func(s *Spec) { s.Drain = drains }))
		s.busy = true
		s.reload().prepared(web()).up(g("web", 2)).want("job 2", "prepare 2", "spawn web2", "go web2", "accept web2", "commit web2", "ack web2", "drain web1")
		return s.send(evSight{at: w1}).want("done 2: web2 serving released").after(10 * time.Minute).want()
	}
	for _, drains := range []int{sigUSR1, sigTerm} {
		signal := fmt.Sprintf("signal web1 %d", drains)
		busy(t, drains).send(evRead{w1}).after(time.Second - 1).want().after(1).want(signal)
		busy(t, drains).send(evRead{w1}, evAnswered{w1}).after(4 * time.Minute).want()
		busy(t, drains).send(evAnswered{w1}, evRead{w1}).after(4 * time.Minute).want()
		busy(t, drains).after(5*time.Minute - 5*time.Second - 1).want().after(1).want("signal web1 15").send(evRead{w1}).after(5 * time.Second).want("kill web1 9")

		// The next handoverd says it again, and waits for that.
		s := busy(t, drains).send(evRead{w1}).after(time.Second / 2)
		s.send(evRestored{}).want("drain web1", "accept web2", "ack web2").after(time.Minute).want().send(evRead{w1}).after(time.Second).want(signal)
		// It cannot, where it has lost the channel: the signal is all that is left.
		busy(t, drains).send(evRestored{Deaf: []at{w1}}).want("accept web2", "ack web2").after(time.Second).want(signal)
		// An image that was executed in place of this one has only lost the wait.
		busy(t, drains).send(evRestored{Whole: true}).want("await web1").send(evRead{w1}).after(time.Second).want(signal)
	}
}
