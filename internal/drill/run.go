package drill

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// errOver is what a wait ends with when the run has ended before.
var errOver = errors.New("the run is over")

// Run is a load under way. Its methods are safe for concurrent use.
type Run struct {
	load     Load
	dialer   dialer
	book     *book
	numbers  atomic.Uint64 // the last number given out; the first is 1
	taken    atomic.Int64  // requests taken by the closed loop
	due      atomic.Int64  // requests that were due (open loop)
	work     chan time.Time
	stopping chan struct{} // closed: nothing more becomes due
	stopOnce sync.Once
	clients  sync.WaitGroup
	done     chan struct{} // closed after report was written
	report   Report

	firstBody atomic.Pointer[[sha256.Size]byte] // for Plain.SameBody
	begin     time.Time

	atStop struct { // written before stopping is closed
		when      time.Time
		sent, due int
	}
}

// Start checks the load and begins to send. An error says what is wrong with the load; whether the server is there is
// found out by the requests. Cancelling ctx does what Stop does. The caller calls Stop.
func Start(ctx context.Context, l Load) (*Run, error) {
	l, t, err := l.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	r := &Run{
		load:     l,
		dialer:   dialer{target: t, tls: l.tlsConfig()},
		book:     newBook(),
		stopping: make(chan struct{}),
		done:     make(chan struct{}),
	}
	r.begin = r.book.origin
	if err := r.startClients(); err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	// Waited for by Stop, through done.
	go r.watch(ctx)
	return r, nil
}

// startClients starts what sends; watch waits for it through clients.
func (r *Run) startClients() error {
	if r.load.Mode == ModeUDP {
		return r.startDatagrams()
	}
	if r.load.Rate > 0 {
		// What is due and waits for a free client; what would wait longer than a second is unsent.
		r.work = make(chan time.Time, max(64, int(r.load.Rate)))
		r.clients.Add(1)
		// Waited for by watch, through clients.
		go r.pace(r.queue, func() { close(r.work) })
	}
	var slot *h2slot
	for i := range r.load.Clients {
		c := &sender{run: r, index: i}
		if r.load.overHTTP2() {
			if i%r.load.Streams == 0 {
				slot = &h2slot{run: r}
			}
			slot.senders++
			c.slot = slot
		}
		r.clients.Add(1)
		// Both waited for by watch, through clients.
		if r.load.Rate > 0 {
			go c.openLoop()
		} else {
			go c.closedLoop()
		}
	}
	return nil
}

// extraFailure counts what went wrong apart from any request, as a request of its own that began and ended now.
func (r *Run) extraFailure(now time.Time, reused bool, f *failure) {
	r.book.begin(time.Time{})
	r.book.end(outcome{due: now, start: now, end: now, reused: reused, fail: f})
}

// watch ends the run: on Stop, on the context, or at its bounds.
func (r *Run) watch(ctx context.Context) {
	timer := time.NewTimer(r.load.Duration)
	defer timer.Stop()
	select {
	case <-r.stopping:
	case <-ctx.Done():
	case <-timer.C:
	}
	r.halt()
	r.clients.Wait()
	r.report = r.makeReport()
	close(r.done)
}

// halt makes nothing more become due.
func (r *Run) halt() {
	r.stopOnce.Do(func() {
		r.book.mu.Lock()
		r.atStop.when, r.atStop.sent = time.Now(), r.book.sent
		r.atStop.due = int(r.due.Load())
		r.book.mu.Unlock()
		close(r.stopping)
	})
}

// Stop sends nothing more but what was due, waits for everything in flight (Load.Timeout bounds it), and returns the report.
// It may be called again.
func (r *Run) Stop() Report {
	r.halt()
	<-r.done
	return r.report
}

// Done is closed when the run is over, also by its bounds or its context; Stop then returns at once.
func (r *Run) Done() <-chan struct{} { return r.done }

// Snapshot is the report as it stands now, without histograms.
func (r *Run) Snapshot() Report {
	r.book.mu.Lock()
	defer r.book.mu.Unlock()
	return r.countsLocked()
}

// Newest is the highest generation that a client has seen; 0 before the first answer.
func (r *Run) Newest() int {
	r.book.mu.Lock()
	defer r.book.mu.Unlock()
	return r.book.newest
}

// WaitGeneration waits until a client has seen generation n or a newer one.
func (r *Run) WaitGeneration(ctx context.Context, n int) error {
	if err := r.book.wait(ctx, r.done, func() bool { return r.book.newest >= n }); err != nil {
		return fmt.Errorf("wait for generation %d, seen %d: %w", n, r.Newest(), err)
	}
	return nil
}

// WaitOK waits until at least n requests have been answered well.
func (r *Run) WaitOK(ctx context.Context, n int) error {
	if err := r.book.wait(ctx, r.done, func() bool { return r.book.ok >= n }); err != nil {
		return fmt.Errorf("wait for %d answers: %w", n, err)
	}
	return nil
}

// countsLocked copies the counters; called with the book's lock held.
func (r *Run) countsLocked() Report {
	b := r.book
	rep := Report{
		Load: r.load, Sent: b.sent, OK: b.ok, Begin: r.begin,
		Failures: maps.Clone(b.failures), ReusedFailures: maps.Clone(b.reused), InsideFailures: maps.Clone(b.insideFails), Samples: slices.Clone(b.samples),
		GeneratorFaults: maps.Clone(b.faults), Generations: maps.Clone(b.generations),
		LateResets: b.lateResets, LateAnswers: b.late, RefusedStreams: b.refused, Closes: maps.Clone(b.closes),
	}
	until, sent, due := time.Now(), b.sent, int(r.due.Load())
	if !r.atStop.when.IsZero() {
		until, sent, due = r.atStop.when, r.atStop.sent, r.atStop.due
	}
	rep.Sending, rep.Due = until.Sub(r.begin), due
	if s := rep.Sending.Seconds(); s > 0 {
		rep.Rate = float64(sent) / s
	}
	for i, w := range b.windows {
		wr := w.report()
		wr.LastArrival, wr.ArrivalKnown = b.lastArrival(i)
		rep.Windows = append(rep.Windows, wr)
	}
	return rep
}

// makeReport is called when no client is left.
func (r *Run) makeReport() Report {
	r.book.mu.Lock()
	defer r.book.mu.Unlock()
	now := time.Now()
	for _, w := range r.book.windows {
		if w.end.IsZero() {
			w.end = now
		}
	}
	rep := r.countsLocked()
	for i, w := range r.book.windows {
		rep.Windows[i].P99 = w.p99()
	}
	r.book.series.finish()
	rep.Series, rep.SeriesWidth = r.book.series.points, r.book.series.width
	rep.FailurePoints, rep.Spans = r.book.failurePoints, r.book.spans
	rep.All, rep.Inside, rep.Outside, rep.Lag = r.book.all, r.book.inside, r.book.outside, r.book.lag
	return rep
}
