package supervisor

import (
	"fmt"
	"slices"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// Times of an upgrade of handoverd itself.
const (
	// PreflightLimit is how long the new binary may take in its pre-flight, if the
	// request does not say.
	PreflightLimit = 20 * time.Second
	// restLimit is how long the loop may take to come to rest after that.
	restLimit = 10 * time.Second
	// holdRestart is how long it may hold up a restart meanwhile.
	holdRestart = time.Second
)

// SelfUpgrade is an upgrade of handoverd itself that is under way.
type SelfUpgrade struct {
	ID    int          `json:"id"`
	Began proc.Instant `json:"began"`
	// Until is when it is given up: of the pre-flight, and once that has said ok of
	// coming to rest.
	Until   proc.Instant `json:"until"`
	Checked bool         `json:"checked,omitempty"` // the pre-flight has said ok
	To      string       `json:"to,omitempty"`      // the version that it has told
}

// UpgradeResult is how an upgrade of handoverd itself has ended.
type UpgradeResult struct {
	ID    int    `json:"id"`
	To    string `json:"to,omitempty"`    // version of the new binary, where it has told one
	Fault string `json:"fault,omitempty"` // "": the new binary runs
}

type (
	// evUpgrade asks for an upgrade of handoverd itself.
	evUpgrade struct {
		Request int
		Binary  string
		Within  time.Duration // for the pre-flight
	}
	// evRehearsed ends the pre-flight.
	evRehearsed struct {
		ID    int
		To    string
		Fault string // "": it may be executed
	}
	// evUpgradeFailed: the execve was not to be, or the new image has gone back.
	evUpgradeFailed struct {
		ID    int
		Fault string
	}
)

func (evUpgrade) isEvent()       {}
func (evRehearsed) isEvent()     {}
func (evUpgradeFailed) isEvent() {}

type (
	// acUpgradeAnswer tells a requester which upgrade is his, or why there is none.
	acUpgradeAnswer struct {
		Request int
		ID      int
		Refused Refusal
		Why     string
	}
	// acRehearse begins the pre-flight; ends with evRehearsed.
	acRehearse struct {
		ID     int
		Binary string
		Within time.Duration
	}
	// acUpgradeDone tells how it has ended.
	acUpgradeDone struct{ UpgradeResult }
)

func (acUpgradeAnswer) isAction() {}
func (acRehearse) isAction()      {}
func (acUpgradeDone) isAction()   {}

// selfUpgrade takes a request, if nothing is under way that execve would cut.
func (m *machine) selfUpgrade(e evUpgrade) {
	refuse := func(r Refusal, why string) {
		m.do(acUpgradeAnswer{Request: e.Request, Refused: r, Why: why})
	}
	switch why := m.s.unsettled(); {
	case m.s.Stop != nil:
		refuse(RefusedStopping, "a stop is under way")
	case m.s.Self != nil:
		refuse(RefusedBusy, "another upgrade of handoverd is under way")
	case m.busy() || slices.ContainsFunc(m.s.Jobs, (*Job).releasing):
		refuse(RefusedBusy, "a reload is under way")
	case why != "":
		refuse(RefusedBusy, why)
	default:
		within := e.Within
		if within <= 0 {
			within = PreflightLimit
		}
		m.s.LastUpgrade++
		// The pre-flight has its own limit, and says what it has come to.
		m.s.Self = &SelfUpgrade{ID: m.s.LastUpgrade, Began: m.now, Until: m.now.Add(within + restLimit)}
		m.do(acUpgradeAnswer{Request: e.Request, ID: m.s.Self.ID})
		m.do(acRehearse{m.s.Self.ID, e.Binary, within})
	}
}

// releasing reports whether who asked for the reload waits for an old generation to let
// go of the sockets.
func (j *Job) releasing() bool {
	return slices.ContainsFunc(j.Results, func(r Result) bool { return r.Release == ReleasePending })
}

// unsettled says which generation is between its decision and its commit, "" if none
// is: what it says by then may be under way.
func (s *State) unsettled() string {
	for _, name := range s.Order {
		svc := s.Services[name]
		switch g := svc.coming(); {
		case g != nil:
			return fmt.Sprintf("%s generation %d is %s", name, g.N, g.Phase)
		case svc.Upgrade != nil && svc.Upgrade.Drained:
			return name + " is drained for a reload"
		}
		for _, g := range svc.Generations {
			if g.PID == 0 {
				return fmt.Sprintf("%s generation %d is being spawned", name, g.N)
			}
		}
	}
	return ""
}

// rehearsed takes the answer of the pre-flight.
func (m *machine) rehearsed(e evRehearsed) {
	up := m.s.Self
	if up == nil || up.ID != e.ID || up.Checked {
		return
	}
	up.To = e.To
	if e.Fault != "" {
		m.endUpgrade(e.Fault)
		return
	}
	up.Checked, up.Until = true, m.now.Add(restLimit)
}

// endUpgrade ends the upgrade that is under way: with a fault everything goes on as
// it was.
func (m *machine) endUpgrade(fault string) {
	up := m.s.Self
	if up == nil {
		return
	}
	r := UpgradeResult{ID: up.ID, To: up.To, Fault: fault}
	m.s.Self, m.s.Upgraded = nil, &r
	m.do(acUpgradeDone{r})
}

// upgradeDue gives up one that has taken too long.
func (m *machine) upgradeDue() bool {
	up := m.s.Self
	if up == nil || !m.due(up.Until) {
		return false
	}
	switch why := m.s.unsettled(); {
	case !up.Checked:
		m.endUpgrade("the pre-flight has not ended in time")
	case why != "":
		m.endUpgrade(string(RefusedBusy) + ": " + why)
	default:
		m.endUpgrade(fmt.Sprintf("%s: what is under way has not ended within %v", RefusedBusy, restLimit))
	}
	return true
}

// holdsRestart reports whether the restart of a service is left to the next image, which
// is about to be executed. Where that takes too long the upgrade is given up for it.
func (m *machine) holdsRestart(svc *Service) bool {
	up := m.s.Self
	if up == nil || !up.Checked {
		return false
	}
	if !m.due(up.restarts()) {
		return true
	}
	m.endUpgrade(fmt.Sprintf("%s: %s is to be restarted", RefusedBusy, svc.Name))
	return false
}

// restarts is until when it holds up restarts.
func (up *SelfUpgrade) restarts() proc.Instant { return up.Until.Add(holdRestart - restLimit) }

func (up *SelfUpgrade) validate() bool {
	return up == nil || up.ID > 0 && up.Until > 0 && sound(up.Began, up.Until)
}
