package supervisor

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/internal/proc"
)

// TestBusyLook: a generation that has been seen to accept is not taken to have stopped because its threads were running at
// the moment of a look; one that was never seen to, or whose threads all wait for something else, is.
func TestBusyLook(t *testing.T) {
	held := map[uint64]bool{7: true}
	idle := []string{"http"}
	tests := []struct {
		name  string
		last  evSight
		look  proc.Sight
		polls bool
		idle  []string
	}{
		{"seen before, at work", evSight{Polls: true}, proc.Sight{Held: held, Busy: []int{1}}, true, nil},
		{"seen before, waits elsewhere", evSight{Polls: true}, proc.Sight{Held: held}, false, idle},
		{"seen before, closed", evSight{Polls: true}, proc.Sight{Busy: []int{1}}, false, idle},
		{"never seen, at work", evSight{}, proc.Sight{Held: held, Busy: []int{1}}, false, idle},
		{"one of two seen before", evSight{Polls: true, Idle: []string{"admin"}}, proc.Sight{Held: held, Busy: []int{1}}, true, []string{"admin"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := watch{last: tt.last, posted: true}
			got := w.between(evSight{Idle: idle}, tt.look)
			if got.Polls != tt.polls {
				t.Errorf("polls: %v, want %v", got.Polls, tt.polls)
			}
			if d := cmp.Diff(tt.idle, got.Idle); d != "" {
				t.Errorf("sockets that nobody polls (-want +got):\n%s", d)
			}
		})
	}
}
