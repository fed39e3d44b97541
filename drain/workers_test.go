package drain_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/handoverd/handover/drain"
)

// A queue gives numbered jobs, takes them back, and knows what was done.
type queue struct {
	mu     sync.Mutex
	ready  []int
	claims int
	done   map[int]int
	back   int
}

func newQueue(n int) *queue {
	q := &queue{done: map[int]int{}}
	for i := range n {
		q.ready = append(q.ready, i)
	}
	return q
}

// claim gives jobs that take a while.
func (q *queue) claim(takes time.Duration) func(context.Context) (*drain.Work, error) {
	return func(context.Context) (*drain.Work, error) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.claims++
		if len(q.ready) == 0 {
			return nil, nil
		}
		n := q.ready[0]
		q.ready = q.ready[1:]
		return &drain.Work{
			Name: "resize",
			Run: func(ctx context.Context) error {
				select {
				case <-time.After(takes):
				case <-ctx.Done():
					return context.Cause(ctx)
				}
				q.mu.Lock()
				defer q.mu.Unlock()
				q.done[n]++
				return nil
			},
			Return: func(context.Context) error {
				q.mu.Lock()
				defer q.mu.Unlock()
				q.back++
				q.ready = append(q.ready, n)
				return nil
			},
		}, nil
	}
}

// account checks that no job is lost or done twice.
func (q *queue) account(t *testing.T, jobs int) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	all := slices.Clone(q.ready)
	for n, times := range q.done {
		if times != 1 {
			t.Errorf("job %d was done %d times", n, times)
		}
		all = append(all, n)
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) != jobs || len(q.ready)+len(q.done) != jobs {
		t.Errorf("of %d jobs %d are done and %d in the queue", jobs, len(q.done), len(q.ready))
	}
}

func runWorkers(w *drain.Workers) (ended chan struct{}) {
	ended = make(chan struct{})
	go func() { w.Run(); close(ended) }()
	return ended
}

func TestWorkersFinishTheJobInHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1000)
		w := &drain.Workers{Claim: q.claim(7 * time.Second), Count: 5}
		ended := runWorkers(w)
		time.Sleep(100 * time.Second)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := w.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown = %v", err)
		}
		if took := time.Since(begin); took != 5*time.Second { // 105 s is the end of the 15th round
			t.Errorf("took %v", took)
		}
		<-ended
		if len(q.done) != 75 || q.back != 0 {
			t.Errorf("%d done, %d given back", len(q.done), q.back)
		}
		q.account(t, 1000)
	})
}

// Answer before the deadline the contexts of jobs end, and the jobs are given
// back.
func TestWorkersGiveBackInTime(t *testing.T) {
	tests := []struct {
		answer, limit, want time.Duration
	}{
		{0, 20 * time.Second, 19 * time.Second},
		{5 * time.Second, 20 * time.Second, 15 * time.Second},
		{15 * time.Second, 20 * time.Second, 10 * time.Second}, // at most half
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(10)
			var failed []error
			w := &drain.Workers{Claim: q.claim(time.Hour), Count: 1, Answer: tt.answer, Failed: func(_ *drain.Work, err error) {
				failed = append(failed, err)
			}}
			ended := runWorkers(w)
			time.Sleep(time.Second)
			begin := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), tt.limit)
			defer cancel()
			if err := w.Shutdown(ctx); err != nil {
				t.Errorf("Shutdown = %v", err)
			}
			<-ended
			if took := time.Since(begin); took != tt.want || q.back != 1 || len(failed) != 1 || !errors.Is(failed[0], drain.ErrEnding) {
				t.Errorf("took %v, %d given back, %v", took, q.back, failed)
			}
			q.account(t, 10)
		})
	}
}

func TestWorkersGiveBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(10)
		w := &drain.Workers{Claim: q.claim(time.Hour), Count: 3, GiveBack: true}
		ended := runWorkers(w)
		time.Sleep(time.Second)
		begin := time.Now()
		if err := w.Shutdown(t.Context()); err != nil || time.Since(begin) != 0 || q.back != 3 {
			t.Errorf("Shutdown = %v after %v, %d given back", err, time.Since(begin), q.back)
		}
		<-ended
		q.account(t, 10)
	})
}

// A negative Answer keeps the jobs to the deadline, where they are named, and
// Close ends them.
func TestWorkersCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(10)
		w := &drain.Workers{Claim: q.claim(time.Hour), Answer: -1}
		ended := runWorkers(w)
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		err := drain.All(ctx, w)
		inc, ok := errors.AsType[*drain.IncompleteError](err)
		if !ok || len(inc.Stragglers) != 1 || inc.Stragglers[0] != (drain.Straggler{Kind: drain.Job, Label: "resize", Age: 21 * time.Second}) {
			t.Errorf("All = %v", err)
		}
		<-ended
		q.account(t, 10)
	})
}

// An empty queue is asked again after Idle, and the drain does not wait for it.
func TestWorkersIdle(t *testing.T) {
	for idle, want := range map[time.Duration]int{0: 61, 10 * time.Second: 7} {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(0)
			w := &drain.Workers{Claim: q.claim(0), Idle: idle}
			ended := runWorkers(w)
			time.Sleep(time.Minute + time.Millisecond)
			begin := time.Now()
			if err := w.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			<-ended
			if q.claims != want || time.Since(begin) != 0 {
				t.Errorf("idle %v: asked %d times in a minute, want %d; left after %v", idle, q.claims, want, time.Since(begin))
			}
		})
	}
}

// A claim that waits is interrupted; a job that it brings all the same goes back.
func TestWorkersClaimUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1)
		next := q.claim(0)
		w := &drain.Workers{Claim: func(ctx context.Context) (*drain.Work, error) {
			<-ctx.Done()
			return next(ctx)
		}}
		ended := runWorkers(w)
		synctest.Wait()
		if err := w.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		<-ended
		if q.back != 1 {
			t.Errorf("%d given back", q.back)
		}
		q.account(t, 1)
	})
}
