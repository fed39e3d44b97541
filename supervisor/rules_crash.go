package supervisor

import (
	"fmt"

	"github.com/handoverd/handover/internal/proc"
)

// What restart.on_crash_loop may say.
const (
	onLoopHold  = "hold"
	onLoopClose = "close"
	onLoopExit  = "exit"
)

// loopDeaths is how many deaths in a row are a crash loop where nothing says it: as
// many starts as systemd allows a unit (systemd-system.conf(5), DefaultStartLimitBurst=).
const loopDeaths = 5

// ExitCrashLoop is handoverd's exit code when it has stopped because a program
// crashed again and again, and on_crash_loop = "exit".
const ExitCrashLoop = 4

// loopAfter is how many deaths in a row, each before or soon after ready, are a
// crash loop.
func (c *RestartConfig) loopAfter() int {
	if c.CrashLoopAfter <= 0 {
		return loopDeaths
	}
	return c.CrashLoopAfter
}

// onLoop is what is done about a crash loop.
func (c *RestartConfig) onLoop() string {
	if c.OnCrashLoop == "" {
		return onLoopHold
	}
	return c.OnCrashLoop
}

// crashes counts a death before or soon after ready, and says when it has become a
// crash loop. Restarts go on, after the back-off, but with "exit".
func (m *machine) crashes(svc *Service) {
	svc.Failures++
	cfg := &svc.Spec.Config.Restart
	if svc.Failures < cfg.loopAfter() {
		return
	}
	if !svc.Looping {
		svc.Looping = true
		m.note(svc, nil, "error", "crash loop: it has died %d times, each time before or within %v of ready: %s", svc.Failures, shortLife, cfg.loopText())
	}
	if cfg.OnCrashLoop == onLoopExit {
		m.do(acGiveUp{svc.Name})
	}
}

// giveUp stops handoverd because of a crash loop, unless somebody has just begun to
// mend it.
func (m *machine) giveUp(e evGiveUp) {
	svc := m.s.Services[e.Service]
	if svc == nil || !svc.Looping || svc.Removed || svc.Upgrade != nil || svc.Serving() != nil || svc.coming() != nil || m.s.Stop != nil {
		return
	}
	m.beginStop(evStop{Keeps: e.Keeps})
	m.s.Stop.CrashLoop = svc.Name
}

// loopText says what becomes of a service in a crash loop.
func (c *RestartConfig) loopText() string {
	switch c.OnCrashLoop {
	case onLoopClose:
		return fmt.Sprintf("its sockets are closed but during each try (on_crash_loop = %q)", c.OnCrashLoop)
	case onLoopExit:
		return fmt.Sprintf("handoverd stops (on_crash_loop = %q)", c.OnCrashLoop)
	}
	return fmt.Sprintf("its sockets stay open, and clients wait in their queues (on_crash_loop = %q)", onLoopHold)
}

// steady ends the count of deaths: it has served for long enough, or is another
// program now.
func (svc *Service) steady() { svc.Delay, svc.Failures, svc.Looping = 0, 0, false }

// closed reports whether the sockets of the service are closed because of a crash loop.
// They are open during each try, since a program is started with its sockets.
func (svc *Service) closed() bool {
	return svc.Looping && svc.Spec != nil && svc.Spec.Config.Restart.OnCrashLoop == onLoopClose &&
		svc.Serving() == nil && svc.coming() == nil
}

// steadyAt is when the count of deaths ends, if what serves goes on until then; 0: there
// is none, or nothing serves.
func (svc *Service) steadyAt() proc.Instant {
	g := svc.Serving()
	if g == nil || svc.Failures == 0 && svc.Delay == 0 && !svc.Looping {
		return 0
	}
	return g.Committed.Add(steadyAfter)
}

// loopOver ends the count of deaths, and a crash loop, when the program has served for
// long enough.
func (m *machine) loopOver(svc *Service) bool {
	if !m.due(svc.steadyAt()) {
		return false
	}
	if svc.Looping {
		m.note(svc, svc.Serving(), "info", "the crash loop is over: it has served for %v", steadyAfter)
	}
	svc.steady()
	return true
}

// forgive begins the count anew where the loop has ended handoverd: who starts it
// again wants the service to be tried again.
func (m *machine) forgive() {
	for _, svc := range m.s.Services {
		if svc.Looping && svc.Spec.Config.Restart.OnCrashLoop == onLoopExit {
			svc.steady()
		}
	}
}
