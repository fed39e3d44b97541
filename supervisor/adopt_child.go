package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/proc"
	"github.com/handoverd/handover/internal/sdnotify"
	"github.com/handoverd/handover/internal/shim"
	"github.com/handoverd/handover/internal/wire"
)

// seenLate is how much earlier than it was seen an adopted program's end may have
// been. What of its session began after that is not believed to be its own.
const seenLate = 100 * time.Millisecond

// verified is what is held of a generation that an earlier handoverd started: with
// a pidfd if its main process lives, compared by number, start time and (by the
// caller) boot and pid namespace, and with none if not. saved is when the
// state was written: until then handoverd lived and held the number, or had seen the process live, so that nobody
// whose start time is of an earlier tick can be a stranger. Within that tick one can. That time is noted in
// the generation of a process that has ended: a state that is written from now on says nothing of its number.
func verified(a at, g *Generation, saved proc.Instant) *child {
	fd := -1
	if !g.Exited {
		fd = openExactly(g.PID, g.StartTime)
	}
	if fd < 0 && g.PID != 0 && g.Unheld == 0 {
		g.Unheld = saved
	}
	if g.Unheld != 0 {
		saved = g.Unheld
	}
	return &child{
		at: a, token: g.Token, pid: g.PID, adopted: true, before: max(proc.Ticks(saved), 2) - 1,
		proc: shim.Adopted(g.PID, g.StartTime, fd),
	}
}

// adopt takes the channels of a generation, and follows it as if it had been started
// here. It reports whether nothing that it has said, or will say, is lost.
func (l *loop) adopt(g *Generation, c *child, saved *savedState, taken map[string]int) (hears bool) {
	l.children[c.at] = c
	for _, k := range g.keys() {
		h, ok := saved.Held.Sockets[k.Key]
		if !ok {
			h = saved.Held.Left[k.Key]
		}
		c.names, c.inodes, c.addrs = append(c.names, k.Name), append(c.inodes, h.Inode), append(c.addrs, h.Addr)
	}
	c.path, c.run = l.dir.file("notify", c.String()), l.dir.file("exe", c.String())
	if err := l.output.resume(c.at, g.Spec); err != nil {
		l.log.Warn("output is not followed any more", "service", c.Service, "gen", c.Gen, "err", err)
	}
	if c.proc.Pidfd() < 0 {
		return true // it says nothing
	}
	c.outdated = g == l.state.Services[c.Service].Serving() && c.lacks()
	if err := l.adoptChannels(g, c, taken); err != nil {
		l.log.Warn("messages of it may be lost", "service", c.Service, "gen", c.Gen, "err", err)
	} else {
		hears = true
	}
	if !c.adopted || l.up.dry {
		return hears // the reaper tells its end, or nobody wants to know
	}
	if err := c.openExit(); err != nil {
		l.log.Error("its end will not be seen", "service", c.Service, "gen", c.Gen, "pid", c.pid, "err", err)
	} else {
		l.readers.Add(1) // Run waits for it
		go l.watchExit(c)
	}
	return hears
}

// adoptChannels takes what the keeper held for the generation. A notify socket that is
// lost is bound anew: the path is all that a program knows of it.
func (l *loop) adoptChannels(g *Generation, c *child, taken map[string]int) error {
	var errs []error
	var lost []string
	take := func(prefix string) (int, bool) {
		fd, ok := taken[prefix+c.String()]
		delete(taken, prefix+c.String())
		if !ok {
			lost = append(lost, strings.TrimSuffix(prefix, "/"))
		}
		return fd, ok
	}
	var err error
	if fd, ok := take(keptControl); ok {
		if c.ctl, err = wire.NewConn(fd); err != nil {
			errs = append(errs, err)
		}
	}
	if fd, ok := take(keptNotify); ok {
		c.notify, err = sdnotify.NewSocket(fd, c.path)
	} else if !l.up.dry {
		uid, gid := g.Spec.owner()
		c.notify, err = sdnotify.Listen(c.path, 0o600, uid, gid)
	}
	if err != nil {
		errs = append(errs, err)
	}
	if g.Spec.Config.Ready.When == "newline" && g.ReadyAt == 0 {
		lost = append(lost, "a newline") // it may have been read, and not written down
		if fd, ok := take(keptReady); ok {
			// Its end of the pipe is non-blocking already, as it was made.
			c.ready = os.NewFile(uintptr(fd), "newline")
		}
	}
	l.hear(c)
	if len(lost) > 0 {
		errs = append(errs, fmt.Errorf("not had from the keeper, or read by a handoverd that was killed: %s", strings.Join(lost, ", ")))
	}
	return errors.Join(errs...)
}

