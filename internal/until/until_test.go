package until_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/handoverd/handover/internal/until"
)

var errOver = errors.New("over")

type valueKey struct{}

// left is how long ctx has; -1: for ever.
func left(ctx context.Context) time.Duration {
	end, ok := until.Of(ctx)
	if !ok {
		return -1
	}
	return time.Until(end)
}

func TestShorten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := until.New(context.WithValue(t.Context(), valueKey{}, "kept"), time.Now().Add(time.Minute), errOver)
		defer c.Cancel(nil)
		derived, cancel := context.WithTimeout(c, 50*time.Second)
		defer cancel()
		told := 0
		stop := until.OnNearer(derived, func() { told++ })
		if left(c) != time.Minute || left(derived) != 50*time.Second || derived.Value(valueKey{}) != "kept" {
			t.Errorf("%v and %v left", left(c), left(derived))
		}
		c.Shorten(time.Now().Add(2 * time.Minute)) // is later
		c.Shorten(time.Now().Add(55 * time.Second))
		if told != 1 || left(c) != 55*time.Second || left(derived) != 50*time.Second {
			t.Errorf("told %d times, %v and %v left", told, left(c), left(derived))
		}
		c.Shorten(time.Now().Add(10 * time.Second))
		if told != 2 || left(c) != 10*time.Second || left(derived) != 10*time.Second {
			t.Errorf("told %d times, %v and %v left", told, left(c), left(derived))
		}
		stop()
		c.Shorten(time.Now().Add(5 * time.Second))
		begin := time.Now()
		<-derived.Done()
		if told != 2 || time.Since(begin) != 5*time.Second || !errors.Is(context.Cause(derived), errOver) {
			t.Errorf("told %d times, over after %v: %v", told, time.Since(begin), context.Cause(derived))
		}
	})
}

// A Context of a Context is told of both, and has the earlier deadline.
func TestNested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := until.New(t.Context(), time.Time{}, errOver)
		defer outer.Cancel(nil)
		inner := until.New(outer, time.Time{}, nil)
		defer inner.Cancel(nil)
		told := 0
		defer until.OnNearer(inner, func() { told++ })()
		if _, ok := until.Of(inner); ok {
			t.Error("a deadline without one")
		}
		inner.Shorten(time.Now().Add(time.Hour))
		outer.Shorten(time.Now().Add(time.Minute))
		if end, ok := inner.Deadline(); !ok || time.Until(end) != time.Minute || told != 2 {
			t.Errorf("%v, %v, told %d times", end, ok, told)
		}
		<-inner.Done()
		if !errors.Is(context.Cause(inner), errOver) {
			t.Errorf("cause %v", context.Cause(inner))
		}
	})
}

// At the deadline that it was made with it is like one of package context.
func TestLikeTheStandardLibrarys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := until.New(t.Context(), time.Now().Add(time.Second), errOver)
		<-c.Done()
		if !errors.Is(c.Err(), context.DeadlineExceeded) || !errors.Is(context.Cause(c), errOver) {
			t.Errorf("%v, %v", c.Err(), context.Cause(c))
		}
		c = until.New(t.Context(), time.Time{}, errOver)
		c.Shorten(time.Now().Add(time.Hour))
		c.Cancel(context.Canceled)
		<-c.Done()
		if !errors.Is(context.Cause(c), context.Canceled) {
			t.Errorf("%v", context.Cause(c))
		}
		if end, ok := until.Of(context.Background()); ok || !end.IsZero() {
			t.Errorf("%v", end)
		}
		until.OnNearer(context.Background(), func() { t.Error("told") })()
	})
}
