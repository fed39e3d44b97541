package supervisor

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/handoverd/handover/internal/proc"
	"github.com/handoverd/handover/internal/sdnotify"
)

// ServiceManager is what a service manager that speaks systemd's protocols has said
// to handoverd at its start. The zero value is none.
type ServiceManager struct {
	// NotifySocket is $NOTIFY_SOCKET: a path, or an abstract name after "@". "": it
	// wants to hear nothing.
	NotifySocket string
	// Watchdog is $WATCHDOG_USEC, if $WATCHDOG_PID is this process: how long it waits
	// for a sign of life; 0: for ever. It gets one at half of that.
	Watchdog time.Duration
	// Store is how many descriptors it keeps ($FDSTORE, systemd 254); 0: none, or it
	// has not said so.
	Store int
	// Sockets are the descriptors that it passed ($LISTEN_FDS). Run takes them.
	Sockets []PassedSocket
}

// PassedSocket is one descriptor with its name in $LISTEN_FDNAMES.
type PassedSocket struct {
	Name string
	FD   int
}

// How a service manager is asked for more time. It counts from the arrival
// (sd_notify(3), EXTEND_TIMEOUT_USEC), and only ever makes its timeout longer.
const (
	extendStep   = 30 * time.Second // at a time, where the end is not known
	extendLead   = 15 * time.Second // it is asked again so long before that is over
	extendMargin = 5 * time.Second  // past a deadline of the state: its end takes a moment
)

// maxStatus bounds STATUS=, in bytes. It is one line in systemctl status.
const maxStatus = 400

// tidings is what a service manager has been told, and from that what is still to
// be said. It is data: next is pure, and what could not be sent is said later.
type tidings struct {
	began     bool   // READY=1 for the first time
	reloading bool   // RELOADING=1, which READY=1 has to follow
	stopping  bool   // STOPPING=1: final
	status    string // STATUS=, last
	promised  proc.Instant
	fed       proc.Instant // WATCHDOG=1, last

	watchdog time.Duration
	asked    bool   // a reload was asked for, and RELOADING=1 not sent for it yet
	trouble  string // how the last reload has failed, or that the file cannot be used; "": neither
	restored bool   // an earlier handoverd was killed, and what it left serves
}

// next is the next thing to say, "" if nothing, and what is known when it has been
// said. There may be more: RELOADING=1 and READY=1 are never one message.
func (t tidings) next(s *State, now proc.Instant, usec func() uint64) (string, tidings) {
	var say []string
	switch {
	case t.stopping:
		t.asked = false
	case s.Stop != nil:
		say, t.stopping, t.asked = append(say, "STOPPING=1"), true, false
	case !t.began:
		t.asked = false // nobody waits for a reload of what has not started
		if t.restored || allServe(s) {
			say, t.began = append(say, "READY=1"), true
		}
	case t.asked || !t.reloading && len(s.Jobs) > 0:
		// Again for each request: systemd waits for a time that is later than its own signal.
		say = append(say, "RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", usec()))
		t.asked, t.reloading = false, true
	case t.reloading && len(s.Jobs) == 0:
		say, t.reloading = append(say, "READY=1"), false
	}
	if text := t.describe(s); text != t.status {
		say, t.status = append(say, "STATUS="+text), text
	}
	if until := t.extension(s, now); until != t.promised {
		if until != 0 {
			say = append(say, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", until.Sub(now).Microseconds()))
		}
		t.promised = until
	}
	if t.watchdog > 0 && now >= t.fed.Add(t.watchdog/2) {
		say, t.fed = append(say, "WATCHDOG=1"), now
	}
	return strings.Join(say, "\n"), t
}

// allServe reports whether every service has a generation that serves.
func allServe(s *State) bool {
	for _, svc := range s.Services {
		if !svc.Removed && svc.Serving() == nil {
			return false
		}
	}
	return len(s.Services) > 0
}

// extension is until when the service manager is to wait: 0 while nothing is under
// way that it waits for, and what it was promised before while that is enough.
func (t *tidings) extension(s *State, now proc.Instant) proc.Instant {
	if s.Stop == nil && len(s.Jobs) == 0 {
		return 0
	}
	until := now.Add(extendStep)
	known := proc.Instant(0)
	if s.Stop != nil {
		known = s.Stop.Hard.Add(extendMargin)
	} else {
		for _, svc := range s.Services {
			for _, g := range svc.Generations {
				if g.Phase == PhaseStarting || g.Phase == PhaseBaking {
					known = max(known, g.GraceEnds.Add(extendMargin), g.BakeEnds.Add(extendMargin))
				}
			}
		}
	}
	if t.promised >= max(known, now.Add(extendLead)) {
		return t.promised
	}
	return max(until, known)
}

// wake is when something is due that no event tells; 0: nothing.
func (t *tidings) wake() proc.Instant {
	var next proc.Instant
	if t.promised != 0 {
		next = t.promised.Add(-extendLead)
	}
	if t.watchdog > 0 {
		if feed := t.fed.Add(t.watchdog / 2); next == 0 || feed < next {
			next = feed
		}
	}
	return next
}

