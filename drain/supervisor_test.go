package drain_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/handoverd/handover/drain"
)

// A teller is a supervisor that says why.
type teller struct {
	*supervisor
	reason atomic.Value
}

func newTeller(limit time.Duration) *teller {
	return &teller{supervisor: newSupervisor(limit)}
}

func (s *teller) DrainReason() string {
	reason, _ := s.reason.Load().(string)
	return reason
}

// ask asks for a drain.
func (s *teller) ask(reason string) {
	s.reason.Store(reason)
	close(s.draining)
}

// What the supervisor asks for is told apart in the phases, in the report and by
// readiness.
func TestSequenceTellsStopFromHandover(t *testing.T) {
	for _, tt := range []struct {
		reason string
		stop   bool
		cause  string
	}{
		{"", false, "handover"},
		{"reload", false, "handover"},
		{"rolled back", false, "handover (rolled back)"},
		{"stop", true, "stop"},
		{"removed", true, "removed"},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := &recorder{begin: time.Now()}
			super := newTeller(time.Minute)
			s := &drain.Sequence{LameDuck: drain.Timer(10 * time.Second), Supervisor: super, OnPhase: r.onPhase}
			s.Add("slow", &slow{takes: 2 * time.Second})
			super.ask(tt.reason)
			done := make(chan error)
			go func() { done <- s.Run(t.Context()) }()
			time.Sleep(time.Second)
			want := http.StatusOK
			if tt.stop {
				want = http.StatusServiceUnavailable
			}
			if code, _ := ready(s); code != want {
				t.Errorf("%q: readiness %d, want %d", tt.reason, code, want)
			}
			if err := <-done; err != nil {
				t.Errorf("%q: Run = %v", tt.reason, err)
			}
			r.want(t, "0s serving → draining: "+tt.cause, "2s draining → closing: drained", "2s closing → done: closed")
			if report := s.Report(); report.Cause != tt.cause || report.Handover == tt.stop || report.Stopped != tt.stop {
				t.Errorf("%q: report %+v", tt.reason, report)
			}
		})
	}
}

// A stop while a generation drains after a hand-over: nobody serves any more.
func TestSequenceStoppedAfterHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		super := newTeller(time.Minute)
		s := &drain.Sequence{Supervisor: super}
		s.Add("slow", &slow{takes: 3 * time.Second})
		super.ask("reload")
		time.AfterFunc(1500*time.Millisecond, func() { super.reason.Store("stop") })
		done := make(chan error)
		go func() { done <- s.Run(context.WithoutCancel(t.Context())) }()
		for _, want := range []int{http.StatusOK, http.StatusServiceUnavailable} {
			time.Sleep(time.Second)
			if code, _ := ready(s); code != want {
				t.Errorf("readiness %d, want %d", code, want)
			}
		}
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		if report := s.Report(); report.Cause != "handover" || !report.Handover || !report.Stopped {
			t.Errorf("report %+v", report)
		}
	})
}

// A stop by the supervisor ends a lame duck that a signal has begun.
func TestSequenceStopEndsLameDuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		super := newTeller(time.Minute)
		s := &drain.Sequence{LameDuck: drain.Timer(15 * time.Second), Supervisor: super}
		time.AfterFunc(time.Second, func() { super.ask("stop") })
		s.Begin("signal")
		if err := s.Run(t.Context()); err != nil {
			t.Errorf("Run = %v", err)
		}
		report := s.Report()
		if report.LameDuck.By != "stop" || report.Cause != "signal" || report.Handover || !report.Stopped || report.Took != time.Second {
			t.Errorf("report %+v", report)
		}
	})
}
