package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// SelfOptions are what an upgrade of handoverd itself needs of its command. Without
// Args it is refused.
type SelfOptions struct {
	// Args and Environ are what the new image is executed with; Args[0] names the file
	// that is executed where a request names none.
	Args, Environ []string
	// Hold has signals that would end the new image while it begins ignored, until
	// release. quiet: none of those that came before is on its way to this Supervisor. It is
	// called by the loop, and must not wait for it for long. nil: always quiet.
	Hold func() (release func(), quiet bool)
	// Flush passes on what has been logged; nil: nothing is kept back.
	Flush func()
	// Handed is what an image before this one has handed over; nil: a start.
	Handed *Handed
}

// UpgradeRequest asks for an upgrade of handoverd itself.
type UpgradeRequest struct {
	Binary string        // absolute; "": what Args[0] names now
	Within time.Duration // for the pre-flight; 0: PreflightLimit
}

// UpgradeError says why there was no upgrade: everything goes on as it was.
type UpgradeError struct{ Fault string }

func (e *UpgradeError) Error() string { return e.Fault }

// Upgrade has the binary take this process over: the same pid, children and sockets. It
// does not return if that succeeds: the process has another program then. Errors
// are *UpgradeError, ErrBusy and ErrStopping, wrapped, ErrClosed, and that of ctx, which ends the
// wait and not the upgrade.
func (s *Supervisor) Upgrade(ctx context.Context, req UpgradeRequest) error {
	return s.upgrade(ctx, req, nil)
}

// upgrade is Upgrade. taken is told its number; nil: nobody is.
func (s *Supervisor) upgrade(ctx context.Context, req UpgradeRequest, taken func(Event)) error {
	w := &upgradeWaiter{answered: make(chan acUpgradeAnswer, 1), done: make(chan UpgradeResult, 1)}
	if err := s.ask(ctx, func(l *loop) { l.requestUpgrade(req, w) }); err != nil {
		return err
	}
	select {
	case a := <-w.answered:
		switch a.Refused {
		case RefusedStopping:
			return fmt.Errorf("%w: %s", ErrStopping, a.Why)
		case RefusedBusy:
			return fmt.Errorf("%w: %s", ErrBusy, a.Why)
		}
		if taken != nil {
			taken(Event{Upgrade: &UpgradeStatus{ID: a.ID, Stage: "pre-flight"}})
		}
	case <-s.done:
		return ErrClosed
	}
	select {
	case r := <-w.done:
		return &UpgradeError{r.Fault}
	case <-ctx.Done():
		return ctx.Err()
	case <-s.done:
		return ErrClosed
	}
}

// SignalUpgrade asks for an upgrade without waiting for it, as SIGUSR2 does. The
// outcome is logged.
func (s *Supervisor) SignalUpgrade(ctx context.Context) error {
	return s.ask(ctx, func(l *loop) { l.requestUpgrade(UpgradeRequest{}, nil) })
}

type upgradeWaiter struct {
	answered chan acUpgradeAnswer
	done     chan UpgradeResult
}

// upgrading is what the loop holds of an upgrade of handoverd itself.
type upgrading struct {
	requests int
	waiting  map[int]*upgradeWaiter // by request, until it is answered
	waiters  []*upgradeWaiter       // for the end of the one under way
	cancel   context.CancelFunc     // of its pre-flight; nil: none is under way
	binary   *chosenBinary          // what it executes, once that has said ok
	resting  bool                   // nothing new is begun beside the loop
	rested   bool                   // and the servers have answered
	said     bool                   // that it is about to be executed
	held     bool                   // signals were held meanwhile
	resume   context.CancelFunc     // ends the pause of the servers; nil: there is none
	looks    bool                   // it is looked again soon
	handed   *Handed                // until the first turn
	dry      bool                   // this is a pre-flight: nothing is done to what others have
	flight   flight
}

// flight counts what execve would cut, and what cannot be begun again: programs on
// their way through the shim, hooks, probes. It is safe beside the loop.
type flight struct{ n atomic.Int64 }

func (f *flight) begin() { f.n.Add(1) }

// end also has the loop look again.
func (f *flight) end(l *loop) {
	f.n.Add(-1)
	l.call(func() {})
}

func (l *loop) requestUpgrade(req UpgradeRequest, w *upgradeWaiter) {
	up := &l.up
	up.requests++
	if w != nil {
		if up.waiting == nil {
			up.waiting = map[int]*upgradeWaiter{}
		}
		up.waiting[up.requests] = w
	}
	l.queue(evUpgrade{Request: up.requests, Binary: req.Binary, Within: req.Within})
}

func (l *loop) upgradeAnswer(a acUpgradeAnswer) {
	up := &l.up
	w := up.waiting[a.Request]
	delete(up.waiting, a.Request)
	if a.Refused != RefusedNot {
		l.log.Warn("upgrade of handoverd refused", "why", string(a.Refused)+": "+a.Why)
	}
	if w == nil { // a signal: nobody waits
		return
	}
	w.answered <- a
	if a.Refused == RefusedNot {
		up.waiters = append(up.waiters, w)
	}
}

