package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/proc"
)

// lookAgain is when it is tried again where something was still on its way.
const lookAgain = 20 * time.Millisecond

// handOver describes what there is now, and copies every descriptor by fcntl(2) with
// the command. The caller owns the copies, also those that come with an error.
func (l *loop) handOver(command int) (*handedOver, map[string]int, error) {
	state, err := encodeState(&l.state, l.held())
	if err != nil {
		return nil, nil, err
	}
	cfg := l.s.cfg
	over := &handedOver{
		Format: handedFormat, PID: processID(), Version: l.opts.Version, Comm: shownName(), Args: l.opts.Self.Args,
		RuntimeDir: cfg.RuntimeDir, Health: cfg.Health, Admin: cfg.Admin,
		State: stamped(state, proc.Now()), Sources: l.sources, Missing: l.missing, Texts: map[string]string{},
	}
	over.Events, over.LastEvent = l.s.hub.kept()
	over.Outcomes, over.Tails = l.outcomes, l.lookout.kept(&l.state)
	for a, text := range l.texts {
		over.Texts[a.String()] = text
	}
	fds := map[string]int{}
	add := func(name string, fd int) error {
		dup, err := unix.FcntlInt(uintptr(fd), command, 3)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fds[name] = dup
		return nil
	}
	items, _ := l.keepable()
	for _, it := range items {
		if err := add(it.Name, it.FD); err != nil {
			return nil, fds, err
		}
	}
	for i, p := range l.passed {
		if err := add(fmt.Sprintf("%s%06d/%s", handedPassed, i, p.Name), p.FD); err != nil {
			return nil, fds, err
		}
	}
	if err := control(l.dir.lock, func(fd int) error { return add(handedLock, fd) }); err != nil {
		return nil, fds, err
	}
	if l.dir.dir != nil {
		if err := control(l.dir.dir, func(fd int) error { return add(handedDir, fd) }); err != nil {
			return nil, fds, err
		}
	}
	for _, v := range l.s.served {
		if err := control(syscall.Conn(v.fileListener), func(fd int) error { return add(handedListen+v.name, fd) }); err != nil {
			return nil, fds, err
		}
	}
	return over, fds, nil
}

// tryExec executes the new image once nothing is on its way that would be lost. It
// returns if something is, or if execve fails: then everything goes on.
func (l *loop) tryExec() {
	up := &l.up
	switch {
	case !up.resting || l.state.Self == nil || l.state.unsettled() != "":
		return
	case !l.still():
		l.lookSoon() // output that is being passed on tells nobody when it is
		return
	case up.resume == nil:
		l.hush()
		return
	case !up.rested:
		return
	}
	resume := l.output.pause()
	id := l.state.Self.ID
	if !up.said {
		up.said = true
		l.log.Info("upgrade of handoverd: executing", "upgrade", id, "binary", up.binary.path, "version", l.state.Self.To)
	}
	if flush := l.opts.Self.Flush; flush != nil {
		flush()
	}
	err := l.executeNew()
	resume()
	if errors.Is(err, errComesUp) {
		l.lookSoon()
		return
	}
	l.queue(evUpgradeFailed{ID: id, Fault: err.Error()})
}

// lookSoon has the loop look again.
func (l *loop) lookSoon() {
	if !l.up.looks {
		l.up.looks = true
		time.AfterFunc(lookAgain, func() { l.call(func() { l.up.looks = false }) }) // does not hang after the end
	}
}

// errComesUp says that something has come up in the last moment.
var errComesUp = errors.New("not yet")

// still reports whether nothing is on its way to the loop or beside it.
func (l *loop) still() bool {
	return len(l.events) == 0 && len(l.calls) == 0 && len(l.pending) == 0 && l.up.flight.n.Load() == 0 && l.output.passed()
}

// executeNew hands everything over and executes the new image. It returns only if that
// fails. No program is started from the first copy that goes through execve until then.
func (l *loop) executeNew() (err error) {
	unlock := forkLock()
	defer unlock()
	over, fds, err := l.handOver(unix.F_DUPFD)
	defer func() { closeFDs(fds) }()
	if err != nil {
		return err
	}
	old, err := openImage("/proc/self/exe")
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(old) }()
	fault, err := memfd("handoverd-fault")
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fault) }()
	for name, fd := range map[string]int{handedOld: old, handedFault: fault} {
		if fds[name], err = inheritable(fd); err != nil {
			delete(fds, name)
			return err
		}
	}
	over.FDs = fds
	text, err := json.Marshal(over)
	if err != nil {
		return err
	}
	mem, err := sealedMemfd("handoverd-upgrade", text)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(mem) }()
	number, err := inheritable(mem)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(number) }()
	release, quiet := func() {}, true
	if hold := l.opts.Self.Hold; hold != nil { // as late as can be: a signal is ignored from here on
		release, quiet = hold()
		l.up.held = true
	}
	defer release()
	if !quiet || !l.still() {
		return errComesUp
	}
	b := l.up.binary
	if err := b.changed(); err != nil {
		return fmt.Errorf("%s: %w", b.path, err)
	}
	environ := append(withoutUpgrade(l.opts.Self.Environ), fmt.Sprintf("%s=%d", UpgradeVariable, number))
	err = errors.New("not executed")
	l.thread.Do(func() { err = execute(b.fd, b.args, environ) })
	return fmt.Errorf("%s: %w", b.path, err)
}
