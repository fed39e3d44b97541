package drain_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/drain"
)

// A recorder notes what a Sequence tells, in words, with times from its begin.
type recorder struct {
	begin time.Time
	lines []string
}

func (r *recorder) note(format string, args ...any) {
	r.lines = append(r.lines, fmt.Sprintf("%v ", time.Since(r.begin))+fmt.Sprintf(format, args...))
}

func (r *recorder) onPhase(t drain.Transition) { r.note("%v → %v: %s", t.From, t.To, t.Cause) }

func (r *recorder) want(t *testing.T, lines ...string) {
	t.Helper()
	if d := cmp.Diff(lines, r.lines); d != "" {
		t.Errorf("what happened (-want +got):\n%s", d)
	}
}

// A slow is a Target that takes its time.
type slow struct {
	drain.Group
	takes time.Duration
}

func (s *slow) Shutdown(ctx context.Context) error {
	done, err := s.StartNamed("slow thing")
	if err != nil {
		return err
	}
	time.AfterFunc(s.takes, done)
	return s.Group.Shutdown(ctx)
}

var errSignal = errors.New("terminated")

func TestSequenceInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{begin: time.Now()}
		s := &drain.Sequence{Deadline: time.Minute, LameDuck: drain.Timer(10 * time.Second), OnPhase: r.onPhase}
		s.Add("slow", &slow{takes: 7 * time.Second})
		for _, name := range []string{"first", "second"} {
			s.OnClose(name, func(context.Context) error { r.note("close %s", name); return nil })
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(time.Hour)
		r.begin = time.Now()
		cancel(errSignal)
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		r.want(t,
			"0s serving → lame duck: terminated",
			"10s lame duck → draining: timer",
			"17s draining → closing: drained",
			"17s close second",
			"17s close first",
			"17s closing → done: closed",
		)
		report := s.Report()
		if report.Took != 17*time.Second || report.DrainTook != 7*time.Second || report.LameDuck.After != 10*time.Second || report.DeadlineReached || s.Phase() != drain.Done {
			t.Errorf("report %+v", report)
		}
	})
}

// The deadline contains everything, and the closers have their part of it
// whatever the drain does.
func TestSequenceDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{begin: time.Now()}
		s := &drain.Sequence{Deadline: 30 * time.Second, LameDuck: drain.Timer(5 * time.Second), Closing: 6 * time.Second, OnPhase: r.onPhase}
		s.Add("slow", &slow{takes: time.Hour})
		s.OnClose("quick", func(context.Context) error { r.note("close quick"); return nil })
		hang := make(chan struct{})
		defer close(hang)
		s.OnClose("hangs", func(context.Context) error { <-hang; return nil })
		s.Begin("by hand")
		err := s.Run(t.Context())
		cut, ok := errors.AsType[*drain.CutError](err)
		if !ok || !errors.Is(err, drain.ErrDeadline) {
			t.Fatalf("Run = %v", err)
		}
		want := []drain.Straggler{{Kind: drain.Job, Label: "slow thing", Age: 19 * time.Second}, {Kind: drain.Closer, Label: "hangs", Age: 3 * time.Second}}
		if d := cmp.Diff(want, cut.Stragglers); d != "" {
			t.Errorf("stragglers (-want +got):\n%s", d)
		}
		r.want(t,
			"0s serving → lame duck: by hand",
			"5s lame duck → draining: timer",
			"24s draining → closing: drain: the deadline is reached",
			"27s close quick",
			"27s closing → done: cut",
		)
		if text := err.Error(); !strings.Contains(text, "job slow thing (19s), closer hangs (3s)") {
			t.Errorf("error %q names nobody", text)
		}
		if r := s.Report(); !r.DeadlineReached {
			t.Errorf("report %+v", r)
		}
	})
}

