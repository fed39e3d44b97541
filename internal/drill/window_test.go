package drill

import (
	"testing"
	"time"
)

// TestWindowP99: nearest rank, whatever the order in which the answers came.
func TestWindowP99(t *testing.T) {
	b := newBook()
	r := &Run{book: b, load: Load{Timeout: time.Second}}
	w := r.Mark("one")
	if got := w.p99(); got != 0 {
		t.Errorf("p99 of nothing is %v", got)
	}
	for _, tt := range []struct{ n, want int }{{1, 1}, {100, 99}, {101, 100}, {200, 198}} {
		w.latencies = nil
		now := time.Now()
		for i := range tt.n {
			w.add(outcome{due: now, start: now, end: now.Add(time.Duration(tt.n-i) * time.Millisecond)})
		}
		if got, want := w.p99(), time.Duration(tt.want)*time.Millisecond; got != want {
			t.Errorf("p99 of 1 to %d ms is %v, want %v", tt.n, got, want)
		}
	}
}
