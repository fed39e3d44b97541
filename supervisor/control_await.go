package supervisor

import (
	"context"
	"errors"
	"net/http"
)

// keptOutcomes is how many outcomes of reloads are kept for those who come back.
const keptOutcomes = 16

// keepOutcome keeps how a job has ended: whoever waited for it may have been cut by an
// upgrade of handoverd.
func (l *loop) keepOutcome(r *ReloadReport) {
	l.outcomes = append(l.outcomes[max(0, len(l.outcomes)+1-keptOutcomes):], r)
}

// errNoJob says that a job is neither under way nor among those that have ended last.
var errNoJob = errors.New("how this job has ended is not known any more")

// await waits for the outcome of a job that was asked for before. ctx ends the wait alone.
func (s *Supervisor) await(ctx context.Context, job int, taken func(Event)) (*ReloadReport, error) {
	w, known := &waiter{done: make(chan *ReloadReport, 1)}, false
	if err := s.ask(ctx, func(l *loop) { known = l.rejoin(job, w) }); err != nil {
		return nil, err
	}
	if !known {
		return nil, errNoJob
	}
	taken(Event{Job: job})
	return outcome(ctx, s, w.done)
}

// rejoin has somebody told the outcome of a job, and reports whether it is known.
func (l *loop) rejoin(job int, w *waiter) bool {
	for _, r := range l.outcomes {
		if r.Job == job {
			w.done <- r
			return true
		}
	}
	if l.state.job(job) == nil {
		return false
	}
	l.jobs[job] = append(l.jobs[job], w)
	return true
}

// serveAwait streams like serveReload, of a job that was asked for before.
func (s *Supervisor) serveAwait(w http.ResponseWriter, r *http.Request) {
	job, err := intParam(r, "job")
	if err == nil && job == 0 {
		err = errors.New("job: which one?")
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, "bad request", err)
		return
	}
	s.streamWhile(w, r, func(ctx context.Context, taken func(Event)) (*ReloadReport, error) { return s.await(ctx, job, taken) })
}
