package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/keeper"
	"github.com/handoverd/handover/internal/proc"
)

// SweepReport is what Sweep has found.
type SweepReport struct {
	Ended []Swept `json:"ended"`
	// Left are the processes that the kernel has not ended.
	Left []int `json:"left,omitempty"`
}

// Swept is one process of a handoverd that is gone.
type Swept struct {
	PID        int    `json:"pid"`
	Service    string `json:"service,omitempty"` // "": no state says of which
	Generation int    `json:"generation,omitempty"`
}

// Sweep ends what a handoverd that was killed has left running in the runtime
// directory dir, as if it had been stopped: each generation of its state, all that
// these have started, its keeper, and whatever else was started with a notify socket
// of dir. They get SIGTERM, and SIGKILL after grace. Then nothing is left that a start
// could adopt, and the state goes as well. A process is signalled only by a pidfd, and
// after it was compared with the state by its start time, or by its environment.
//
// It takes the lock, so a living handoverd is an error that wraps ErrLocked, and
// nothing is touched. Where dir is missing, or no handoverd was ever in it, there is nothing
// to do. ctx ends it early, with what is left by then.
func Sweep(ctx context.Context, dir string, grace time.Duration) (*SweepReport, error) {
	report := &SweepReport{Ended: []Swept{}}
	if !used(dir) {
		return report, nil
	}
	boot, err := proc.BootID()
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	pidns, err := proc.PIDNamespace()
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	d, err := openRuntimeDir(dir)
	if err != nil {
		return nil, err
	}
	saved, stateErr := d.readState(boot, pidns)
	if errors.Is(stateErr, ErrLocked) {
		return nil, errors.Join(stateErr, d.close(false))
	}
	if stateErr != nil {
		saved = nil // of another boot, or not to be believed: what runs here is found by its environment
	}
	if errors.Is(stateErr, errElsewhere) {
		stateErr = nil
	}
	s := &sweeping{dir: d, grace: grace, seen: map[int]bool{}, report: report}
	if saved != nil {
		s.remember(saved)
	}
	if s.keeper.PID == 0 {
		s.findKeeper()
	}
	err = s.run(ctx)
	for _, c := range s.children {
		c.release()
	}
	return report, errors.Join(stateErr, err, d.close(err == nil))
}

// used reports whether a handoverd was in the directory, as far as can be told. Nothing is made
// in one of somebody else.
func used(dir string) bool {
	return slices.ContainsFunc([]string{"lock", "state.json", "notify"}, func(name string) bool {
		_, err := os.Lstat(filepath.Join(dir, name))
		return !errors.Is(err, fs.ErrNotExist)
	})
}

// sweeping is one call of Sweep.
type sweeping struct {
	dir      *runtimeDir
	grace    time.Duration
	children []*child
	keeper   heldProcess
	seen     map[int]bool
	report   *SweepReport
}

// remember takes what a state says.
func (s *sweeping) remember(saved *savedState) {
	s.keeper = saved.Held.Keeper
	for _, name := range saved.Order {
		svc := saved.Services[name]
		for _, g := range svc.Generations {
			c := verified(ref(svc, g), g, saved.Saved)
			c.path = s.dir.file("notify", c.String())
			s.children = append(s.children, c)
		}
	}
}

// findKeeper asks the keeper of the directory which process it is, where no state does.
func (s *sweeping) findKeeper() {
	claim, err := keeper.Claim(s.dir.path)
	if err != nil {
		return
	}
	defer func() { _ = claim.Close() }()
	var c *keeper.Client
	if err := control(claim, func(fd int) error { c, err = keeper.Dial(s.dir.path, fd); return err }); err != nil {
		return // there is none
	}
	defer func() { _ = c.Close() }()
	held, err := c.TakeAll(takeLimit)
	closeFDs(held)
	fd := keeper.Open(c.PID(), s.dir.path)
	if fd < 0 {
		return // it is not seen here
	}
	defer func() { _ = unix.Close(fd) }()
	if started, startErr := proc.StartTime(c.PID()); err == nil && startErr == nil {
		s.keeper = heldProcess{PID: c.PID(), StartTime: started}
	}
}

// run goes on until two passes find nothing: a process may fork while it is looked for.
func (s *sweeping) run(ctx context.Context) error {
	pause := time.NewTicker(sweepShortest)
	defer pause.Stop()
	begin := proc.Now()
	sig := unix.SIGTERM
	for empty := 0; empty < 2; {
		left, err := s.pass(sig)
		switch spent := proc.Now().Sub(begin); {
		case len(left) == 0 && err == nil:
			empty++
			continue
		case spent > s.grace+stuckAfter:
			s.report.Left = left
			return fmt.Errorf("sweep: %d processes have not ended: %w", len(left), errors.Join(err, context.DeadlineExceeded))
		case spent > s.grace:
			sig = unix.SIGKILL
		default:
			sig = 0 // once is enough: a second SIGTERM makes some programs quit at once
		}
		empty = 0
		select {
		case <-pause.C:
		case <-ctx.Done():
			s.report.Left = left
			return fmt.Errorf("sweep: %w", ctx.Err())
		}
	}
	return nil
}

// pass signals all that is there, 0 only looks, and returns their numbers.
func (s *sweeping) pass(sig unix.Signal) (left []int, err error) {
	var errs []error
	for _, c := range s.children {
		if c.pid == 0 {
			continue // it never ran
		}
		members, err := proc.MembersBefore(c.pid, c.token, c.bound())
		errs = append(errs, err)
		for _, m := range members {
			if s.signal(m.PID, m.StartTime, sig, Swept{PID: m.PID, Service: c.Service, Generation: c.Gen}) {
				left = append(left, m.PID)
			}
		}
	}
	for _, pid := range append(strays(s.dir.file("notify")), besides(s.dir)...) {
		started, err := proc.StartTime(pid)
		if err == nil && !slices.Contains(left, pid) && s.signal(pid, started, sig, Swept{PID: pid}) {
			left = append(left, pid)
		}
	}
	if k := s.keeper; k.PID != 0 && s.signal(k.PID, k.StartTime, sig, Swept{PID: k.PID}) {
		left = append(left, k.PID)
	}
	return left, errors.Join(errs...)
}

// signal sends sig to exactly that process. It reports whether it was there.
func (s *sweeping) signal(pid int, started uint64, sig unix.Signal, as Swept) bool {
	fd := openExactly(pid, started)
	if fd < 0 {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	if p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}; sig == 0 || s.ended(p) {
		return !s.ended(p)
	}
	if err := proc.SignalPidfd(fd, sig); errors.Is(err, unix.ESRCH) {
		return false
	}
	if !s.seen[pid] {
		s.seen[pid] = true
		s.report.Ended = append(s.report.Ended, as)
	}
	return true
}

// ended reports whether the process of a pidfd has exited: a zombie still has its
// number and start time.
func (s *sweeping) ended(p []unix.PollFd) bool {
	_, err := unix.Poll(p, 0)
	return err == nil && p[0].Revents != 0
}
