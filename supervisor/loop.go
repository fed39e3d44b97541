package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// loop is the one goroutine that owns the state. Everything in it but what is
// marked otherwise is used by that goroutine alone.
type loop struct {
	s    *Supervisor
	opts *Options
	log  *slog.Logger

	state    State
	config   *Config      // last applied
	note     string       // why the file is not what runs, for the status; "": nothing is known against it
	turned   proc.Instant // when the last turn was
	pending  []event      // made by actions, handled before anything from outside
	children map[at]*child
	texts    map[at]string // STATUS= of the generations
	asked    map[question]context.CancelFunc
	sockets  *socketTable
	waiting  map[int]*waiter     // by request
	jobs     map[int][]*waiter   // by job
	outcomes []*ReloadReport     // of the newest jobs, for those who come back
	lames    map[int]*lameWaiter // by request, until it is answered
	lamed    []*lameWaiter       // who wait for the end of a lame duck
	hooks    map[duty]context.CancelFunc
	requests int
	code     int
	exit     bool
	saveErr  error
	// heldSaved is what the state file says that there is besides the state.
	heldSaved held
	fault     error // a first start that was refused

	// Safe beside the loop.
	events  chan event
	calls   chan func()
	ended   chan struct{} // closed when the loop takes no more events
	readers sync.WaitGroup
	base    sync.WaitGroup // the reaper and the thread: what the readers stand on
	dir     *runtimeDir
	reaper  *proc.Reaper
	thread  *MainThread
	output  *output
	scan    *scanner
	lookout *lookout
	ctx     context.Context

	// The loop's alone.
	keep      keeping
	manager   manager
	store     fdStore
	kept      map[string]bool // by name: what the store has passed; not changed after the restore
	passed    []PassedSocket  // sockets of systemd's socket units
	stopAsked bool            // systemd is asked what follows a stop
	pidns     uint64
	self      heldProcess           // this process
	found     *savedState           // what an earlier handoverd has left, until restore
	elsewhere bool                  // of another boot or pid namespace
	orphan    heldProcess           // a keeper that does not answer
	pathless  []string              // keys of sockets that were taken back and whose path cannot be brought back
	strays    bool                  // programs run that no state knows, and a keeper has their sockets
	spare     map[string]int        // by key: sockets of the keeper that no state knows; until the first install
	sources   map[string]string     // by key: whom a socket was taken back from
	missing   map[string]heldSocket // by key: what could not be taken back, or was closed in a crash loop
	rules     map[int]Sources       // by user: see sourcesOf
	programs  map[string]*keptFile  // by digest: see toRun
	unkept    map[at]bool           // whose program could not be kept, which was told
	ends      Terminations
	up        upgrading // of handoverd itself
}

// Run binds the sockets, starts the services and returns when everything has
// been stopped: after Stop, or when ctx ends, which stops in the same way. The
// code is the one that handoverd exits with: 0, or ExitCut if something had to be
// cut off. A first start that is refused (a bind, a check) is an error, and so is a
// runtime directory that cannot be had.
func (s *Supervisor) Run(ctx context.Context) (code int, err error) {
	l, err := newLoop(s)
	if err == nil {
		err = errors.Join(s.serveControl(), s.serveHTTP())
	}
	if err != nil {
		return 1, s.notBegun(l, err)
	}
	threadDone := make(chan struct{})
	l.thread = s.opts.Thread
	if l.thread == nil {
		l.thread = NewMainThread()
		l.base.Add(1)
		go l.serveThread(threadDone)
	}
	var cancel context.CancelFunc
	l.ctx, cancel = context.WithCancel(context.Background())
	reaping, stopReaping := context.WithCancel(context.Background())
	first, err := l.takeOver()
	if err != nil {
		cancel()
		stopReaping()
		return 1, s.notBegun(l, err)
	}
	// Every goroutine that is counted in base or readers is waited for below.
	l.base.Add(1)
	go l.reap(reaping)
	l.readers.Add(5)
	go l.followOutput()
	go l.followPaths()
	go l.followHarm()
	go l.look()
	go l.lookOut()

	l.findStore()
	l.beginLife()
	l.beginTurns(first)
	err = l.run(ctx)

	l.leaveStore(err)
	l.leaveManager(err)
	close(l.ended)
	clean := len(l.children) == 0 // else somebody is to find them
	for _, c := range l.children {
		c.release()
	}
	l.sockets.closeAll(l.outlives)
	l.endKeeper(err)
	_, _ = l.sockets.paths.close(), l.sockets.harm.close()
	cancel()
	l.output.close(l.timeLeft())
	l.readers.Wait()
	l.closePrograms()
	// A check or a helper that was under way has been killed by one of the readers,
	// who waited until the reaper saw its end.
	close(threadDone)
	stopReaping()
	l.base.Wait()
	l.endLife(err)
	// The lock goes last: whoever has it makes the control socket anew, and must
	// not have it taken away by us.
	s.finish()
	return l.code, errors.Join(err, l.dir.close(clean))
}

