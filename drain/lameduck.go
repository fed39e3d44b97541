package drain

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// A Loop says how a lame duck phase learns that the routing layer has noticed:
// a Timer, ProbesSeen or Acknowledged.
type Loop interface {
	// limit is the longest the loop takes.
	limit() time.Duration

	// wait returns what ended it; ctx ends at the limit.
	wait(ctx context.Context, p *probes) (by string, err error)

	// prepare tells p what is wanted of it, or returns what is missing.
	prepare(p *probes) error
}

// A WaitResult is how a lame duck phase ended.
type WaitResult struct {
	// By is what ended it: "timer", "probes", "acknowledged"; "max" when the
	// loop's limit came first; "deadline" when the sequence needed the time for
	// the drain; when the supervisor asked to leave meanwhile what it said, as in
	// Report.Cause: "handover", "stop". Empty if there was no lame duck phase.
	By string `json:"by,omitempty"`

	// After is how long the phase took.
	After time.Duration `json:"after_ns"`

	// Arrived is how many new connections came in the phase, and LastArrival
	// how long after its begin the last of them did: the propagation tail.
	// A wait much shorter than the longest ever seen loses connections.
	// A connection whose first request went to ReadyHandler does not count; of
	// HTTP connections those count that brought a request.
	Arrived     int           `json:"arrived"`
	LastArrival time.Duration `json:"last_arrival_ns"`

	// Err is why Acknowledged got no answer.
	Err error `json:"-"`
}

// Timer waits for a fixed time: an open loop. Size it by the longest
// WaitResult.LastArrival seen. 0 or negative: not at all.
type Timer time.Duration

func (t Timer) limit() time.Duration { return max(time.Duration(t), 0) }

func (t Timer) prepare(*probes) error { return nil }

func (t Timer) wait(ctx context.Context, _ *probes) (string, error) {
	<-ctx.Done()
	return "timer", nil
}

// ProbesSeen waits until each prober has seen ReadyHandler fail. A load
// balancer acts on that after some failures only, and then takes time to tell
// all its parts: Count and Then.
type ProbesSeen struct {
	// Count is how many failures each prober must have seen. 0 is 3.
	Count int

	// Per names the prober of a request. nil is the peer's address without the
	// port.
	Per func(r *http.Request) string

	// Within says who is waited for: each that probed in the lame duck phase or
	// for this long before. At least one must have. 0 is a minute.
	Within time.Duration

	// Then is waited after the last prober has seen enough: the rest of the
	// way. 0 is nothing, and loses what the balancer sends before it has acted.
	Then time.Duration

	// Max ends the wait whatever was seen. 0 is 30 s.
	Max time.Duration
}

func (p ProbesSeen) limit() time.Duration {
	if p.Max <= 0 {
		return 30 * time.Second
	}
	return p.Max
}

func (p ProbesSeen) prepare(seen *probes) error {
	seen.want(p.Per, p.Within)
	return nil
}

func (p ProbesSeen) wait(ctx context.Context, seen *probes) (string, error) {
	count := p.Count
	if count <= 0 {
		count = 3
	}
	select {
	case <-seen.enough(count):
	case <-ctx.Done():
		return "max", nil
	}
	if p.Then > 0 {
		then := time.NewTimer(p.Then)
		defer then.Stop()
		select {
		case <-then.C:
		case <-ctx.Done():
			return "max", nil
		}
	}
	return "probes", nil
}

// Acknowledged asks the routing layer: By returns nil once that sends nothing
// new here, such as after "state drain" to HAProxy's runtime API and scur at 0.
// An error proves nothing, so the rest of Max is waited out then, and the error
// is in the WaitResult.
type Acknowledged struct {
	// By asks and waits. Its context ends at Max.
	By func(ctx context.Context) error

	// Max ends the wait without an answer. 0 is 30 s.
	Max time.Duration
}

func (a Acknowledged) limit() time.Duration {
	if a.Max <= 0 {
		return 30 * time.Second
	}
	return a.Max
}

func (a Acknowledged) prepare(*probes) error {
	if a.By == nil {
		return errors.New("drain: Acknowledged has no By")
	}
	return nil
}

func (a Acknowledged) wait(ctx context.Context, _ *probes) (string, error) {
	answer := make(chan error, 1)
	// Not waited for if By ignores its context: it sends into the buffer.
	go ask(ctx, a.By, answer)
	select {
	case err := <-answer:
		if err == nil {
			return "acknowledged", nil
		}
		<-ctx.Done()
		return "max", err
	case <-ctx.Done():
		return "max", context.Cause(ctx)
	}
}

// peer is the prober of a request by its address.
func peer(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr // a UNIX socket
	}
	return host
}
