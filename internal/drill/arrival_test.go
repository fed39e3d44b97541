package drill

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestLastArrival: which window an old generation's answer belongs to, and where nothing can be said.
func TestLastArrival(t *testing.T) {
	type answer struct {
		at         int // ms, when it was sent
		generation int
		kept       bool // on a connection that had carried an answer
		resent     bool
	}
	const unknown = -1
	tests := []struct {
		name   string
		events []any // answers, and the begins of windows in ms
		want   []int // ms
	}{
		{"one reload", []any{answer{at: 0, generation: 1}, 10, answer{at: 15, generation: 1}, answer{at: 18, generation: 2}, answer{at: 30, generation: 1}, answer{at: 40, generation: 2}}, []int{20}},
		{"nobody late", []any{answer{at: 0, generation: 1}, 10, answer{at: 11, generation: 2}}, []int{0}},
		{"sent before", []any{answer{at: 0, generation: 1}, 10, answer{at: 9, generation: 1}, answer{at: 11, generation: 2}}, []int{0}},
		{"kept and sent again", []any{
			answer{at: 0, generation: 1}, 10, answer{at: 20, generation: 1, kept: true}, answer{at: 21, generation: 1, resent: true}, answer{at: 22, generation: 2},
		}, []int{0}},
		{"after the next reload", []any{
			answer{at: 0, generation: 1}, 10, answer{at: 15, generation: 2}, 100, answer{at: 120, generation: 1}, answer{at: 130, generation: 2}, answer{at: 131, generation: 3},
		}, []int{110, 30}},
		{"the first one failed", []any{
			answer{at: 0, generation: 1}, 10, answer{at: 50, generation: 1}, 100, answer{at: 105, generation: 1}, answer{at: 110, generation: 3}, answer{at: 120, generation: 1},
		}, []int{unknown, 20}},
		{"all failed", []any{answer{at: 0, generation: 1}, 10, answer{at: 50, generation: 1}, 100, answer{at: 105, generation: 1}}, []int{unknown, unknown}},
		{"no generation", []any{answer{at: 0}, 10, answer{at: 20}}, []int{unknown}},
		{"nothing before", []any{10, answer{at: 20, generation: 2}}, []int{unknown}},
		{"no new connection", []any{answer{at: 0, generation: 1}, 10, answer{at: 20, generation: 2, kept: true}}, []int{unknown}},
		{"the second one saw nobody", []any{answer{at: 0, generation: 1}, 10, answer{at: 12, generation: 2}, 20, 30, answer{at: 31, generation: 4}}, []int{0, unknown, 0}},
	}
	for _, tt := range tests {
		r := &Run{book: newBook()}
		at := func(ms int) time.Time { return r.book.origin.Add(time.Duration(ms) * time.Millisecond) }
		for _, e := range tt.events {
			if ms, ok := e.(int); ok {
				r.Mark("reload").begin = at(ms)
				continue
			}
			a := e.(answer)
			r.book.begin(time.Time{})
			r.book.end(outcome{
				start: at(a.at), due: at(a.at), end: at(a.at + 1), generation: a.generation, reused: a.kept, resent: a.resent,
			})
		}
		var got []int
		for i := range r.book.windows {
			last, known := r.book.lastArrival(i)
			if !known {
				last = unknown * time.Millisecond
			}
			got = append(got, int(last.Milliseconds()))
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s: last arrivals (-want +got):\n%s", tt.name, d)
		}
	}
}
