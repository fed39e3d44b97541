package drill

import (
	"testing"
	"time"
)

// TestSeriesIsBounded: the longest run has no more points than the bound, and none of its counts is lost.
func TestSeriesIsBounded(t *testing.T) {
	s := newSeries()
	total := 0
	for at := time.Duration(0); at < maxDuration; at += 50 * time.Millisecond {
		s.add(at, time.Duration(1+total%7)*time.Millisecond, total%1000 == 0)
		total++
	}
	s.finish()
	sum := 0
	for _, p := range s.points {
		sum += p.OK + p.Failed
		if p.P99 > p.Max {
			t.Fatalf("p99 above the maximum: %+v", p)
		}
	}
	if sum != total || len(s.points) > maxPoints || s.width != 3200*time.Millisecond {
		t.Errorf("%d of %d in %d points of %v", sum, total, len(s.points), s.width)
	}
}
