package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A Sequence is the ordered end of a program: lame duck, drain, closing, within
// one deadline. The zero value is ready, with the defaults said at each field;
// set the fields first, then register everything, then Run. A Sequence must not
// be copied after first use.
//
//	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
//	defer stop()
//	server := drain.HTTP(&http.Server{Handler: mux})
//	seq := &drain.Sequence{LameDuck: drain.Timer(5 * time.Second)}
//	seq.Add("http", server)
//	seq.OnClose("database", func(context.Context) error { return db.Close() })
//	mux.Handle("/ready", seq.ReadyHandler())
//	go server.Serve(listener)
//	if err := seq.Run(ctx); err != nil {
//		log.Print(err) // what was cut
//		os.Exit(3)
//	}
type Sequence struct {
	// Deadline is the time from the signal to the exit; all phases are within
	// it. 0 is 25 s, which leaves 5 of a platform's 30. Where Supervisor asks its
	// deadline stands in its place.
	Deadline time.Duration

	// LameDuck says how the wait for the routing layer ends. nil: there is no
	// such phase. Left out when Supervisor asks: after a hand-over new clients
	// reach another generation already, and before a stop the wait was the
	// supervisor's (handoverd's stop.lame_duck), which lets nobody in any more.
	LameDuck Loop

	// Drain is the longest the drain may take. 0: all that the other phases
	// leave.
	Drain time.Duration

	// Closing is kept for the closers; the drain cannot eat it. 0 is 5 s, or a
	// fifth of the deadline if that is less; negative is nothing. What the
	// drain leaves of its own time is the closers' as well.
	Closing time.Duration

	// Supervisor may begin the sequence, too. nil: there is none. Which of a
	// hand-over and a stop it was is in the Report.
	Supervisor Supervisor

	// Metrics is told of everything. May be nil.
	Metrics Metrics

	// OnPhase is called on each change of phase, by Run, which waits for it.
	// May be nil.
	OnPhase func(Transition)

	// OnLong is called when a request or job has ended that took longer than
	// any before, and longer than a drain would have waited for it: raise
	// Deadline before the next stop cuts one. May be nil.
	OnLong func(Seen)

	once     sync.Once
	begun    chan struct{}
	observer observer
	probes   probes

	mu      sync.Mutex // guards what follows
	phase   Phase
	ran     bool   // Run has begun
	lame    bool   // has been a lame duck
	cause   string // of the begin by hand
	unready string
	report  Report
	targets []target
	closers []closer
}

// A target is a Target by its name.
type target struct {
	name string
	Target
}

// defaultDeadline and defaultClosing are those of the fields.
const (
	defaultDeadline = 25 * time.Second
	defaultClosing  = 5 * time.Second
)

func (s *Sequence) init() { s.once.Do(s.initOnce) }

func (s *Sequence) initOnce() {
	s.begun = make(chan struct{})
	s.observer.metrics, s.observer.long = s.Metrics, s.OnLong
	s.observer.longest = make(map[Kind]Seen)
	s.observer.limit = s.drainLimit()
	if s.LameDuck != nil {
		_ = s.LameDuck.prepare(&s.probes) // Run says what is missing
	}
}

// deadline is the field, or its default.
func (s *Sequence) deadline() time.Duration {
	if s.Deadline == 0 {
		return defaultDeadline
	}
	return s.Deadline
}

// reserve is the closers' share of total.
func (s *Sequence) reserve(total time.Duration) time.Duration {
	switch {
	case s.Closing < 0:
		return 0
	case s.Closing == 0:
		return min(defaultClosing, total/5)
	}
	return min(s.Closing, total/2) // a supervisor's deadline may be shorter than planned
}

// wait is the longest the lame duck phase may take.
func (s *Sequence) wait() time.Duration {
	if s.LameDuck == nil {
		return 0
	}
	return s.LameDuck.limit()
}

