package drain

import (
	"context"
	"errors"
	"time"

	"github.com/handoverd/handover/internal/until"
)

// lastMoment is what the closers get when the supervisor's deadline came without
// notice: what its DrainContext keeps back is up to a second.
const lastMoment = 500 * time.Millisecond

// A run is one way through the phases.
type run struct {
	*Sequence
	signal     context.Context // ends at a signal
	supervised bool            // the supervisor has asked, and its limits hold
	begin      time.Time
	limits     limits
	cause      error // of what was cut
}

// await waits for what begins the sequence, and sets the limits.
func (r *run) await() {
	var draining, lame <-chan struct{}
	if r.Supervisor != nil {
		draining = r.Supervisor.Draining()
		if l, ok := r.Supervisor.(interface{ LameDuck() <-chan struct{} }); ok {
			lame = l.LameDuck()
		}
	}
	var cause string
	var handover bool
	for cause == "" {
		select {
		case <-lame:
			// It waits for the routing layer by itself: nothing ends here.
			lame = nil
			r.enter(LameDuck, "supervisor")
		case <-draining:
			r.supervised = true
			cause, handover = r.asked()
		case <-r.begun:
			r.mu.Lock()
			cause = r.Sequence.cause
			r.mu.Unlock()
		case <-r.signal.Done():
			cause = why(r.signal)
		}
	}
	r.begin = time.Now()
	r.account(func(p *Report) { p.Cause, p.Begun, p.Handover = cause, r.begin, handover })
	r.limits.begin(context.WithoutCancel(r.signal))
	if r.supervised {
		r.bySupervisor()
		return
	}
	r.shorten(r.begin.Add(r.deadline()))
}

// shorten lets everything end by end, at the latest.
func (r *run) shorten(end time.Time) {
	r.limits.shorten(end.Add(-r.reserve(time.Until(end))), end)
}

// lameDuck waits for the routing layer.
func (r *run) lameDuck() {
	if r.LameDuck == nil || r.LameDuck.limit() == 0 {
		return
	}
	begin := time.Now()
	ctx, cancel := context.WithDeadlineCause(r.limits.drain, begin.Add(r.LameDuck.limit()), errMax)
	defer cancel()
	for _, t := range r.targets {
		if o, ok := t.Target.(observable); ok {
			o.arrivals(true)
		}
	}
	r.probes.begin()
	r.enter(LameDuck, r.Report().Cause)
	if r.Supervisor != nil {
		unwatch := make(chan struct{})
		defer close(unwatch)
		// Ends when unwatch is closed; nobody waits for it.
		go cutShort(r.Supervisor.Draining(), unwatch, cancel)
	}
	by, err := r.LameDuck.wait(ctx, &r.probes)
	if by == "max" || by == "timer" {
		switch {
		case errors.Is(context.Cause(ctx), context.Canceled):
			r.supervised = true
			cause, handover := r.asked()
			by = cause
			r.account(func(p *Report) { p.Handover = handover })
			r.bySupervisor()
		case r.limits.drain.Err() != nil:
			by = "deadline"
		}
	}
	result := WaitResult{By: by, After: time.Since(begin), Err: err}
	for _, t := range r.targets {
		if o, ok := t.Target.(observable); ok {
			n, last := o.arrivals(false)
			result.Arrived += n
			if n > 0 {
				result.LastArrival = max(result.LastArrival, last.Sub(begin))
			}
		}
	}
	r.account(func(p *Report) { p.LameDuck = result })
}

// errMax ends the context of a Loop at its limit.
var errMax = errors.New("drain: the longest wait is over")

// cutShort calls cancel when asked is closed before done is.
func cutShort(asked, done <-chan struct{}, cancel context.CancelFunc) {
	select {
	case <-asked:
		cancel()
	case <-done:
	}
}

// drain drains all targets, and returns what was cut.
func (r *run) drain() []Straggler {
	begin := time.Now()
	cause := r.Report().Cause
	if by := r.Report().LameDuck.By; by != "" {
		cause = by
	}
	r.enter(Draining, cause)
	var ctx context.Context = r.limits.drain
	if r.Drain > 0 {
		limited, cancel := context.WithDeadlineCause(ctx, begin.Add(r.Drain), ErrDeadline)
		defer cancel()
		ctx = limited
	}
	closeListeners(ctx, r.plain())
	results := make([]chan error, len(r.targets))
	for i, t := range r.targets {
		results[i] = make(chan error, 1)
		// Waited for below: each sends one result.
		go shutOne(ctx, t.Target, results[i])
	}
	var cut []Straggler
	idle := 0
	for i, t := range r.targets {
		err := <-results[i]
		incomplete, ok := errors.AsType[*IncompleteError](err)
		switch {
		case err == nil:
		case ok && len(incomplete.Stragglers) > 0:
			cut = append(cut, incomplete.Stragglers...)
			idle += incomplete.Idle
		case ok && incomplete.Active == 0:
			idle += incomplete.Idle
		default:
			cut = append(cut, Straggler{Other, t.name, time.Since(begin)})
		}
	}
	if len(cut) > 0 {
		r.cause = context.Cause(ctx)
	}
	r.account(func(p *Report) { p.DrainTook, p.Idle = time.Since(begin), idle })
	return cut
}

// plain is the targets without their names.
func (r *run) plain() []Target {
	targets := make([]Target, len(r.targets))
	for i, t := range r.targets {
		targets[i] = t.Target
	}
	return targets
}

// close runs the closers.
func (r *run) close(closers []closer) (hung []Straggler, failed error) {
	begin := time.Now()
	cause := "drained"
	if r.cause != nil {
		cause = r.cause.Error()
	}
	r.enter(Closing, cause)
	end := func() time.Time {
		end, soon := r.limits.last(), begin.Add(lastMoment)
		if r.supervised && end.Before(soon) {
			return soon
		}
		return end
	}
	ctx := until.New(context.WithoutCancel(r.signal), end(), ErrDeadline)
	defer ctx.Cancel(context.Canceled)
	defer until.OnNearer(r.limits.all, func() { ctx.Shorten(end()) })()
	hung, failed = closeAll(ctx, closers)
	if len(hung) > 0 && r.cause == nil {
		r.cause = ErrDeadline
	}
	r.account(func(p *Report) { p.CloseTook = time.Since(begin) })
	return hung, failed
}

// done ends the sequence.
func (r *run) done(cut []Straggler) error {
	took, stopped := time.Since(r.begin), r.ends()
	r.account(func(p *Report) {
		p.Took, p.Stragglers, p.DeadlineReached, p.Stopped = took, cut, len(cut) > 0, stopped
	})
	if r.Metrics != nil {
		r.Metrics.ObserveExit(took, len(cut) > 0)
	}
	cause := "closed"
	if len(cut) > 0 {
		cause = "cut"
	}
	r.enter(Done, cause)
	if len(cut) == 0 {
		return nil
	}
	return &CutError{Stragglers: cut, Err: r.cause}
}
