package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Reaper waits for the children of this process.
//
// A child that was started through Start is only looked at when it ends: it stays a zombie until Release, so that
// its number, which is also that of its session and process group, cannot be given to a stranger while the rest of
// its generation is being killed. Every other child is a stranger, an orphan that the kernel gave to this process
// (SetSubreaper, or pid 1), and is reaped as soon as it is dead.
//
// One mutex covers "start and write down the pid" and "peek, decide, reap": a child that ends before its pid is
// written down would otherwise be taken for a stranger and its status lost. For the same reason every child of the
// process must be started through Start while Run is running; os/exec would find that its child is gone.
type Reaper struct {
	mu       sync.Mutex // also held while a child is being started
	children map[int]*child
	kick     chan struct{} // asks Run for one more pass; capacity 1
	reaped   atomic.Uint64
}

type child struct {
	exited   func(Exit)
	dead     bool // its end was seen and reported
	released bool // reap it as soon as it is dead
}

// NewReaper returns a Reaper without children. Run has to be called for it to do anything.
func NewReaper() *Reaper {
	return &Reaper{children: make(map[int]*child), kick: make(chan struct{}, 1)}
}

// SetSubreaper makes this process the parent of orphans among its descendants (prctl(2) PR_SET_CHILD_SUBREAPER,
// Linux 3.4). The setting belongs to the whole process, outlives execve and is not inherited by children.
func SetSubreaper() error {
	return os.NewSyscallError("prctl PR_SET_CHILD_SUBREAPER", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

// Run looks after the children until ctx is done. It is meant to be called once, in a goroutine of its own; the
// caller waits for it to return. Children that survived an execve of this process have to be made known by Start
// before Run, which would take them for strangers.
func (r *Reaper) Run(ctx context.Context) {
	// Signals of one kind merge while one is pending, and so do those in the channel: each stands for "at least one
	// child has changed", and a pass looks at all of them.
	sigchld := make(chan os.Signal, 1)
	signal.Notify(sigchld, unix.SIGCHLD)
	defer signal.Stop(sigchld)
	for {
		var later <-chan time.Time
		if !r.pass() {
			later = time.After(reapAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-sigchld:
		case <-r.kick:
		case <-later:
		}
	}
}

// Start calls start, which starts a child and returns its pid, and writes the pid down. exited is called once when
// the child has ended, from Run's goroutine, with no lock held: it may call Release; nil is allowed. start runs under the Reaper's
// lock and must not call it. An error of start is returned as it is, and exited is then never called.
//
// start may also return the pid of a child that is already running, to make it known after an execve.
func (r *Reaper) Start(start func() (pid int, err error), exited func(Exit)) (pid int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err = start()
	if err != nil {
		return 0, err
	}
	r.children[pid] = &child{exited: exited}
	// A child that was made known after its end has no SIGCHLD left to send.
	select {
	case r.kick <- struct{}{}:
	default:
	}
	return pid, nil
}

// Release lets the child be reaped: now if its end has been reported, else as soon as it ends. Afterwards pid may
// belong to anyone. It returns ESRCH for a pid that is not, or no longer, held.
func (r *Reaper) Release(pid int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.children[pid]
	if !ok {
		return fmt.Errorf("release child %d: %w", pid, unix.ESRCH)
	}
	c.released = true
	if !c.dead {
		return nil
	}
	delete(r.children, pid)
	if err := reap(pid); err != nil && !errors.Is(err, unix.ECHILD) {
		return fmt.Errorf("release child %d: %w", pid, err)
	}
	return nil
}

// Reaped returns how many strangers have been reaped so far.
func (r *Reaper) Reaped() uint64 { return r.reaped.Load() }

// reapAgain is when strangers are looked for again that could not be found for want of descriptors or memory.
const reapAgain = time.Second

// pass looks at all children once and reports those that have ended. It returns false if strangers may be left.
func (r *Reaper) pass() (all bool) {
	type report struct {
		exited func(Exit)
		exit   Exit
	}
	var reports []report
	r.mu.Lock()
	for pid, c := range r.children {
		if c.dead {
			continue
		}
		exit, ended := peekChild(pid)
		if !ended {
			continue
		}
		c.dead = true
		reports = append(reports, report{c.exited, exit})
		if c.released {
			delete(r.children, pid)
			// The only failure possible here is ECHILD, and then there is nothing to reap.
			_ = reap(pid)
		}
	}
	all = r.reapStrangers()
	r.mu.Unlock()
	for _, p := range reports {
		if p.exited != nil {
			p.exited(p.exit)
		}
	}
	return all
}

// reapStrangers reaps every dead child that was not started here, and reports whether it could look at all of them.
// The caller holds r.mu.
func (r *Reaper) reapStrangers() (all bool) {
	for {
		// As long as no child of ours is held the first dead child tells everything, without a look at /proc.
		pid, ok := peekAny()
		if !ok {
			return true
		}
		if _, ours := r.children[pid]; ours {
			break
		}
		if reap(pid) != nil {
			return true
		}
		r.reaped.Add(1)
	}
	// waitid(P_ALL, WNOWAIT) would return the same held zombie for ever, and a stranger behind it would stay.
	dead, err := deadChildren()
	for _, pid := range dead {
		if _, ours := r.children[pid]; ours {
			continue
		}
		if reap(pid) == nil {
			r.reaped.Add(1)
		}
	}
	return err == nil
}
