package supervisor

import (
	"testing"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// TestLookoutWaits: where connections are only counted before a deadline, nobody looks until that is near, and whatever
// brings it nearer is noticed.
func TestLookoutWaits(t *testing.T) {
	now := proc.Instant(0).Add(time.Hour)
	after := func(d time.Duration) connGen { return connGen{from: now.Add(d)} }
	for _, tt := range []struct {
		name  string
		items []connItem
		pause time.Duration
		again bool
	}{
		{"nothing", nil, 0, false},
		{"a count in ten minutes", []connItem{{count: []connGen{after(10 * time.Minute)}}}, 10 * time.Minute, true},
		{"the first of two counts", []connItem{{count: []connGen{after(time.Hour), after(time.Minute)}}}, time.Minute, true},
		{"the first of two services", []connItem{
			{service: "a", count: []connGen{after(time.Hour)}}, {service: "b", count: []connGen{after(time.Second)}},
		}, time.Second, true},
		{"a count that is due", []connItem{{count: []connGen{after(-time.Second)}}}, connEvery, true},
		{"a hold beside a count", []connItem{{quiet: time.Second, count: []connGen{after(time.Hour)}}}, connEvery, true},
		{"a lame duck beside a count", []connItem{{lame: now, count: []connGen{after(time.Hour)}}}, connEvery, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := newLookout(func(event) {})
			k.update(tt.items)
			if pause, again := k.pass(now); pause != tt.pause || again != tt.again {
				t.Errorf("looks again after %v: %v, want %v: %v", pause, again, tt.pause, tt.again)
			}
		})
	}
	k := newLookout(func(event) {})
	kicked := func(items ...connItem) bool {
		k.update(items)
		select {
		case <-k.kick:
			return true
		default:
			return false
		}
	}
	far, near := connItem{count: []connGen{after(time.Hour)}}, connItem{count: []connGen{after(time.Second)}}
	if !kicked(far) || kicked(far) || !kicked(near) {
		t.Error("want a look at what is new, none at what is as it was, and one at what is due sooner")
	}
}