// upgradeDone tells how an upgrade has ended.
func (l *loop) upgradeDone(r UpgradeResult) {
	up := &l.up
	if r.Fault == "" {
		l.log.Info("handoverd was upgraded", "upgrade", r.ID, "version", l.opts.Version, "pid", os.Getpid())
	} else {
		l.log.Error("handoverd was not upgraded, and goes on as it was", "upgrade", r.ID, "why", r.Fault)
	}
	l.s.hub.send(Event{Kind: "upgrade", Upgrade: &UpgradeStatus{ID: r.ID, To: r.To, Fault: r.Fault, Done: r.Fault == ""}})
	for _, w := range up.waiters {
		w.done <- r
	}
	up.waiters = nil
}

// UpgradeStatus is the upgrade of handoverd itself that is under way, or the last
// one.
type UpgradeStatus struct {
	ID    int    `json:"id"`
	Stage string `json:"stage,omitempty"` // "pre-flight", "resting", "executing"; "": it has ended
	To    string `json:"to,omitempty"`    // version of the new binary
	Done  bool   `json:"done,omitempty"`  // the new binary runs
	Fault string `json:"fault,omitempty"` // why it does not
}

func (l *loop) upgradeStatus() *UpgradeStatus {
	if up := l.state.Self; up != nil {
		st := &UpgradeStatus{ID: up.ID, To: up.To, Stage: "pre-flight"}
		if up.Checked {
			st.Stage = "resting"
		}
		return st
	}
	if r := l.state.Upgraded; r != nil {
		return &UpgradeStatus{ID: r.ID, To: r.To, Fault: r.Fault, Done: r.Fault == ""}
	}
	return nil
}

// stepUpgrade does beside the state what its upgrade wants.
func (l *loop) stepUpgrade() {
	up := &l.up
	self := l.state.Self
	switch {
	case self == nil && up.cancel != nil:
		if up.held {
			l.readers.Add(1) // Run waits for it
			go l.lookAtConfig()
		}
		up.end()
	case self != nil && self.Checked && !up.resting && up.binary != nil:
		l.rest()
	}
}

// end forgets an upgrade that was given up. The servers go on when their pause ends.
func (up *upgrading) end() {
	up.cancel()
	if up.resume != nil {
		up.resume()
	}
	if up.binary != nil {
		up.binary.close()
	}
	up.binary, up.cancel, up.resume, up.resting, up.rested, up.said, up.held = nil, nil, nil, false, false, false, false
}

// rest has nothing new begun beside the loop.
func (l *loop) rest() {
	up := &l.up
	up.resting = true
	for q, end := range l.asked { // who is asked is asked again by the next one
		end()
		delete(l.asked, q)
	}
	for d, end := range l.hooks {
		if d.Kind == dutyAsk {
			end()
			delete(l.hooks, d)
		}
	}
}

// hush has the servers answer what they have been asked, and no more. It is begun last: until the execve nobody
// gets an answer, as a balancer that asks for /ready.
func (l *loop) hush() {
	var ctx context.Context
	ctx, l.up.resume = context.WithCancel(l.ctx)
	l.readers.Add(1) // Run waits for it
	go l.quiesce(ctx, l.state.Self.ID)
}

// quiesce holds the servers until ctx ends. Run waits for it.
func (l *loop) quiesce(ctx context.Context, id int) {
	defer l.readers.Done()
	l.s.pausing.Lock() // the pause of an upgrade that was given up ends first
	defer l.s.pausing.Unlock()
	l.s.pauseServers(ctx)
	l.call(func() {
		if l.state.Self != nil && l.state.Self.ID == id {
			l.up.rested = true
		}
	})
	<-ctx.Done()
	l.s.resumeServers()
}

// serveUpgrade upgrades and streams what happens meanwhile. Where it succeeds the
// stream ends without an outcome, with this program: who asked finds it in the status of
// the next one, by the number in the first event.
func (s *Supervisor) serveUpgrade(w http.ResponseWriter, r *http.Request) {
	within, err := durationParam(r, "within")
	if err != nil {
		writeError(w, http.StatusBadRequest, "bad request", err)
		return
	}
	req := UpgradeRequest{Binary: r.URL.Query().Get("binary"), Within: within}
	s.streamWhile(w, r, func(ctx context.Context, taken func(Event)) (*ReloadReport, error) {
		return nil, s.upgrade(ctx, req, taken)
	})
}

// upgradeCode is the code of a fault of an upgrade in the control API, else "".
func upgradeCode(err error) string {
	if _, ok := errors.AsType[*UpgradeError](err); ok {
		return "refused"
	}
	return ""
}
