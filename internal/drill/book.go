package drill

import (
	"context"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// maxSamples bounds the failures of which a report keeps the details.
	maxSamples = 32
	// maxGenerations bounds those that are told apart: a server may put anything into X-Generation, also another number each
	// time. What comes beyond counts as without one.
	maxGenerations = 10_000
	// histogram range, in microseconds, and significant figures.
	minLatency, maxLatency, figures = 1, int64(maxDuration / time.Microsecond), 3
)

// outcome is the end of one request.
type outcome struct {
	number     uint64
	due        time.Time // when it had to be sent; latency counts from here
	start, end time.Time
	reused     bool
	resent     bool // it was sent a second time: a stream that the server had refused
	lateReset  bool // the connection was reset after the whole answer had come
	generation int  // 0 where the mode knows none
	fail       *failure
}

// book counts. One lock guards it all, so that sums are exact at every instant; it is held for less than a microsecond.
type book struct {
	mu          sync.Mutex
	sent, ok    int
	inFlight    int
	failures    map[Kind]int
	reused      map[Kind]int
	samples     []Failure
	faults      map[string]int
	generations map[int]int
	newest      int
	lateResets  int
	late        int
	refused     int         // streams refused and sent again
	closes      map[int]int // WebSockets that the server ended, by close code
	windows     []*Window   // in order of Mark
	recent      []*Window   // those that a request in flight may still overlap
	all, inside *hdrhistogram.Histogram
	outside     *hdrhistogram.Histogram
	lag         *hdrhistogram.Histogram
	waiters     []*waiter

	origin        time.Time // the run's begin
	insideFails   map[Kind]int
	series        series
	failurePoints []FailurePoint
	spans         map[int]Span
}

// waiter waits until done says so; done is called with the lock held.
type waiter struct {
	done func() bool
	ch   chan struct{} // closed when done was true
}

func newBook() *book {
	h := func() *hdrhistogram.Histogram { return hdrhistogram.New(minLatency, maxLatency, figures) }
	return &book{
		failures: map[Kind]int{}, reused: map[Kind]int{}, faults: map[string]int{}, generations: map[int]int{}, closes: map[int]int{},
		all: h(), inside: h(), outside: h(), lag: h(),
		origin: time.Now(), insideFails: map[Kind]int{}, series: newSeries(), spans: map[int]Span{},
	}
}

// record adds d to h; what lies outside its range counts as the nearest end.
func record(h *hdrhistogram.Histogram, d time.Duration) {
	us := min(max(d.Microseconds(), minLatency), maxLatency)
	// The value is in range, which is the only error there is.
	_ = h.RecordValue(us)
}

// begin counts a request as sent and returns the time.
func (b *book) begin(due time.Time) (start time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	start = time.Now()
	if due.IsZero() {
		due = start
	} else {
		record(b.lag, start.Sub(due))
	}
	b.sent++
	b.inFlight++
	for _, w := range b.recent {
		if w.reaches(due) {
			w.requests++
		}
	}
	b.wake()
	return start
}

// end counts how a request ended. Sent = OK + failures at every instant when nothing is in flight.
func (b *book) end(o outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight--
	if o.lateReset {
		b.lateResets++
	}
	if o.fail != nil && o.fail.fault != "" {
		b.sent--
		for _, w := range b.recent {
			if w.reaches(o.due) {
				w.requests--
			}
		}
		b.faults[o.fail.fault]++
		b.wake()
		return
	}
	if _, known := b.generations[o.generation]; !known && len(b.generations) >= maxGenerations {
		o.generation = 0
	}
	var newest *Window
	for _, w := range b.recent {
		if w.reaches(o.due) {
			w.add(o)
			newest = w
		}
	}
	if o.fail != nil {
		b.fail(o, newest)
	} else {
		b.answered(o, newest != nil)
	}
	b.wake()
}

// fail counts a failure, and blames the newest window that it overlapped, if any; it is called with the lock held.
func (b *book) fail(o outcome, newest *Window) {
	b.failures[o.fail.kind]++
	if newest != nil {
		newest.blame(o)
		b.insideFails[o.fail.kind]++
	}
	at, latency := o.end.Sub(b.origin), o.end.Sub(o.due)
	b.series.add(at, latency, true)
	if len(b.failurePoints) < maxFailurePoints {
		b.failurePoints = append(b.failurePoints, FailurePoint{At: at, Kind: o.fail.kind, Latency: latency})
	}
	if o.reused {
		b.reused[o.fail.kind]++
	}
	if len(b.samples) < maxSamples {
		b.samples = append(b.samples, Failure{
			Kind: o.fail.kind, Number: o.number, Reused: o.reused, Begin: o.start, End: o.end, Err: o.fail.err,
		})
	}
}

// answered counts a good answer; it is called with the lock held.
func (b *book) answered(o outcome, inside bool) {
	b.ok++
	if o.generation > 0 {
		b.generations[o.generation]++
		b.newest = max(b.newest, o.generation)
		at := o.end.Sub(b.origin)
		span, seen := b.spans[o.generation]
		if !seen {
			span.First = at
		}
		span.Last = max(span.Last, at)
		b.spans[o.generation] = span
		b.arrived(o)
	}
	latency := o.end.Sub(o.due)
	b.series.add(o.end.Sub(b.origin), latency, false)
	record(b.all, latency)
	if inside {
		record(b.inside, latency)
	} else {
		record(b.outside, latency)
	}
}

// extra counts a failure that belongs to no request in flight: a datagram's second answer.
func (b *book) extra(o outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var newest *Window
	for _, w := range b.recent {
		if w.reaches(o.due) {
			w.failures[o.fail.kind]++
			newest = w
		}
	}
	b.fail(o, newest)
	b.wake()
}

// fault counts a fault of the generator that is tied to no request begun.
func (b *book) fault(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults[name]++
}

// wake tells the waiters whose time has come; it is called with the lock held.
func (b *book) wake() {
	if len(b.waiters) == 0 {
		return
	}
	left := b.waiters[:0]
	for _, w := range b.waiters {
		if w.done() {
			close(w.ch)
		} else {
			left = append(left, w)
		}
	}
	clear(b.waiters[len(left):])
	b.waiters = left
}

// wait returns nil once done is true, or the context's error. over ends the wait with errOver.
func (b *book) wait(ctx context.Context, over <-chan struct{}, done func() bool) error {
	b.mu.Lock()
	if done() {
		b.mu.Unlock()
		return nil
	}
	w := &waiter{done: done, ch: make(chan struct{})}
	b.waiters = append(b.waiters, w)
	b.mu.Unlock()
	var err error
	select {
	case <-w.ch:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-over:
		err = errOver
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.waiters {
		if other == w {
			b.waiters = append(b.waiters[:i], b.waiters[i+1:]...)
			return err
		}
	}
	return nil
}

// lateAnswer counts an answer to a datagram that had timed out.
func (b *book) lateAnswer() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.late++
}

// refusedStream counts a stream that the server refused, and that is sent again.
func (b *book) refusedStream() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused++
}

// closeCode counts a WebSocket that the server ended.
func (b *book) closeCode(code int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closes[code]++
}
