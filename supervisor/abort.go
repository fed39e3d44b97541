package supervisor

import (
	"context"
	"errors"
)

// ErrNothing is returned by Abort where nothing is under way that could be rolled
// back.
var ErrNothing = errors.New("nothing to abort")

// abortAnswer is what somebody is told who asked for an abort.
type abortAnswer struct {
	acAborted
	results []ServiceResult
}

// Abort rolls back what has not been committed of the services named, or of all
// (nil), and is said to those who wait for the reload as its failure. If a newer
// reload was remembered it begins, and Abort waits for its outcome: that is the
// report's. Aborted tells what was rolled back.
//
// Errors are ErrNothing, ErrStopping, ErrClosed and that of ctx, which ends the
// wait and not the newer reload.
func (s *Supervisor) Abort(ctx context.Context, services []string) (*ReloadReport, error) {
	return s.abort(ctx, services, nil)
}

// abort is Abort. taken is told which newer reload it waits for; nil: nobody is.
func (s *Supervisor) abort(ctx context.Context, services []string, taken func(Event)) (*ReloadReport, error) {
	w := &waiter{aborted: make(chan abortAnswer, 1), done: make(chan *ReloadReport, 1)}
	err := s.ask(ctx, func(l *loop) { l.queue(evAbort{Request: l.await(w), Services: services}) })
	if err != nil {
		return nil, err
	}
	var a abortAnswer
	select {
	case a = <-w.aborted:
	case <-s.done:
		return nil, ErrClosed
	}
	switch {
	case a.Refused == RefusedStopping:
		return nil, ErrStopping
	case a.Refused != RefusedNot:
		return nil, ErrNothing
	case a.Job == 0:
		return &ReloadReport{Aborted: a.results, Results: []ServiceResult{}}, nil
	}
	if taken != nil {
		taken(Event{Job: a.Job, Aborted: a.results})
	}
	r, err := outcome(ctx, s, w.done)
	if err != nil {
		return nil, err
	}
	out := *r // others wait for the same one
	out.Aborted = a.results
	return &out, nil
}

// aborted answers.
func (l *loop) aborted(a acAborted) {
	w := l.waiting[a.Request]
	delete(l.waiting, a.Request)
	if w == nil {
		return
	}
	if a.Job != 0 {
		l.jobs[a.Job] = append(l.jobs[a.Job], w)
	}
	w.aborted <- abortAnswer{a, l.results(a.Results)}
}
