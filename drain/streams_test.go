package drain_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/handoverd/handover/drain"
)

// A thousand streams leave over the window, evenly: no tenth of a second has
// more than three times the mean.
func TestStreamsRotateOverTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams, window = 1000, 10 * time.Second
		s := &drain.Streams{Window: window}
		var mu sync.Mutex
		buckets := map[time.Duration]int{}
		begin := time.Now()
		for range streams {
			var done func()
			done, err := s.Add("ws", func(why drain.Reason) {
				mu.Lock()
				buckets[time.Since(begin)/(100*time.Millisecond)]++
				mu.Unlock()
				if why != drain.Leaving {
					t.Errorf("reason %v", why)
				}
				done()
			}, nil)
			if err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown = %v", err)
		}
		if took := time.Since(begin); took > window || took < window*9/10 {
			t.Errorf("took %v of a window of %v", took, window)
		}
		mean := streams / int(window/(100*time.Millisecond))
		for at, n := range buckets {
			if n > 3*mean {
				t.Errorf("%d goodbyes at %v, the mean is %d", n, at*100*time.Millisecond, mean)
			}
		}
	})
}

// The window is at most half of the time there is, so that the last one told can
// still end.
func TestStreamsWindowWithinTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &drain.Streams{Window: time.Hour}
		begin := time.Now()
		var mu sync.Mutex
		var cut bool
		var last time.Duration
		for range 100 {
			if _, err := s.Add("deaf", func(drain.Reason) {
				mu.Lock()
				defer mu.Unlock()
				last = time.Since(begin)
			}, func() error { cut = true; return nil }); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		err := drain.All(ctx, s)
		inc, ok := errors.AsType[*drain.IncompleteError](err)
		if !ok || inc.Active != 100 || inc.Stragglers[0] != (drain.Straggler{Kind: drain.Stream, Label: "deaf", Age: 20 * time.Second}) {
			t.Errorf("All = %v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		if last > 10*time.Second || last < 9*time.Second || !cut {
			t.Errorf("last goodbye after %v, cut %v", last, cut)
		}
	})
}

// A stream that comes while draining is told within the window, and one that
// comes after Close is refused.
func TestStreamWhileDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &drain.Streams{Window: 10 * time.Second}
		first, err := s.Add("first", func(drain.Reason) {}, nil)
		if err != nil {
			t.Fatal(err)
		}
		result := make(chan error)
		go func() { result <- s.Shutdown(t.Context()) }()
		time.Sleep(4 * time.Second)
		begin := time.Now()
		told := make(chan time.Duration, 1)
		second, err := s.Add("second", func(drain.Reason) { told <- time.Since(begin) }, nil)
		if err != nil {
			t.Fatal(err)
		}
		if at := <-told; at > 6*time.Second {
			t.Errorf("told after %v, the window was over", at)
		}
		first()
		second()
		if err := <-result; err != nil {
			t.Errorf("Shutdown = %v", err)
		}
		s.Close()
		if _, err := s.Add("third", nil, nil); !errors.Is(err, drain.ErrDraining) {
			t.Errorf("Add after Close = %v", err)
		}
	})
}

func TestStreamAge(t *testing.T) {
	tests := []struct {
		age      drain.Age
		low, top time.Duration // of the goodbye
		grace    time.Duration // until the cut, 0: none
	}{
		{drain.Age{Max: time.Hour, Jitter: -1}, time.Hour, time.Hour, 0},
		{drain.Age{Max: time.Hour}, 54 * time.Minute, 66 * time.Minute, 0},
		{drain.Age{Max: time.Hour, Jitter: 0.5, Grace: time.Minute}, 30 * time.Minute, 90 * time.Minute, time.Minute},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			s := &drain.Streams{Age: tt.age}
			begin := time.Now()
			low, top := time.Duration(math.MaxInt64), time.Duration(0)
			var mu sync.Mutex
			var cuts int
			var stop []func()
			for range 100 {
				var at time.Duration
				done, err := s.Add("", func(why drain.Reason) {
					mu.Lock()
					defer mu.Unlock()
					at = time.Since(begin)
					low, top = min(low, at), max(top, at)
					if why != drain.Aged {
						t.Errorf("reason %v", why)
					}
				}, func() error {
					mu.Lock()
					defer mu.Unlock()
					cuts++
					if d := time.Since(begin) - at; d != tt.grace {
						t.Errorf("cut %v after the goodbye, want %v", d, tt.grace)
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				stop = append(stop, done)
			}
			time.Sleep(3 * time.Hour)
			mu.Lock()
			defer mu.Unlock()
			if low < tt.low || top > tt.top || tt.age.Jitter >= 0 && top-low < (tt.top-tt.low)/2 {
				t.Errorf("%+v: goodbyes from %v to %v", tt.age, low, top)
			}
			if want := map[bool]int{true: 100}[tt.grace > 0]; cuts != want {
				t.Errorf("%d cut, want %d", cuts, want)
			}
			for _, done := range stop {
				go done() // takes a lock of its own
			}
		})
	}
}