// A Drain shorter than what is left ends earlier.
func TestSequenceDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &drain.Sequence{Deadline: 30 * time.Second, Drain: 4 * time.Second}
		s.Add("slow", &slow{takes: time.Hour})
		s.Begin("")
		begin := time.Now()
		if err := s.Run(t.Context()); !errors.Is(err, drain.ErrDeadline) || time.Since(begin) != 4*time.Second {
			t.Errorf("Run = %v after %v", err, time.Since(begin))
		}
	})
}

func TestSequenceRefusesTimesThatCannotWork(t *testing.T) {
	s := &drain.Sequence{Deadline: 10 * time.Second, LameDuck: drain.Timer(8 * time.Second), Closing: 3 * time.Second}
	if _, ok := errors.AsType[*drain.BudgetError](s.Run(t.Context())); !ok {
		t.Error("a lame duck and closers that take all of the deadline were accepted")
	}
	tests := []struct {
		want string
		add  func(*drain.Sequence, func(context.Context) error)
	}{
		{"circle", func(s *drain.Sequence, f func(context.Context) error) {
			s.OnClose("a", f, "b")
			s.OnClose("b", f, "a")
		}},
		{`"c" uses "d", which is not registered`, func(s *drain.Sequence, f func(context.Context) error) { s.OnClose("c", f, "d") }},
		{`"e" is registered twice`, func(s *drain.Sequence, f func(context.Context) error) { s.OnClose("e", f); s.OnClose("e", f) }},
	}
	for _, tt := range tests {
		var s drain.Sequence
		tt.add(&s, func(context.Context) error { return nil })
		if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Run = %v, want %q", err, tt.want)
		}
	}
}

func TestClosersByDependency(t *testing.T) {
	var got []string
	var s drain.Sequence
	add := func(name string, uses ...string) {
		s.OnClose(name, func(context.Context) error { got = append(got, name); return nil }, uses...)
	}
	add("telemetry")
	add("queue", "pool", "telemetry") // registered before what it uses
	add("pool", "telemetry")
	add("cache")
	failed := errors.New("disk full")
	s.OnClose("log", func(context.Context) error { return failed })
	s.Begin("")
	err := s.Run(t.Context())
	if !errors.Is(err, failed) || !strings.Contains(err.Error(), `closer "log"`) {
		t.Errorf("Run = %v", err)
	}
	if _, cut := errors.AsType[*drain.CutError](err); cut {
		t.Errorf("a closer that failed was called cut: %v", err)
	}
	if d := cmp.Diff([]string{"cache", "queue", "pool", "telemetry"}, got); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
}

// A supervisor is what *handover.Child does.
type supervisor struct {
	draining, lame chan struct{}
	limit          time.Duration
}

func newSupervisor(limit time.Duration) *supervisor {
	return &supervisor{make(chan struct{}), make(chan struct{}), limit}
}

func (s *supervisor) Draining() <-chan struct{} { return s.draining }
func (s *supervisor) LameDuck() <-chan struct{} { return s.lame }
func (s *supervisor) DrainContext(parent context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(parent, s.limit, errors.New("supervisor's deadline"))
}

func ready(s *drain.Sequence) (code int, phase string) {
	w := httptest.NewRecorder()
	s.ReadyHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/ready", nil))
	var answer struct{ Phase string }
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		return w.Code, err.Error()
	}
	return w.Code, answer.Phase
}

// After a hand-over there is no lame duck, readiness stays, and the supervisor's
// deadline holds.
func TestSequenceHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		super := newSupervisor(15 * time.Minute)
		s := &drain.Sequence{LameDuck: drain.Timer(10 * time.Second), Supervisor: super, OnPhase: r.onPhase}
		s.Add("slow", &slow{takes: 10 * time.Minute})
		done := make(chan error)
		go func() { done <- s.Run(t.Context()) }()
		synctest.Wait()
		r.begin = time.Now()
		close(super.draining)
		time.Sleep(time.Minute)
		if code, phase := ready(s); code != http.StatusOK || phase != "draining" {
			t.Errorf("readiness %d, %s: a prober on an old connection would take the service for down", code, phase)
		}
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		r.want(t, "0s serving → draining: handover", "10m0s draining → closing: drained", "10m0s closing → done: closed")
		if report := s.Report(); !report.Handover || report.LameDuck.By != "" {
			t.Errorf("report %+v", report)
		}
	})
}

