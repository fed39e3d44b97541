package supervisor

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// LameDuckStatus is a lame duck as it stands.
type LameDuckStatus struct {
	For   float64 `json:"for_seconds"` // since it began
	Until string  `json:"until"`       // the loop that ends the wait
	Ended bool    `json:"ended,omitempty"`
	By    string  `json:"ended_by,omitempty"` // until, "max" or "stop now"
	After float64 `json:"ended_after_seconds,omitempty"`
	// LastNew is how long after its begin a new connection was seen last, NoneAfter
	// how long after it the last look was at which any can have come unseen. They are
	// of the looks, 100 ms apart, at the service's TCP sockets: a connection that came
	// and went between two is in NoneAfter alone, which counts those of every
	// listener in the network namespace.
	LastNew   float64 `json:"last_new_connection_seconds,omitempty"`
	NoneAfter float64 `json:"none_after_seconds,omitempty"`
	Blind     bool    `json:"connections_not_visible,omitempty"`
}

func (l *loop) lameStatus(svc *Service, now proc.Instant) *LameDuckStatus {
	d := svc.Lame
	if d == nil {
		return nil
	}
	out := &LameDuckStatus{For: now.Sub(d.Began).Seconds(), Until: d.Until, Ended: d.Ended != 0, By: d.By}
	if d.Ended != 0 {
		out.After = d.Ended.Sub(d.Began).Seconds()
	}
	if t, ok := l.lookout.tailOf(svc.Name, d.Began); ok {
		out.Blind = t.blind
		if t.last != 0 {
			out.LastNew = t.last.Sub(d.Began).Seconds()
		}
		out.NoneAfter = max(0, t.latest.Sub(d.Began).Seconds())
	}
	return out
}

// lameEnded writes the line that the next lame duck can be sized by.
func (l *loop) lameEnded(svc *Service) {
	d := svc.Lame
	attrs := []any{"service", svc.Name, "by", d.By, "after", d.Ended.Sub(d.Began).Round(time.Millisecond)}
	attrs = append(attrs, l.tailAttrs(svc)...)
	text := "lame duck: the wait is over"
	if d.By == lameByMax {
		l.log.Warn(text+", by its max: whether the routing layer has noticed is not known", attrs...)
	} else {
		l.log.Info(text, attrs...)
	}
	l.s.hub.send(Event{Kind: "lame duck", Service: svc.Name, Text: "ended by " + d.By, LameDuck: l.lameStatus(svc, proc.Now())})
}

// tailAttrs tell when the last new connection came.
func (l *loop) tailAttrs(svc *Service) []any {
	t, ok := l.lookout.tailOf(svc.Name, svc.Lame.Began)
	switch {
	case !ok:
		return nil
	case t.blind:
		return []any{"last_new_connection", "not visible"}
	case t.last == 0:
		return []any{"last_new_connection", "none"}
	}
	return []any{"last_new_connection", t.last.Sub(svc.Lame.Began).Round(time.Millisecond)}
}

// LameDuckRequest says which services tell the routing layer to go elsewhere, or,
// with Off, are back.
type LameDuckRequest struct {
	Services []string // nil: all
	Off      bool
}

// LameDuckReport is how the waits have ended.
type LameDuckReport struct {
	Services []LameDuckResult `json:"services"`
}

// LameDuckResult is one service's.
type LameDuckResult struct {
	Service string `json:"service"`
	LameDuckStatus
	// Off says that it was called off, by this request or while this one waited.
	Off bool `json:"off,omitempty"`
}

// Acknowledged reports whether every wait was ended by its loop, and none by its
// max, by a stop at once, or by being called off.
func (r *LameDuckReport) Acknowledged() bool {
	return !slices.ContainsFunc(r.Services, func(s LameDuckResult) bool { return s.Off || s.By != s.Until })
}

// ErrUnknownService is returned for a service that is not configured.
var ErrUnknownService = errors.New("no such service")

// LameDuck begins the lame duck of services, or joins one that is under way, and
// returns when the wait of each has ended; with Off when what was announced has
// been taken back. ctx ends the call, not the lame duck. Off is refused with
// ErrStopping while a stop is under way.
func (s *Supervisor) LameDuck(ctx context.Context, req LameDuckRequest) (*LameDuckReport, error) {
	return s.lameDuck(ctx, req, false, func() {})
}

// lameDuck is LameDuck, or, with join, only its wait. taken is called once it waits.
func (s *Supervisor) lameDuck(ctx context.Context, req LameDuckRequest, join bool, taken func()) (*LameDuckReport, error) {
	w := &lameWaiter{req: req, answered: make(chan Refusal, 1), done: make(chan *LameDuckReport, 1)}
	if err := s.ask(ctx, func(l *loop) { l.requestLame(w, join) }); err != nil {
		return nil, err
	}
	select {
	case refused := <-w.answered:
		switch refused {
		case RefusedStopping:
			return nil, ErrStopping
		case RefusedUnknown:
			return nil, ErrUnknownService
		}
		taken()
	case <-s.done:
		return nil, ErrClosed
	}
	return outcome(ctx, s, w.done)
}

// lameWaiter is somebody who waits for the end of lame ducks.
type lameWaiter struct {
	req      LameDuckRequest
	answered chan Refusal
	done     chan *LameDuckReport
	ended    map[string]LameDuckResult // so far
}

func (l *loop) requestLame(w *lameWaiter, join bool) {
	l.requests++
	l.lames[l.requests] = w
	if join {
		l.lameAnswer(acLamed{Request: l.requests})
		l.lamesOver()
		return
	}
	l.queue(evLame{Request: l.requests, Services: w.req.Services, Off: w.req.Off})
}

func (l *loop) lameAnswer(a acLamed) {
	w := l.lames[a.Request]
	delete(l.lames, a.Request)
	if w == nil {
		return
	}
	w.answered <- a.Refused
	if a.Refused != RefusedNot {
		return
	}
	if len(w.req.Services) == 0 {
		for _, name := range l.state.Order {
			if !l.state.Services[name].Removed {
				w.req.Services = append(w.req.Services, name)
			}
		}
	}
	w.ended = map[string]LameDuckResult{}
	l.lamed = append(l.lamed, w)
}

// lamesOver answers those whose lame ducks have all ended.
func (l *loop) lamesOver() {
	now := proc.Now()
	l.lamed = slices.DeleteFunc(l.lamed, func(w *lameWaiter) bool {
		report := &LameDuckReport{Services: []LameDuckResult{}}
		for _, name := range w.req.Services {
			svc := l.state.Services[name]
			r, over := w.ended[name]
			switch {
			case over:
			case svc == nil || svc.Lame == nil && !w.req.Off:
				r, over = LameDuckResult{Service: name, Off: true}, true
			case w.req.Off:
				r, over = LameDuckResult{Service: name, Off: true}, svc.Undo == 0 || svc.Lame != nil
			case svc.Lame.Ended != 0:
				r, over = LameDuckResult{Service: name, LameDuckStatus: *l.lameStatus(svc, now)}, true
			}
			if over {
				w.ended[name] = r
				report.Services = append(report.Services, r)
			}
		}
		if len(report.Services) < len(w.req.Services) {
			return false
		}
		w.done <- report
		return true
	})
}