// describe is the line for STATUS=. It changes with the state alone, never with time.
func (t *tidings) describe(s *State) string {
	var parts []string
	for _, name := range s.Order {
		if svc := s.Services[name]; svc != nil {
			parts = append(parts, name+": "+svc.describe())
		}
	}
	text := strings.Join(parts, "; ")
	switch {
	case s.Stop != nil:
		text = "stopping; " + text
	case len(s.Jobs) > 0 && t.began:
		text = "reloading; " + text
	case len(s.Jobs) > 0:
		text = "starting; " + text
	case t.trouble != "":
		text = t.trouble + "; " + text
	}
	return oneLine(strings.TrimSuffix(text, "; "), maxStatus)
}

// describe says which generations of the service live.
func (svc *Service) describe() string {
	var parts []string
	for _, p := range []struct {
		phase Phase
		one   string
	}{{PhaseServing, "serves"}, {PhaseBaking, "bakes"}, {PhaseStarting, "starts"}} {
		for _, g := range svc.Generations {
			if g.Phase == p.phase {
				parts = append(parts, fmt.Sprintf("generation %d %s", g.N, p.one))
			}
		}
	}
	if svc.Restart != nil && len(parts) == 0 {
		parts = append(parts, fmt.Sprintf("down, to be started again after %d failures", svc.Restart.Failures))
	}
	// What ends or is killed is not told: it takes a moment.
	if n := svc.count(PhaseDraining); n > 0 {
		parts = append(parts, fmt.Sprintf("%d draining", n))
	}
	if len(parts) == 0 {
		parts = append(parts, "down")
	}
	if svc.Removed {
		parts = append(parts, "removed")
	}
	return strings.Join(parts, ", ")
}

// oneLine makes one line of a text, of at most n bytes, without control characters:
// systemd passes over a whole message with a NUL in it.
func oneLine(text string, n int) string {
	words := strings.FieldsFunc(strings.ToValidUTF8(text, "?"), func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
	text = strings.Join(words, " ")
	const more = " …"
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n-len(more)], "") + more
}

// troubleOf says how a reload has failed, "" if it has not.
func troubleOf(j *Job) string {
	var failed []string
	for _, r := range j.Results {
		if slices.Contains([]Outcome{OutcomeServing, OutcomeRemoved}, r.Outcome) {
			continue
		}
		name := ""
		if r.Service != "" {
			name = " of " + r.Service
		}
		failed = append(failed, fmt.Sprintf("the last reload%s %s: %s", name, r.Outcome, oneLine(r.Reason, maxStatus/3)))
	}
	return strings.Join(failed, "; ")
}

// manager is the loop's side of the service manager.
type manager struct {
	tidings
	to    *sdnotify.Sender // nil: nobody listens
	again proc.Instant     // after an attempt that failed
	pause time.Duration    // from one such attempt to the next
	fault string           // of the last attempt
}

// meetManager prepares to talk to the service manager, if there is one.
func (l *loop) meetManager(given ServiceManager) manager {
	m := manager{tidings: tidings{watchdog: given.Watchdog}}
	if given.NotifySocket == "" {
		return m
	}
	to, err := sdnotify.NewSender(given.NotifySocket)
	if err != nil {
		m.fault = err.Error()
		l.log.Warn("the service manager is told nothing", "err", err)
		return m
	}
	m.to = to
	return m
}

// leaveManager ends that. A start that has failed is told in the status line, which
// outlives the process.
func (l *loop) leaveManager(startErr error) {
	if l.manager.to == nil {
		return
	}
	if startErr != nil {
		l.sendManager(NotStarted(startErr))
	}
	_ = l.manager.to.Close()
	l.manager.to = nil
}

// NotStarted is the message that tells a service manager why there was no start.
func NotStarted(err error) string {
	return "STATUS=" + oneLine("could not start: "+err.Error(), maxStatus)
}

// hear notes that a reload was asked for: each request is to be followed by a
// RELOADING=1 of its own, also one that joins another or is refused.
func (m *manager) hear(e event) {
	if r, ok := e.(evReload); ok && !r.First {
		m.asked = true
	}
}

// How long after an attempt that failed the manager is told again: doubled each time, as
// one that is stopped or gone costs the loop the wait for it.
const (
	retryShortest = 250 * time.Millisecond
	retryLongest  = 5 * time.Second
)

// tellManager says what is new since it was told last. A manager that cannot be told
// holds up nothing: it is told when it can be.
func (l *loop) tellManager() {
	m := &l.manager
	if m.to == nil || l.turned < m.again {
		return
	}
	m.again = 0
	for {
		say, after := m.next(&l.state, l.turned, sdnotify.MonotonicUsec)
		if say == "" {
			return
		}
		if !l.sendManager(say) {
			return
		}
		m.tidings = after
	}
}

// sendManager sends one message, with descriptors. It reports whether it was sent.
func (l *loop) sendManager(say string, fds ...int) bool {
	m := &l.manager
	err := m.to.Send(say, fds...)
	if err == nil {
		m.fault, m.pause = "", 0
		return true
	}
	if m.fault != err.Error() {
		m.fault = err.Error()
		l.log.Error("the service manager was not told", "err", err)
	}
	m.pause = min(max(2*m.pause, retryShortest), retryLongest)
	m.again = l.turned.Add(m.pause)
	return false
}

// wake is when the loop has to turn for the manager; 0: not for it.
func (m *manager) wake() proc.Instant {
	if m.to == nil {
		return 0
	}
	if m.again != 0 {
		return m.again
	}
	return m.tidings.wake()
}
