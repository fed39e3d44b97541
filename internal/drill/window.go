package drill

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Window is a marked stretch of a run: one reload, from the signal until clients see the new generation. Requests belong to
// it when they were due or in flight at any time between its begin and its end: one that waited for a free client, because
// all others waited for the server, was held up by the reload like those. Windows may overlap.
type Window struct {
	run         *Run
	name        string
	begin, end  time.Time // end is zero while it is open
	requests    int       // in flight at the begin, or due or begun inside
	inFlight    int       // of them, in flight at the begin
	ok          int
	failures    map[Kind]int
	blamed      map[Kind]int // of them, those that overlapped no newer window
	first, last time.Time    // when the first and the last of those ended
	generations map[int]int
	max         time.Duration
	latencies   []time.Duration // of good answers, the first maxWindowLatencies

	before      int           // the newest generation seen at the begin
	fresh       int           // answers that told their generation, on fresh connections opened until the next window's begin
	lastArrival time.Duration // see arrived
}

// maxWindowLatencies bounds what a window keeps for its quantile: a window that nobody ends lasts as long as the run.
const maxWindowLatencies = 1 << 16

// Mark opens a window. Without End it ends with the run.
func (r *Run) Mark(name string) *Window {
	b := r.book
	w := &Window{run: r, name: name, failures: map[Kind]int{}, blamed: map[Kind]int{}, generations: map[int]int{}}
	b.mu.Lock()
	defer b.mu.Unlock()
	w.begin, w.before = time.Now(), b.newest
	w.inFlight, w.requests = b.inFlight, b.inFlight
	b.windows = append(b.windows, w)
	// No request lasts longer than the timeout, so older windows can no longer be touched by one.
	oldest := w.begin.Add(-2*r.load.Timeout - time.Second)
	kept := b.recent[:0:0]
	for _, other := range b.recent {
		if other.end.IsZero() || other.end.After(oldest) {
			kept = append(kept, other)
		}
	}
	b.recent = append(kept, w)
	return w
}

// End closes the window. A second call does nothing.
func (w *Window) End() {
	w.run.book.mu.Lock()
	defer w.run.book.mu.Unlock()
	if w.end.IsZero() {
		w.end = time.Now()
	}
}

// Wait waits until the window holds at least n requests. It returns the context's error, or an error when the run is over.
func (w *Window) Wait(ctx context.Context, n int) error {
	if err := w.run.book.wait(ctx, w.run.done, func() bool { return w.requests >= n }); err != nil {
		return fmt.Errorf("window %s: wait for %d requests: %w", w.name, n, err)
	}
	return nil
}

// reaches says whether what was due then overlaps the window, which began before its end; called with the lock held.
func (w *Window) reaches(due time.Time) bool { return w.end.IsZero() || !due.After(w.end) }

// add counts a request that overlaps; called with the lock held.
func (w *Window) add(o outcome) {
	if o.fail != nil {
		w.failures[o.fail.kind]++
		return
	}
	w.ok++
	w.max = max(w.max, o.end.Sub(o.due))
	if len(w.latencies) < maxWindowLatencies {
		w.latencies = append(w.latencies, o.end.Sub(o.due))
	}
	// Only what began inside tells who takes new work; an older request may be answered by an older generation.
	if o.generation > 0 && !o.start.Before(w.begin) && w.reaches(o.start) {
		w.generations[o.generation]++
	}
}

// blame counts a failure that overlaps no newer window; called with the lock held.
func (w *Window) blame(o outcome) {
	w.blamed[o.fail.kind]++
	if w.first.IsZero() || o.end.Before(w.first) {
		w.first = o.end
	}
	if o.end.After(w.last) {
		w.last = o.end
	}
}

// report is the window as it stands; called with the lock held.
func (w *Window) report() WindowReport {
	return WindowReport{
		Name: w.name, Begin: w.begin, End: w.end, Requests: w.requests, InFlight: w.inFlight, OK: w.ok,
		Failures: maps.Clone(w.failures), Blamed: maps.Clone(w.blamed), FirstBlamed: w.first, LastBlamed: w.last, Generations: maps.Clone(w.generations), Max: w.max,
	}
}

// p99 is that of the good answers by nearest rank; it sorts them, so it is asked for when the run is over. 0: there is none.
func (w *Window) p99() time.Duration {
	if len(w.latencies) == 0 {
		return 0
	}
	slices.Sort(w.latencies)
	return w.latencies[(len(w.latencies)*99+99)/100-1]
}