// A supervisor that announces the end of the service does the waiting itself.
func TestSequenceLameDuckBySupervisor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{begin: time.Now()}
		super := newSupervisor(20 * time.Second)
		s := &drain.Sequence{LameDuck: drain.Timer(10 * time.Second), Supervisor: super, OnPhase: r.onPhase}
		s.Add("slow", &slow{takes: time.Hour})
		done := make(chan error)
		go func() { done <- s.Run(t.Context()) }()
		close(super.lame)
		time.Sleep(3 * time.Second)
		if code, phase := ready(s); code != http.StatusServiceUnavailable || phase != "lame duck" {
			t.Errorf("readiness %d, %s", code, phase)
		}
		close(super.draining)
		time.Sleep(time.Second)
		if code, phase := ready(s); code != http.StatusServiceUnavailable || phase != "draining" {
			t.Errorf("readiness %d, %s", code, phase)
		}
		err := <-done
		if _, ok := errors.AsType[*drain.CutError](err); !ok {
			t.Errorf("Run = %v", err)
		}
		r.want(t, "0s serving → lame duck: supervisor", "3s lame duck → draining: handover",
			"19s draining → closing: drain: the deadline is reached", "19s closing → done: cut")
	})
}

// A supervisor without a deadline does not make one endless.
func TestSequenceHandoverWithoutDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		super := &endless{newSupervisor(0)}
		s := &drain.Sequence{Deadline: 10 * time.Second, Supervisor: super}
		s.Add("slow", &slow{takes: time.Hour})
		close(super.draining)
		begin := time.Now()
		if err := s.Run(t.Context()); !errors.Is(err, drain.ErrDeadline) || time.Since(begin) != 8*time.Second {
			t.Errorf("Run = %v after %v", err, time.Since(begin))
		}
	})
}

type endless struct{ *supervisor }

func (endless) DrainContext(parent context.Context) (context.Context, context.CancelFunc) {
	return context.WithCancel(parent)
}

// A signal in the middle of a hand-over brings the end forward, and a hand-over
// in the middle of a lame duck ends that.
func TestSequenceSecondBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		super := newSupervisor(15 * time.Minute)
		s := &drain.Sequence{Deadline: 10 * time.Second, Supervisor: super}
		s.Add("slow", &slow{takes: time.Hour})
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(errSignal) })
		close(super.draining)
		begin := time.Now()
		if err := s.Run(ctx); !errors.Is(err, drain.ErrDeadline) || time.Since(begin) != 68*time.Second {
			t.Errorf("Run = %v after %v", err, time.Since(begin))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		super := newSupervisor(15 * time.Minute)
		s := &drain.Sequence{LameDuck: drain.Timer(15 * time.Second), Supervisor: super}
		time.AfterFunc(time.Second, func() { close(super.draining) })
		s.Begin("")
		if err := s.Run(t.Context()); err != nil {
			t.Errorf("Run = %v", err)
		}
		if report := s.Report(); report.LameDuck.By != "handover" || report.Took != time.Second {
			t.Errorf("report %+v", report)
		}
	})
}

func TestLiveHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &drain.Sequence{}
		s.Begin("")
		if err := s.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		s.LiveHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"done"`) {
			t.Errorf("liveness %d %s", w.Code, w.Body)
		}
	})
}

func TestUnready(t *testing.T) {
	s := &drain.Sequence{}
	if code, _ := ready(s); code != http.StatusOK {
		t.Errorf("readiness %d", code)
	}
	s.Unready("cache is cold")
	if code, phase := ready(s); code != http.StatusServiceUnavailable || phase != "serving" {
		t.Errorf("readiness %d, %s", code, phase)
	}
	s.Unready("")
	if code, _ := ready(s); code != http.StatusOK {
		t.Errorf("readiness %d", code)
	}
}