// finish ends everybody who talks to this supervisor, once all has been said. It
// waits until the last answers were written, though not for long.
func (s *Supervisor) finish() {
	close(s.done)
	s.hub.close()
	s.servers.Wait()
}

// beginTurns makes the first turn of an image that has taken over, or queues that of
// any other life. Only then is there a keeper started that was not there.
func (l *loop) beginTurns(over *evRestored) {
	if over != nil {
		l.turn(*over)
	} else {
		l.queue(l.restore())
	}
	l.startKeeper()
}

func newLoop(s *Supervisor) (*loop, error) {
	if err := proc.CheckMount(); err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	boot, err := proc.BootID()
	if err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	pidns, err := proc.PIDNamespace()
	if err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	if err := proc.SetSubreaper(); err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	dir, err := s.runtimeDir()
	if err != nil {
		return nil, err
	}
	out, err := newOutput(dir, s.opts.Output, s.opts.Log)
	if err != nil {
		return nil, errors.Join(err, dir.close(false))
	}
	paths, err := newPathWatcher()
	if err != nil {
		out.close(0)
		return nil, errors.Join(err, dir.close(false))
	}
	harm, err := newHarmWatcher()
	if err != nil {
		out.close(0)
		return nil, errors.Join(err, paths.close(), dir.close(false))
	}
	l := &loop{
		s: s, opts: &s.opts, log: s.opts.Log,
		state:    State{Version: StateVersion, BootID: boot, Services: map[string]*Service{}},
		children: map[at]*child{}, texts: map[at]string{}, asked: map[question]context.CancelFunc{}, sockets: newSocketTable(s.opts.Log, paths, harm),
		waiting: map[int]*waiter{}, jobs: map[int][]*waiter{},
		lames: map[int]*lameWaiter{}, hooks: map[duty]context.CancelFunc{},
		events: make(chan event, 64), calls: make(chan func(), 16), ended: make(chan struct{}),
		dir: dir, output: out, reaper: proc.NewReaper(),
	}
	l.keep = keeping{off: keeperOff(s.cfg), pidfd: -1}
	l.self = heldProcess{PID: os.Getpid()}
	if l.self.StartTime, err = proc.StartTime(l.self.PID); err != nil {
		l.self = heldProcess{} // /proc hides it: nobody will know it again
	}
	l.pidns, l.spare, l.sources = pidns, map[string]int{}, map[string]string{}
	l.programs, l.unkept = map[string]*keptFile{}, map[at]bool{}
	l.rules, l.missing = map[int]Sources{}, map[string]heldSocket{}
	l.manager = l.meetManager(s.opts.Manager)
	l.scan, l.lookout = newScanner(l.post, l.reaper), newLookout(l.post)
	if h := s.opts.Self.Handed; h != nil {
		l.up.handed, l.up.dry, out.dry = h, h.rehearsal, h.rehearsal
		return l, l.findHanded(boot)
	}
	if err := l.findState(boot); err != nil {
		out.close(0)
		return nil, errors.Join(err, paths.close(), harm.close(), dir.close(false))
	}
	return l, nil
}

// The loop's helpers; Run waits for each of them.

func (l *loop) reap(ctx context.Context) { defer l.base.Done(); l.reaper.Run(ctx) }
func (l *loop) followOutput()            { defer l.readers.Done(); l.output.follow() }
func (l *loop) look()                    { defer l.readers.Done(); l.scan.run(l.ctx) }
func (l *loop) lookOut()                 { defer l.readers.Done(); l.lookout.run(l.ctx) }
func (l *loop) serveThread(done <-chan struct{}) {
	defer l.base.Done()
	lockedThread(l.thread, done)
}

