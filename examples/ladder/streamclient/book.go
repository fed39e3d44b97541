package main

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Ways in which a WebSocket ends, beside the close codes.
const (
	endEOF   = "eof"
	endReset = "reset"
	endOther = "other"
)

// restarting is the end that asks the client to come back: close 1012.
const restarting = "1012"

// A round is what the clients saw of one replacement.
type round struct {
	ends     map[string]int
	attempts []time.Time   // each connect, also those that failed
	failed   int           // attempts that gave no WebSocket that echoes
	stale    int           // reconnects that came to the process that had just closed
	gap      time.Duration // longest time of a client without a WebSocket
}

// A book is what all clients saw.
type book struct {
	mu        sync.Mutex
	clients   int
	connected int
	ended     int // in this round
	round     *round
	changed   chan struct{} // replaced at each connect
}

func newBook(clients int) *book {
	b := &book{clients: clients, changed: make(chan struct{})}
	b.take()
	return b
}

// take ends a round and begins the next.
func (b *book) take() *round {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.round
	b.ended, b.round = 0, &round{ends: map[string]int{}}
	return old
}

// all waits until every client is connected, after so many WebSockets have ended
// in this round, and reports whether it is so. That the old process has gone is
// not yet seen by all its clients.
func (b *book) all(ended int, longest time.Duration) bool {
	timer := time.NewTimer(longest)
	defer timer.Stop()
	for {
		b.mu.Lock()
		full, changed := b.connected == b.clients && b.ended >= ended, b.changed
		b.mu.Unlock()
		if full {
			return true
		}
		select {
		case <-changed:
		case <-timer.C:
			return false
		}
	}
}

// attempt is called when a client is about to connect.
func (b *book) attempt() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.round.attempts = append(b.round.attempts, time.Now())
}

// fail is called when that gave nothing.
func (b *book) fail() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.round.failed++
}

// open is called when a client has a WebSocket that echoes. lost is when it lost
// the one before, zero for the first.
func (b *book) open(lost time.Time, stale bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.connected++
	if !lost.IsZero() {
		b.round.gap = max(b.round.gap, time.Since(lost))
	}
	if stale {
		b.round.stale++
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// end is called when a WebSocket has ended.
func (b *book) end(how string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.connected--
	b.ended++
	b.round.ends[how]++
}

// A report is a round in figures. Times are in seconds.
type report struct {
	Clients  int            `json:"clients"`
	Ends     map[string]int `json:"ends"`
	Ended    int            `json:"ended"`
	Lost     int            `json:"lost"` // ended in another way than by 1012
	Attempts int            `json:"attempts"`
	Failed   int            `json:"failed_attempts"`
	Stale    int            `json:"stale"`   // reconnects to the process that had just closed
	Seconds  float64        `json:"seconds"` // the replacement, until the old process had gone
	Spread   float64        `json:"spread"`  // from the first reconnect to the last
	Gap      float64        `json:"gap"`     // the longest time of a client without a WebSocket
	Mean     float64        `json:"mean"`    // reconnects in a bucket, were they even over the window
	Peak     int            `json:"peak"`    // the most in one bucket
	Buckets  []int          `json:"buckets"` // from the begin of the replacement
}

func (r *round) report(clients int, begin time.Time, took, window, bucket time.Duration) report {
	out := report{
		Clients: clients, Ends: maps.Clone(r.ends), Attempts: len(r.attempts), Failed: r.failed, Stale: r.stale,
		Seconds: took.Seconds(), Gap: r.gap.Seconds(), Mean: float64(clients) * float64(bucket) / float64(window),
	}
	for how, n := range r.ends {
		out.Ended += n
		if how != restarting {
			out.Lost += n
		}
	}
	if len(r.attempts) == 0 {
		return out
	}
	first, last := r.attempts[0], slices.MaxFunc(r.attempts, time.Time.Compare)
	out.Spread = last.Sub(first).Seconds()
	out.Buckets = make([]int, last.Sub(begin)/bucket+1)
	for _, at := range r.attempts {
		out.Buckets[at.Sub(begin)/bucket]++
	}
	out.Peak = slices.Max(out.Buckets)
	return out
}
