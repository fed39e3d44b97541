package supervisor

import (
	"errors"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
	"github.com/handoverd/handover/internal/wire"
)

// act carries out one action. The state has been written.
func (l *loop) act(a action) {
	switch a := a.(type) {
	case acAnswer:
		l.answer(a)
	case acAborted:
		l.aborted(a)
	case acPrepare:
		l.prepare(a.Job)
	case acSpawn:
		l.spawn(a.at)
	case acGo:
		l.goAhead(a.at)
	case acAccept:
		l.send(a.at, wire.Message{Verb: wire.Accept})
	case acAck:
		l.send(a.at, wire.Message{Verb: wire.Ack, Generation: a.Gen})
	case acLame:
		l.send(a.at, wire.Message{Verb: wire.LameDuck})
	case acLamed:
		l.lameAnswer(a)
	case acDrain:
		l.send(a.at, wire.Message{Verb: wire.Drain, Reason: a.Why, DeadlineNS: int64(a.Deadline)})
		l.awaitRead(a.at)
	case acAwaitRead:
		l.awaitRead(a.at)
	case acSignal:
		l.signal(a.at, unix.Signal(a.Signal))
	case acKill:
		l.kill(a.at, unix.Signal(a.Signal))
	case acCommit:
		_, g := l.generation(a.at)
		l.sockets.apply(g.Spec)
		l.keepProgram(a.at)
	case acReap:
		l.reapGeneration(a.at)
	case acJobDone:
		l.jobDone(a.Job)
	case acNote:
		l.noteLine(a)
	case acGiveUp:
		l.queue(evGiveUp{a.Service, l.store.serves()})
	case acUpgradeAnswer:
		l.upgradeAnswer(a)
	case acRehearse:
		l.rehearse(a)
	case acUpgradeDone:
		l.upgradeDone(a.UpgradeResult)
	case acExit:
		l.code, l.exit = a.Code, true
	}
}

func (l *loop) generation(a at) (*Service, *Generation) {
	svc := l.state.Services[a.Service]
	if svc == nil {
		return nil, nil
	}
	return svc, svc.gen(a.Gen)
}

// send sends a message to a child that speaks the protocol. One that does not
// read has its buffer full sooner or later: it is treated as silent.
func (l *loop) send(a at, m wire.Message) {
	_, g := l.generation(a)
	c := l.children[a]
	if c == nil || g == nil || !g.Hello || c.ctl == nil {
		return
	}
	m.Service = a.Service
	if err := c.ctl.Send(m); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		l.log.Warn("message not sent", "service", a.Service, "gen", a.Gen, "verb", string(m.Verb), "err", err)
	}
}

// sendSockets answers the verb sockets: the descriptors again, in batches.
func (l *loop) sendSockets(c *child) {
	_, g := l.generation(c.at)
	if g == nil || l.children[c.at] != c {
		return
	}
	keys := g.keys()
	for i := 0; i < len(keys) || i == 0; i += fdpass.MaxFiles {
		m := wire.Message{Verb: wire.Sockets}
		var files []*os.File
		for _, k := range keys[i:min(i+fdpass.MaxFiles, len(keys))] {
			s := l.sockets.open[k.Key]
			if s == nil {
				continue
			}
			fd, err := unix.FcntlInt(uintptr(s.FD()), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				l.log.Error("sockets not sent", "service", c.Service, "gen", c.Gen, "err", err)
				break
			}
			m.Names, files = append(m.Names, k.Name), append(files, os.NewFile(uintptr(fd), k.Name))
		}
		err := c.ctl.Send(m, files...)
		for _, f := range files {
			_ = f.Close()
		}
		if err != nil {
			l.log.Warn("sockets not sent", "service", c.Service, "gen", c.Gen, "err", err)
			return
		}
	}
}

// signal sends one signal to the main process, by its pidfd: the number cannot
// have been given to another.
func (l *loop) signal(a at, sig unix.Signal) {
	c := l.children[a]
	if c == nil {
		return
	}
	if err := proc.SignalPidfd(c.proc.Pidfd(), sig); err != nil && !errors.Is(err, unix.ESRCH) {
		l.log.Error("signal not sent", "service", a.Service, "gen", a.Gen, "signal", unix.SignalName(sig), "err", err)
		return
	}
	l.log.Info("signalled", "service", a.Service, "gen", a.Gen, "pid", c.pid, "signal", unix.SignalName(sig))
}