// followPaths has the paths of UNIX sockets brought back. Run waits for it.
func (l *loop) followPaths() {
	defer l.readers.Done()
	for {
		changed, err := l.sockets.paths.wait()
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				l.log.Error("paths of sockets are not watched any more", "err", err)
			}
			return
		}
		l.call(func() { l.restorePaths(changed) })
	}
}

// post hands an event to the loop. It is the only way in from outside, and does
// not hang when the loop has ended.
func (l *loop) post(e event) {
	select {
	case l.events <- e:
	case <-l.ended:
	}
}

// call has f run by the loop, without waiting for it.
func (l *loop) call(f func()) {
	select {
	case l.calls <- f:
	case <-l.ended:
	}
}

// queue adds an event from the loop's own goroutine.
func (l *loop) queue(e event) { l.pending = append(l.pending, e) }

// run is the loop: one event at a time, one timer set to the earliest deadline.
func (l *loop) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop := ctx.Done()
	for {
		for len(l.pending) > 0 {
			e := l.pending[0]
			l.pending = l.pending[1:]
			l.turn(e)
		}
		if l.exit {
			return l.fault
		}
		l.saveHeld()
		if l.tryExec(); len(l.pending) > 0 { // it failed
			continue
		}
		l.setTimer(timer)
		select {
		case e := <-l.events:
			l.queue(e)
		case f := <-l.calls:
			f()
		case f := <-l.s.calls:
			f(l)
		case <-timer.C:
			l.queue(evTick{}) // whose turn also closes the sockets that leave
		case <-stop:
			stop = nil
			l.askedToStop(evStop{})
		}
	}
}

// setTimer sets the one timer to the earliest deadline. Deadlines are compared
// with the time of the last turn, not with the present: what fell due since then
// has not been acted on, and would be passed over.
func (l *loop) setTimer(timer *time.Timer) {
	next := nextDeadline(&l.state, l.turned)
	for _, t := range []proc.Instant{l.sockets.next(), l.manager.wake()} {
		if t != 0 && (next == 0 || t < next) {
			next = t
		}
	}
	if again := l.turned.Add(tryAgain); (l.saveErr != nil || l.keep.behind) && (next == 0 || again < next) {
		next = again
	}
	if again := l.turned.Add(resendAfter); l.keep.fault != "" && (next == 0 || again < next) {
		next = again
	}
	timer.Stop()
	if next != 0 {
		timer.Reset(max(0, next.Until()))
	}
}

// turn is one turn: decide, write the state, act.
func (l *loop) turn(e event) {
	if e, ok := e.(evWritten); ok {
		close(e.done)
		return
	}
	now := proc.Now()
	l.turned = now
	l.manager.hear(e)
	old := l.state
	actions := l.decide(e, now)
	l.arrive()
	moved := l.report(&old, &l.state)
	for _, a := range actions {
		l.act(a)
	}
	l.closing()
	l.removeOwnPaths(&old, &l.state)
	l.rebindPathless()
	l.sockets.keep(neededSockets(&l.state), emptiedSockets(&l.state), now)
	if _, begins := e.(evRestored); moved || begins {
		l.setRight()
	}
	l.leftSockets()
	l.dropPrograms()
	l.syncKeeper()
	l.syncStore()
	l.scan.update(l.watches())
	l.stepUpgrade()
	l.keepAsking()
	l.lookout.update(l.connections())
	l.perform()
	l.lamesOver()
	l.publish()
	l.tellManager()
}

// install takes what a preparation has made.
func (l *loop) install(p *preparation, r prepared) {
	defer closeFDs(l.spare) // those that were wanted have been copied
	if r.event.Fault == "" {
		if err := p.complete(&r, l.sockets.known()); err != nil {
			r.refuse(err)
		}
	}
	if r.event.Fault == "" {
		l.sockets.add(r.bound)
		maps.Copy(l.sources, r.from)
		l.config = r.config
		p.noted("")
	} else {
		if l.config == nil { // the first start: there is nothing to go on with, and Run says why
			l.fault = errors.New(r.event.Fault)
			l.code, l.exit = 1, true
		} else {
			l.log.Error("reload refused, nothing was changed", "job", r.event.Job, "err", r.event.Fault)
			p.noted("the last reload was refused: " + r.event.Fault)
		}
	}
	l.queue(r.event)
}
