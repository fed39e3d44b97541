package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Options say how a Supervisor does its work. The zero value of each field is
// usable but for Load.
type Options struct {
	// Load reads the configuration: at the start and at each reload, from a
	// goroutine of its own.
	Load func() (*Config, error)
	// LoadTop reads what LoadTop does, where Load fails at the start: what an earlier handoverd has left is
	// taken over all the same. nil: then there is no start.
	LoadTop func() (*Config, error)
	// Name is the configuration's name in messages, usually its file.
	Name string
	// Dir is what relative directories and commands are resolved against;
	// "": the working directory.
	Dir string
	// Log gets one line per transition; nil: none.
	Log *slog.Logger
	// Output gets what the programs write, each line with a prefix; nil: the
	// process's stderr.
	Output io.Writer
	// Thread starts the children; nil: a thread of Run's own.
	Thread *MainThread
	// Metrics is served as /metrics on the admin address; nil: nothing is.
	Metrics http.Handler
	// Version is told in the status.
	Version string
	// Manager is who has started this process and wants to hear how it is.
	Manager ServiceManager
	// Self is what an upgrade of handoverd itself needs; zero: it is refused.
	Self SelfOptions
}

// Supervisor owns the sockets and runs the services. Its methods may be called
// from any goroutine; they talk to the loop, which Run is.
type Supervisor struct {
	opts  Options
	cfg   *Config
	fault error            // why the configuration cannot be used; nil: it can
	calls chan func(*loop) // to the loop
	done  chan struct{}    // closed when Run returns
	state atomic.Pointer[snapshot]
	hub   hub

	probers probers // who ask for /ready

	servers sync.WaitGroup // of the HTTP servers; finish waits for them
	served  []*served      // by Run, before anything is accepted
	pausing sync.Mutex     // held while an upgrade has them paused
}

// Errors of Reload and Run.
var (
	// ErrStopping is returned by Reload while a stop is under way.
	ErrStopping = errors.New("stopping")
	// ErrBusy is returned by Reload with NoQueue where it would have to wait.
	ErrBusy = errors.New("busy")
	// ErrClosed is returned by every method after Run has returned.
	ErrClosed = errors.New("supervisor: not running")
)

// New reads the configuration. It binds nothing and starts nothing: Run does.
func New(opts Options) (*Supervisor, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Output == nil {
		opts.Output = os.Stderr
	}
	if opts.Dir == "" {
		dir, err := os.Getwd()
		if err != nil {
			return nil, fmt.Errorf("supervisor: %w", err)
		}
		opts.Dir = dir
	}
	cfg, err := opts.Load()
	if err != nil {
		if cfg = opts.takesOver(); cfg == nil {
			return nil, err
		}
	}
	return &Supervisor{opts: opts, cfg: cfg, fault: err, calls: make(chan func(*loop)), done: make(chan struct{})}, nil
}

// Config is the configuration as New read it.
func (s *Supervisor) Config() *Config { return s.cfg }

// ask runs f on the loop, which is the only way to reach what the loop owns.
func (s *Supervisor) ask(ctx context.Context, f func(*loop)) error {
	ran := make(chan struct{})
	select {
	case s.calls <- func(l *loop) { defer close(ran); f(l) }:
	case <-s.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	<-ran // once taken it runs without delay
	return nil
}

// ReloadRequest says what to reload.
type ReloadRequest struct {
	Services []string // nil: all
	NoQueue  bool     // ErrBusy instead of waiting for another reload or for max_draining
}

// ReloadReport is how a reload ended.
type ReloadReport struct {
	Job     int             `json:"job"`
	First   bool            `json:"first,omitempty"` // the start of handoverd itself
	Results []ServiceResult `json:"results"`
	// Aborted tells what Abort has rolled back before.
	Aborted []ServiceResult `json:"aborted,omitempty"`
}

// ServiceResult is what became of one service.
type ServiceResult struct {
	Result
	// How is the wait status in words, where the new generation's process ended.
	How string `json:"how,omitempty"`
	// Output has its last lines, where the reload failed.
	Output []string `json:"output,omitempty"`
}

// OK reports whether every service that was asked for serves anew, or was
// removed on purpose.
func (r *ReloadReport) OK() bool {
	for _, s := range r.Results {
		if s.Outcome != OutcomeServing && s.Outcome != OutcomeRemoved {
			return false
		}
	}
	return true
}

// Released reports whether every retired generation was seen to let go, or
// cannot be looked at.
func (r *ReloadReport) Released() bool {
	for _, s := range r.Results {
		if s.Release == ReleaseNo {
			return false
		}
	}
	return true
}

// Reload reloads and waits for the outcome: every service serving and the old
// generations seen to let go (or not, within release_timeout), failed or
// refused. ctx ends the wait, not the reload.
func (s *Supervisor) Reload(ctx context.Context, req ReloadRequest) (*ReloadReport, error) {
	return s.request(ctx, req, WhyReload, nil)
}

// request has a job done and waits for its outcome. taken is told which job it is, where
// the request was taken; nil: nobody is.
func (s *Supervisor) request(ctx context.Context, req ReloadRequest, why Why, taken func(Event)) (*ReloadReport, error) {
	w := &waiter{answered: make(chan acAnswer, 1), done: make(chan *ReloadReport, 1)}
	if err := s.ask(ctx, func(l *loop) { l.request(req, why, w) }); err != nil {
		return nil, err
	}
	select {
	case a := <-w.answered:
		switch a.Refused {
		case RefusedStopping:
			return nil, ErrStopping
		case RefusedBusy:
			return nil, ErrBusy
		case RefusedNoBack:
			return nil, ErrNoBack
		}
		if taken != nil {
			taken(Event{Job: a.Job})
		}
	case <-s.done:
		return nil, ErrClosed
	}
	return outcome(ctx, s, w.done)
}

// outcome waits for the report of what was asked for.
func outcome[T any](ctx context.Context, s *Supervisor, report <-chan *T) (*T, error) {
	select {
	case r := <-report:
		return r, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.done:
		select {
		case r := <-report: // answered in its last turn
			return r, nil
		default:
			return nil, ErrClosed
		}
	}
}

// StopRequest says how to stop. The zero value is what SIGTERM asks for.
type StopRequest struct {
	Now bool // end at once
	// Within is the notice that is left: all times of the stop are scaled down so
	// that it ends by then, also of one that is under way. 0, or more than the
	// deadline of a service: as configured.
	Within time.Duration
}

// Stop begins the stop of everything, inside the deadline of each service; the
// second time, or with Now, it ends at once. Run returns when it is done.
func (s *Supervisor) Stop(ctx context.Context, req StopRequest) error {
	return s.ask(ctx, func(l *loop) { l.askedToStop(evStop{Now: req.Now, Within: req.Within}) })
}

// Done is closed when Run has returned.
func (s *Supervisor) Done() <-chan struct{} { return s.done }

// waiter is somebody who waits for a reload, or for what an abort comes to.
type waiter struct {
	answered chan acAnswer
	aborted  chan abortAnswer
	done     chan *ReloadReport
}

// Signal asks for a reload of everything without waiting for it, as SIGHUP does.
func (s *Supervisor) Signal(ctx context.Context) error {
	return s.ask(ctx, func(l *loop) { l.queue(evReload{}) })
}