// hear begins to read the channels of a generation. Run waits for the readers.
func (l *loop) hear(c *child) {
	if l.up.dry {
		return
	}
	if c.ctl != nil {
		l.readers.Add(1)
		go l.readControl(c)
	}
	if c.notify != nil {
		l.readers.Add(1)
		go l.readNotify(c)
	}
	if c.ready != nil {
		l.readers.Add(1)
		go l.readNewline(c)
	}
}

// openExit makes the pidfd one that the poller can wait for: no thread is needed for
// each adopted program. release closes it.
func (c *child) openExit() error {
	fd, err := unix.FcntlInt(uintptr(c.proc.Pidfd()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return errors.Join(os.NewSyscallError("fcntl", err), unix.Close(fd))
	}
	c.exit = os.NewFile(uintptr(fd), "pidfd")
	return nil
}

// watchExit tells the loop when an adopted program has ended. It is nobody's child
// here, so that how it ended is not known. Run waits for it.
func (l *loop) watchExit(c *child) {
	defer l.readers.Done()
	raw, err := c.exit.SyscallConn()
	if err != nil {
		return
	}
	ended := func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		_, err := unix.Poll(p, 0)
		return err == nil && p[0].Revents != 0
	}
	if raw.Read(ended) != nil {
		return // closed by release
	}
	if n := l.lookout.openOf(c.at); n > 0 {
		l.post(evOpen{c.at, n})
	}
	seen := proc.Now().Add(-seenLate)
	l.call(func() { c.before, c.over = max(c.before, proc.Ticks(seen)), true })
	l.post(evUnheld{c.at, seen})
	l.post(evExited{c.at, statusUnknown})
}

// bound is up to when processes of its session are surely its own; 0: they all are,
// because its leader is held.
func (c *child) bound() uint64 {
	switch {
	case !c.adopted:
		return 0
	case c.over || c.proc.Pidfd() < 0:
		return c.before
	}
	return proc.Ticks(proc.Now()) // it lives
}

// endLeftovers ends what is left of a generation whose main process is gone: it may
// have the sockets, which a fresh start has to bind.
func (l *loop) endLeftovers(c *child) {
	if c.pid == 0 {
		return // it never ran
	}
	pause := time.NewTicker(sweepShortest)
	defer pause.Stop()
	begin := proc.Now()
	for empty := 0; empty < 2; <-pause.C {
		sig, spent := unix.SIGTERM, proc.Now().Sub(begin)
		switch {
		case spent > 2*stuckAfter:
			l.log.Error("what is left of it has not ended", "service", c.Service, "gen", c.Gen)
			return
		case spent > stuckAfter:
			sig = unix.SIGKILL
		}
		left, err := 0, error(nil)
		if empty == 0 && spent < sweepShortest || sig == unix.SIGKILL {
			left, err = proc.KillMembersBefore(c.pid, c.token, c.before, sig)
		} else {
			var members []proc.Process
			members, err = proc.MembersBefore(c.pid, c.token, c.before)
			left = len(members)
		}
		if empty++; left > 0 || err != nil {
			empty = 0
		}
	}
}