// kill signals everything that the generation started and, in a goroutine of
// its own, goes on until nothing is left. Run waits for it.
func (l *loop) kill(a at, sig unix.Signal) {
	c := l.children[a]
	if c == nil {
		l.queue(evGone{a})
		return
	}
	if sig == unix.SIGKILL {
		_ = c.proc.Abort()                                 // a shim that waits for "go" never runs
		_ = proc.SignalPidfd(c.proc.Pidfd(), unix.SIGKILL) // at once; the sweep finds the rest
	}
	l.scan.sweep(sweep{at: a, leader: c.pid, token: c.token, before: c.bound(), signal: sig})
}

// reapGeneration ends what handoverd holds of a generation of which nothing is
// left. Only now is its leader's zombie reaped: until here its number, which is
// also that of its session, could not be given to a stranger.
func (l *loop) reapGeneration(a at) {
	c := l.children[a]
	delete(l.children, a)
	delete(l.texts, a)
	delete(l.unkept, a)
	l.output.end(a)
	if c == nil {
		return
	}
	// One that was adopted is not held, and its number may be that of another child.
	if c.adopted {
		c.release()
		return
	}
	if err := l.reaper.Release(c.pid); err != nil && !errors.Is(err, unix.ESRCH) {
		l.log.Error("not reaped", "service", a.Service, "gen", a.Gen, "pid", c.pid, "err", err)
	}
	c.release()
}

func (l *loop) noteLine(a acNote) {
	level := slog.LevelInfo
	switch a.Level {
	case "warn":
		level = slog.LevelWarn
	case "error":
		level = slog.LevelError
	}
	attrs := []any{"service", a.Service}
	if a.Gen != 0 {
		attrs = append(attrs, "gen", a.Gen)
	}
	l.log.Log(l.ctx, level, a.Text, attrs...)
	l.s.hub.send(Event{Kind: "note", Service: a.Service, Generation: a.Gen, Level: a.Level, Text: a.Text})
}

// request takes a request for a reload, or, by why, for a rollback, on the loop.
func (l *loop) request(req ReloadRequest, why Why, w *waiter) {
	l.queue(evReload{Request: l.await(w), Services: req.Services, NoQueue: req.NoQueue, Why: why})
}

func (l *loop) await(w *waiter) int {
	l.requests++
	l.waiting[l.requests] = w
	return l.requests
}

func (l *loop) answer(a acAnswer) {
	w := l.waiting[a.Request]
	delete(l.waiting, a.Request)
	if w == nil { // a signal: nobody waits
		if a.Refused != RefusedNot {
			l.log.Warn("reload refused", "why", string(a.Refused))
		}
		return
	}
	w.answered <- a
	if a.Refused == RefusedNot {
		l.jobs[a.Job] = append(l.jobs[a.Job], w)
	}
}

// jobDone tells all who wait for a job how it ended.
func (l *loop) jobDone(j Job) {
	l.manager.trouble = troubleOf(&j)
	r := &ReloadReport{Job: j.ID, First: j.First, Results: l.results(j.Results)}
	for _, w := range l.jobs[j.ID] {
		w.done <- r
	}
	delete(l.jobs, j.ID)
	l.keepOutcome(r)
	l.s.hub.send(Event{Kind: "reload", Report: r})
	if j.Why == WhyRepair { // again, where it has failed
		l.repair()
	}
}

// results adds to each what the loop knows of it: its wait status in words, and the
// last output of one that failed.
func (l *loop) results(list []Result) []ServiceResult {
	var out []ServiceResult
	for _, res := range list {
		s := ServiceResult{Result: res}
		if res.Exited {
			s.How = describeStatus(res.Status)
		}
		if res.Outcome == OutcomeFailed {
			s.Output = l.failedOutput(at{res.Service, res.Generation})
		}
		out = append(out, s)
	}
	return out
}
