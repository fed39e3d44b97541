package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/handoverd/handover/internal/until"
)

// A closer is one thing to be closed at the end.
type closer struct {
	name  string
	close func(context.Context) error
	uses  []string
}

// OnClose registers what is closed once the work is over: a pool, telemetry, a
// lock. Closers run one after another in the reverse order of registration, as
// deferred functions do; one that names others in uses runs before those,
// wherever it was registered. Call it before Run.
//
// The time reserved for closing is shared: each may use an equal part of what is
// left, and its context ends then. One that has not returned is left behind,
// named as a straggler, and the next one runs. One that panics has failed, its
// error has the stack, and the next one runs.
func (s *Sequence) OnClose(name string, f func(ctx context.Context) error, uses ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closers = append(s.closers, closer{name, f, uses})
}

// order sorts closers for closing.
func order(closers []closer) ([]closer, error) {
	users := make(map[string]int) // by how many it is used that are not closed yet
	for _, c := range closers {
		if _, twice := users[c.name]; twice {
			return nil, fmt.Errorf("drain: closer %q is registered twice", c.name)
		}
		if c.close == nil {
			return nil, fmt.Errorf("drain: closer %q has no function", c.name)
		}
		users[c.name] = 0
	}
	for _, c := range closers {
		for _, u := range c.uses {
			if _, known := users[u]; !known {
				return nil, fmt.Errorf("drain: closer %q uses %q, which is not registered", c.name, u)
			}
			users[u]++
		}
	}
	left := slices.Clone(closers)
	slices.Reverse(left)
	var sorted []closer
	for len(left) > 0 {
		i := slices.IndexFunc(left, func(c closer) bool { return users[c.name] == 0 })
		if i < 0 {
			return nil, fmt.Errorf("drain: closers use one another in a circle: %q is in it", left[0].name)
		}
		sorted = append(sorted, left[i])
		for _, u := range left[i].uses {
			users[u]--
		}
		left = slices.Delete(left, i, i+1)
	}
	return sorted, nil
}

// closeAll runs the closers until the deadline of ctx, wherever that moves, and
// returns what hung and what failed.
func closeAll(ctx context.Context, closers []closer) (hung []Straggler, failed error) {
	for i, c := range closers {
		begin := time.Now()
		end, _ := until.Of(ctx)
		share := max(end.Sub(begin)/time.Duration(len(closers)-i), 0)
		over, err := closeOne(ctx, c, share)
		if !over {
			hung = append(hung, Straggler{Closer, c.name, time.Since(begin)})
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("drain: closer %q: %w", c.name, err))
		}
	}
	return hung, failed
}

// closeOne runs one closer for at most share, its context ending a little
// before, so that one which keeps to it is not left behind. over is false when
// it hangs, or gave up because of its context.
func closeOne(ctx context.Context, c closer, share time.Duration) (over bool, failed error) {
	late := min(lateness, share/10)
	ctx, cancel := context.WithTimeoutCause(ctx, share-late, ErrDeadline)
	defer cancel()
	result := make(chan error, 1)
	// Not waited for beyond its share: it sends into the buffer, or hangs until
	// the process exits.
	go ask(ctx, c.close, result)
	select {
	case err := <-result:
		return true, err
	case <-ctx.Done():
	}
	timer := time.NewTimer(late)
	defer timer.Stop()
	select {
	case err := <-result:
		return err == nil, err
	case <-timer.C:
		return false, nil
	}
}
