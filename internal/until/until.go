package until

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A Context is a context with a deadline that Shorten brings nearer. Make one with
// New. All methods may be called from several goroutines at once.
type Context struct {
	context.Context // ends with the parent, at the first deadline, or by cancel

	cancel context.CancelCauseFunc
	cause  error
	parent context.Context

	mu       sync.Mutex
	end      time.Time // zero: none
	timer    *time.Timer
	watchers []*watcher
}

// A watcher is what OnNearer was given.
type watcher struct{ f func() }

// key finds the Context above another one.
type key struct{}

// New makes a context that ends with parent, and at end unless that is zero. cause
// is its cause then. Cancel releases what it holds.
func New(parent context.Context, end time.Time, cause error) *Context {
	c := &Context{cause: cause, parent: parent, end: end}
	c.Context, c.cancel = context.WithCancelCause(parent)
	if !end.IsZero() {
		inner, release := context.WithDeadlineCause(c.Context, end, cause)
		c.Context = inner
		context.AfterFunc(inner, release)
	}
	return c
}

// Cancel ends it with a cause of the caller's.
func (c *Context) Cancel(cause error) {
	c.cancel(cause)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
}

// Shorten lets it end at end, unless it ends before anyway. It returns when those
// have been told who asked for it by OnNearer.
func (c *Context) Shorten(end time.Time) {
	c.mu.Lock()
	if !c.end.IsZero() && !end.Before(c.end) {
		c.mu.Unlock()
		return
	}
	c.end = end
	if c.timer != nil {
		c.timer.Stop()
	}
	c.timer = time.AfterFunc(time.Until(end), c.expire)
	watchers := slices.Clone(c.watchers)
	c.mu.Unlock()
	for _, w := range watchers {
		w.f()
	}
}

func (c *Context) expire() { c.cancel(c.cause) }

// Deadline is when it ends as of now, its parent's deadline included.
func (c *Context) Deadline() (time.Time, bool) {
	end, ok := Of(c.parent)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.end.IsZero() && (!ok || c.end.Before(end)) {
		return c.end, true
	}
	return end, ok
}

// Value finds the context itself, for Of and OnNearer.
func (c *Context) Value(k any) any {
	if k == (key{}) {
		return c
	}
	return c.Context.Value(k)
}

// above is the nearest Context that ctx is or derives from, or nil.
func above(ctx context.Context) *Context {
	c, _ := ctx.Value(key{}).(*Context)
	return c
}

// Of is the deadline of ctx as of now. ctx's own Deadline is that of the moment in
// which ctx was made, where it derives from a Context.
func Of(ctx context.Context) (end time.Time, ok bool) {
	end, ok = ctx.Deadline()
	if c := above(ctx); c != nil && context.Context(c) != ctx {
		if at, bounded := c.Deadline(); bounded && (!ok || at.Before(end)) {
			return at, true
		}
	}
	return end, ok
}

// OnNearer calls f each time the deadline of ctx, or of a context that it derives
// from, has been brought nearer, in the goroutine that does so. f asks Of for the
// new one. stop ends that; f may still be running when stop returns.
func OnNearer(ctx context.Context, f func()) (stop func()) {
	w := &watcher{f}
	var watched []*Context
	for c := above(ctx); c != nil; c = above(c.parent) {
		c.mu.Lock()
		c.watchers = append(c.watchers, w)
		c.mu.Unlock()
		watched = append(watched, c)
	}
	return func() {
		for _, c := range watched {
			c.mu.Lock()
			c.watchers = slices.DeleteFunc(c.watchers, func(o *watcher) bool { return o == w })
			c.mu.Unlock()
		}
	}
}
