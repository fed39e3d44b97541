package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// queue gives out jobs over a UNIX socket, by HTTP. Whoever claims one has a lease on it; a job whose lease has run out before
// it is done is given out again. A job has one effect, which must happen once; it is the middle of the work, as a payment is
// between reading the order and marking it paid.
type queue struct {
	lease time.Duration
	http  *http.Server

	mu      sync.Mutex
	jobs    []job
	again   []int // whose lease ran out
	closed  bool  // no new jobs
	changed chan struct{}
}

type job struct {
	claims, effects int
	done            bool
	lease           *time.Timer
}

// newQueue listens at path. The caller calls close.
func newQueue(path string, lease time.Duration) (*queue, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	q := &queue{lease: lease, changed: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /claim", q.claim)
	mux.HandleFunc("POST /effect", q.numbered(func(j *job) { j.effects++ }))
	mux.HandleFunc("POST /done", q.numbered(func(j *job) { j.done = true; j.lease.Stop() }))
	q.http = &http.Server{Handler: mux}
	// close ends it; nobody needs to wait.
	go q.serve(l)
	return q, nil
}

func (q *queue) serve(l net.Listener) { _ = q.http.Serve(l) }

func (q *queue) close() error { return q.http.Close() }

// claim gives out one job: its number, or 204.
func (q *queue) claim(w http.ResponseWriter, _ *http.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.jobs)
	switch {
	case len(q.again) > 0:
		n, q.again = q.again[0], q.again[1:]
	case q.closed:
		w.WriteHeader(http.StatusNoContent)
		return
	default:
		q.jobs = append(q.jobs, job{})
	}
	j := &q.jobs[n]
	j.claims++
	j.lease = time.AfterFunc(q.lease, func() { q.expire(n) })
	// Where it fails the lease runs out.
	_, _ = io.WriteString(w, strconv.Itoa(n))
}

// expire gives a job out again.
func (q *queue) expire(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.jobs[n].done {
		q.again = append(q.again, n)
	}
}

// numbered changes the job n of the request.
func (q *queue) numbered(change func(*job)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.FormValue("n"))
		q.mu.Lock()
		defer q.mu.Unlock()
		if err != nil || n < 0 || n >= len(q.jobs) {
			http.Error(w, "no such job", http.StatusBadRequest)
			return
		}
		change(&q.jobs[n])
		close(q.changed)
		q.changed = make(chan struct{})
	}
}

// count is how many jobs have been given out.
func (q *queue) count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.jobs)
}

// settle gives out no new jobs, waits until all are done, or ctx ends, and counts.
func (q *queue) settle(ctx context.Context) tally {
	for {
		q.mu.Lock()
		q.closed = true
		t, changed := q.tallyLocked(), q.changed
		q.mu.Unlock()
		if t.Kinds["not done"] == 0 {
			return t
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return t
		}
	}
}

func (q *queue) tallyLocked() tally {
	t := newTally()
	t.Total = len(q.jobs)
	for _, j := range q.jobs {
		switch {
		case !j.done:
			t.lose("not done")
		case j.effects != 1:
			t.lose(fmt.Sprintf("done %d times", j.effects))
		}
		if j.claims > 1 {
			t.Notes["given out again"]++
		}
	}
	return t
}