// Budget returns the time line of a stop, for check and for print.
func (s *Sequence) Budget() Budget {
	total := s.deadline()
	reserve := s.reserve(total)
	if s.Closing > 0 {
		reserve = s.Closing
	}
	return Budget{Key: "Deadline", Limit: total, LameDuck: s.wait(), Drain: s.Drain, KillGrace: reserve}
}

// drainLimit is how long a drain waits for a piece of work, at the least.
func (s *Sequence) drainLimit() time.Duration {
	if s.Drain > 0 {
		return s.Drain
	}
	b := s.Budget()
	return b.Limit - b.sum()
}

// Add registers what is drained, all of it at the same time. The name is what a
// straggler is called by when t cannot name one. Call it before Run.
func (s *Sequence) Add(name string, t Target) {
	s.init()
	s.mu.Lock()
	s.targets = append(s.targets, target{name, t})
	s.mu.Unlock()
	if o, ok := t.(observable); ok {
		o.observe(&s.observer)
	}
}

// Begin begins the sequence by hand; why is for the account. Only the first
// begin of any kind counts.
func (s *Sequence) Begin(why string) {
	s.init()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause == "" {
		s.cause = cmp.Or(why, "asked")
		close(s.begun)
	}
}

// Phase returns the phase.
func (s *Sequence) Phase() Phase {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase
}

// Report returns the account so far.
func (s *Sequence) Report() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report
}

// Longest returns the longest request and the longest job that have ended, and
// whether a drain would have waited for each. Event streams and hijacked
// connections do not count: they live for as long as their clients like.
func (s *Sequence) Longest() (seen []Seen, fit bool) {
	s.init()
	seen, fit = s.observer.seen(), true
	for _, one := range seen {
		fit = fit && (s.observer.limit <= 0 || one.Took <= s.observer.limit)
	}
	return seen, fit
}

// Run waits for the begin and goes through the phases. What begins it is the
// end of ctx (a signal, by signal.NotifyContext), Supervisor, or Begin.
//
// It returns nil when nothing was cut off and every closer succeeded; otherwise
// an error that has a *CutError if something was cut. Times that cannot work
// are a *BudgetError and mistaken closers or targets an error, at once, before
// it waits. It returns by the deadline, whatever targets and closers do; then the
// program should exit. Run is called once; a second one returns an error.
func (s *Sequence) Run(ctx context.Context) error {
	s.init()
	closers, err := s.prepare()
	if err != nil {
		return err
	}
	r := &run{Sequence: s, signal: ctx}
	r.await()
	defer r.limits.stop()
	if !r.supervised {
		r.lameDuck()
	}
	stragglers := r.drain()
	hung, failed := r.close(closers)
	return errors.Join(r.done(append(stragglers, hung...)), failed)
}

// prepare refuses what could only fail at the end, and returns the closers in
// their order.
func (s *Sequence) prepare() ([]closer, error) {
	if err := s.Budget().Check(); err != nil {
		return nil, err
	}
	if s.LameDuck != nil {
		if err := s.LameDuck.prepare(&s.probes); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.targets {
		if t.Target == nil {
			return nil, fmt.Errorf("drain: target %q is nil", t.name)
		}
	}
	closers, err := order(s.closers)
	if err == nil && s.ran {
		err = errors.New("drain: the sequence has been run already")
	}
	s.ran = s.ran || err == nil
	return closers, err
}

// enter changes the phase and tells.
func (s *Sequence) enter(p Phase, cause string) {
	now := time.Now()
	s.mu.Lock()
	from := s.phase
	s.phase = p
	s.lame = s.lame || p == LameDuck
	s.mu.Unlock()
	if from == p {
		return
	}
	if s.Metrics != nil {
		s.Metrics.SetPhase(p)
	}
	if s.OnPhase != nil {
		s.OnPhase(Transition{From: from, To: p, At: now, Cause: cause})
	}
}

// account changes the report.
func (s *Sequence) account(f func(r *Report)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.report)
}

// why is what to say of a context that has ended.
func why(ctx context.Context) string {
	return fmt.Sprint(context.Cause(ctx))
}
