package drain

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// A Work is one job that has been claimed.
type Work struct {
	// Name is what a straggler is called by.
	Name string

	// Run does the job. Its context ends with the cause ErrEnding shortly before
	// a drain's deadline; a Run that then returns an error has its job given
	// back.
	Run func(ctx context.Context) error

	// Return gives the job back undone, so that another worker claims it: it
	// ends the lease, rolls back, nacks. Its context ends at the deadline. nil:
	// the job cannot be given back, or comes back by itself.
	Return func(ctx context.Context) error
}

// Workers claim jobs and do them, without a socket. At a drain they stop
// claiming, and finish the job in hand or give it back. Set the fields before
// Run. It is a Target.
type Workers struct {
	// Claim takes the next job, and waits for one if it can. Its context ends
	// when a drain begins. A job that it returns all the same is done, or given
	// back if there is a Return. nil and no error: there is none now.
	Claim func(ctx context.Context) (*Work, error)

	// Failed is told of each error of Claim, Run and Return, work being nil for
	// Claim's, from many goroutines. The end of a claim by the drain is none. A
	// Run or Return that panics has failed, and its error has the stack: one job
	// must not end the process under the others. May be nil; then a panic ends
	// the process, as there is nobody to tell.
	Failed func(work *Work, err error)

	// Count is how many work at the same time. 0 is 1.
	Count int

	// Idle is the pause after a claim that gave no job or failed. 0 is 1 s.
	Idle time.Duration

	// Answer is how long before the deadline the contexts of jobs end: the time
	// to give one back. 0 is 1 s, and at most half of the time there is;
	// negative: they end at the deadline only, with Close.
	Answer time.Duration

	// GiveBack gives the job in hand back at once when a drain begins, instead
	// of finishing it: for jobs longer than any deadline that save their
	// progress.
	GiveBack bool

	group Group

	once   sync.Once
	claims context.Context // ends when a drain begins
	stop   context.CancelFunc
	jobs   context.Context // ends before the deadline
	end    context.CancelCauseFunc
	gone   context.Context // ends with Close
	cut    context.CancelFunc
}

func (w *Workers) init() {
	w.once.Do(func() {
		w.claims, w.stop = context.WithCancel(context.Background())
		w.gone, w.cut = context.WithCancel(context.Background())
		w.jobs, w.end = context.WithCancelCause(w.gone)
	})
}

// Run works until a drain begins, and returns when every worker has ended.
func (w *Workers) Run() {
	w.init()
	var wg sync.WaitGroup
	for range max(w.Count, 1) {
		wg.Go(w.work) // waited for below
	}
	wg.Wait()
}

// work is one worker.
func (w *Workers) work() {
	idle := w.Idle
	if idle <= 0 {
		idle = time.Second
	}
	for w.claims.Err() == nil {
		// Counted from before the claim: a drain that begins while one is under
		// way must not end before its job is known.
		done, err := w.group.StartNamed("claim")
		if err != nil {
			return
		}
		work, err := w.Claim(w.claims)
		if work != nil {
			leave := w.group.admit(Job, work.Name)
			done()
			w.do(work)
			leave()
			continue
		}
		done()
		if err != nil && w.claims.Err() == nil {
			w.fail(nil, err)
		}
		pause := time.NewTimer(idle)
		select {
		case <-pause.C:
		case <-w.claims.Done():
		}
		pause.Stop()
	}
}

// do does one job, or gives it back.
func (w *Workers) do(work *Work) {
	if w.claims.Err() == nil || work.Return == nil {
		err := w.call(w.jobs, work.Run)
		if err == nil {
			return
		}
		w.fail(work, err)
		if w.jobs.Err() == nil {
			return // it failed by itself: that is between the job and its queue
		}
	}
	if work.Return == nil {
		return
	}
	if err := w.call(w.gone, work.Return); err != nil {
		w.fail(work, err)
	}
}

// call calls one function of a job.
func (w *Workers) call(ctx context.Context, f func(context.Context) error) (err error) {
	if w.Failed != nil {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
	}
	return f(ctx)
}

func (w *Workers) fail(work *Work, err error) {
	if w.Failed != nil {
		w.Failed(work, err)
	}
}

// Len returns how many jobs are in hand, claims under way included.
func (w *Workers) Len() int { return w.group.Len() }

// Draining returns a channel that is closed when Shutdown or Close begins.
func (w *Workers) Draining() <-chan struct{} { return w.group.Draining() }

// Shutdown stops claiming and waits for the jobs in hand. When ctx ends first it
// returns an *IncompleteError that names them, and leaves them to Close.
func (w *Workers) Shutdown(ctx context.Context) error {
	w.init()
	w.stop()
	switch {
	case w.GiveBack:
		w.end(ErrEnding)
	case w.Answer >= 0:
		answer := w.Answer
		if answer == 0 {
			answer = answerTime
		}
		defer before(ctx, answer, func() { w.end(ErrEnding) }).cancel()
	}
	return w.group.Shutdown(ctx)
}

// Close ends the contexts of all jobs and of what gives them back. It waits for
// nothing.
func (w *Workers) Close() error {
	w.init()
	w.stop()
	w.end(context.Canceled)
	w.cut()
	return w.group.Close()
}

func (w *Workers) observe(o *observer) { w.group.observe(o) }

func (w *Workers) arrivals(bool) (n int, last time.Time) { return 0, time.Time{} }
