package drain_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/drain"
)

// A stuck target returns from nothing.
type stuck struct{ free chan struct{} }

func (s stuck) Shutdown(context.Context) error { <-s.free; return nil }
func (s stuck) Close() error                   { <-s.free; return nil }

// A broken target panics.
type broken struct{}

func (broken) Shutdown(context.Context) error { panic("shutdown of a broken target") }
func (broken) Close() error                   { panic("close of a broken target") }

// The deadline holds for a target whose Close hangs as well, and the closers run.
func TestCloseThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stuck{make(chan struct{})}
		defer close(s.free)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begin := time.Now()
		err := drain.All(ctx, s)
		if took := time.Since(begin); took > 11*time.Second || err == nil || !strings.Contains(err.Error(), "Close did not return") {
			t.Errorf("All = %v after %v", err, took)
		}

		closed := false
		seq := &drain.Sequence{Deadline: 10 * time.Second}
		seq.Add("stuck", s)
		seq.OnClose("lock", func(context.Context) error { closed = true; return nil })
		seq.Begin("test")
		begin = time.Now()
		err = seq.Run(t.Context())
		if took := time.Since(begin); took > 10*time.Second || !errors.Is(err, drain.ErrDeadline) || !closed {
			t.Errorf("Run = %v after %v, closed %v", err, took, closed)
		}
	})
}

// What panics at the end takes nobody with it: the requests of others, and the
// closers that give locks and leases back.
func TestPanicsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{begin: time.Now()}
		seq := &drain.Sequence{LameDuck: drain.Acknowledged{By: func(context.Context) error { panic("nil pointer in By") }, Max: 3 * time.Second}}
		seq.Add("broken", broken{})
		seq.Add("slow", &slow{takes: 5 * time.Second})
		seq.OnClose("lock", func(context.Context) error { r.note("close lock"); return nil })
		seq.OnClose("telemetry", func(context.Context) error { panic(errors.New("nothing to flush")) })
		seq.Begin("test")
		err := seq.Run(t.Context())
		r.want(t, "8s close lock")
		cut, ok := errors.AsType[*drain.CutError](err)
		if !ok || len(cut.Stragglers) != 1 || cut.Stragglers[0].Label != "broken" {
			t.Errorf("cut %+v of %v", cut, err)
		}
		for _, want := range []string{`closer "telemetry": panic: nothing to flush`, "misuse_test.go"} {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("Run = %v, want %q in it", err, want)
			}
		}
		if got := seq.Report().LameDuck; got.Err == nil || !strings.Contains(got.Err.Error(), "nil pointer in By") {
			t.Errorf("lame duck %+v", got)
		}
	})
}

// What could only fail at the end is refused at the begin.
func TestRunRefusesMistakes(t *testing.T) {
	tests := []struct {
		want string
		make func() *drain.Sequence
	}{
		{`target "http" is nil`, func() *drain.Sequence {
			s := &drain.Sequence{}
			s.Add("http", nil)
			return s
		}},
		{`closer "pool" has no function`, func() *drain.Sequence {
			s := &drain.Sequence{}
			s.OnClose("pool", nil)
			return s
		}},
		{"Acknowledged has no By", func() *drain.Sequence { return &drain.Sequence{LameDuck: &drain.Acknowledged{Max: time.Second}} }},
		{"has been run already", func() *drain.Sequence {
			s := &drain.Sequence{}
			s.Begin("first")
			if err := s.Run(t.Context()); err != nil {
				t.Error(err)
			}
			return s
		}},
	}
	for _, tt := range tests {
		s := tt.make()
		phase := s.Phase()
		if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Run = %v, want %q", err, tt.want)
		}
		if s.Phase() != phase {
			t.Errorf("%s: phase went from %v to %v", tt.want, phase, s.Phase())
		}
	}
}

// A job that panics has failed, and ends neither the process nor the worker.
func TestJobThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claimed, done, returned := 0, 0, 0
		var failed []string
		w := &drain.Workers{Idle: time.Minute, Failed: func(work *drain.Work, err error) { failed = append(failed, work.Name+": "+err.Error()) }}
		w.Claim = func(context.Context) (*drain.Work, error) {
			if claimed++; claimed > 2 {
				return nil, nil
			}
			work := &drain.Work{Name: "poison", Run: func(context.Context) error { panic("no such customer") }, Return: func(context.Context) error { returned++; return nil }}
			if claimed == 2 {
				work = &drain.Work{Name: "good", Run: func(context.Context) error { done++; return nil }}
			}
			return work, nil
		}
		go w.Run()
		time.Sleep(time.Second)
		if err := w.Shutdown(t.Context()); err != nil || w.Len() != 0 {
			t.Errorf("Shutdown = %v, %d jobs", err, w.Len())
		}
		if done != 1 || returned != 0 || len(failed) != 1 || !strings.HasPrefix(failed[0], "poison: panic: no such customer\n") || !strings.Contains(failed[0], "misuse_test.go") {
			t.Errorf("%d done, %d returned, failed %q", done, returned, failed)
		}
	})
}

// A stream that cannot be told is waited for, and cut.
func TestStreamWithoutGoodbye(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Int32
		s := &drain.Streams{Age: drain.Age{Max: time.Minute, Grace: time.Second}}
		if _, err := s.Add("old", nil, func() error { cut.Add(1); return nil }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if _, err := s.Add("new", nil, nil); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := drain.All(ctx, s)
		if incomplete, ok := errors.AsType[*drain.IncompleteError](err); !ok || incomplete.Active != 2 || cut.Load() != 2 {
			t.Errorf("All = %v, %d cut", err, cut.Load())
		}
	})
}

// askReady is a probe from an address.
func askReady(h http.Handler, addr, name string) {
	r := httptest.NewRequest(http.MethodGet, "/ready", nil)
	r.RemoteAddr = addr
	r.Header.Set("Prober", name)
	h.ServeHTTP(httptest.NewRecorder(), r)
}

// Probers that went months ago do not keep out those of today, and a Loop does
// as it was told also by a pointer that was set late.
func TestProbersOfOldAndByPointer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seq := &drain.Sequence{}
		h := seq.ReadyHandler()
		seq.LameDuck = &drain.ProbesSeen{Count: 2, Max: 10 * time.Second, Per: func(r *http.Request) string { return r.Header.Get("Prober") }}
		for i := range 2000 {
			askReady(h, fmt.Sprintf("10.0.%d.%d:1", i/250, i%250), fmt.Sprint("old ", i))
		}
		time.Sleep(time.Hour)
		done := make(chan error, 1)
		go func() { done <- seq.Run(t.Context()) }()
		synctest.Wait()
		for _, name := range []string{"one", "other"} { // behind the same address
			askReady(h, "10.1.1.1:1", name)
		}
		begin := time.Now()
		seq.Begin("test")
		for _, name := range []string{"one", "one", "other", "other"} {
			time.Sleep(time.Second)
			askReady(h, "10.1.1.1:1", name)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		want := drain.WaitResult{By: "probes", After: 4 * time.Second}
		if d := cmp.Diff(want, seq.Report().LameDuck); d != "" || time.Since(begin) != 4*time.Second {
			t.Errorf("after %v (-want +got):\n%s", time.Since(begin), d)
		}
	})
}
