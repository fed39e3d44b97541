package supervisor

import (
	"slices"
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// Phase is where a generation stands.
//
//	starting ──ready, settled, adopted──► (baking) ──► serving ──newer one, stop──► draining ──► gone
//	   │ exit, grace, stop                  │ exit       │ exit                        │ exit, deadline
//	   └────────────► killing ◄─────────────┴────► ending ◄────────────────────────────┘
//	                     └──────────── nothing of it is left ────────────► gone
type Phase string

const (
	// PhaseStarting lasts from the decision to spawn until ready, settled and
	// adopted. Left for baking or serving (commit), for killing (grace over,
	// failed, replaced), or for ending (its main process exited).
	PhaseStarting Phase = "starting"
	// PhaseBaking means ready, accepting beside the serving one, not yet committed.
	// Left for serving, or, rolled back, for draining or ending.
	PhaseBaking Phase = "baking"
	// PhaseServing means committed. At most one per service. Left for draining when
	// a newer one commits or a stop begins, or for ending when it dies.
	PhaseServing Phase = "serving"
	// PhaseDraining means told to finish its work under KillAt. Left for ending
	// when it exits, for killing at its deadline.
	PhaseDraining Phase = "draining"
	// PhaseEnding means that its main process has exited; what else it started is
	// being terminated. Left when nothing is left.
	PhaseEnding Phase = "ending"
	// PhaseKilling means that SIGKILL has been sent to everything of it. Left when
	// nothing is left; Stuck when the kernel has not done so in stuckAfter.
	PhaseKilling Phase = "killing"
)

// Why says what started a generation.
type Why string

// The reasons for which a generation is started.
const (
	WhyStart   Why = "start"
	WhyReload  Why = "reload"
	WhyRestart Why = "restart"
	// WhyRollback is a reload to what served before.
	WhyRollback Why = "rollback"
	// WhyRepair is a reload that hands out a socket in place of one that a program has
	// ended for good. It runs what serves.
	WhyRepair Why = "repair"
)

// asked reports whether it was started beside, or in place of, what serves.
func (w Why) asked() bool { return w == WhyReload || w == WhyRollback || w == WhyRepair }

// Release says whether a retired generation was seen to let go of the sockets.
type Release string

// The outcomes of the release check.
const (
	ReleaseNone    Release = ""        // not asked
	ReleasePending Release = "pending" // still polls, or not yet looked at
	ReleaseYes     Release = "released"
	ReleaseNo      Release = "not released"
	ReleaseUnknown Release = "unknown" // its processes cannot be looked at
)

// Generation is one run of a service's program.
type Generation struct {
	N         int          `json:"n"`
	Spec      *Spec        `json:"spec"` // never changed once set
	Phase     Phase        `json:"phase"`
	Why       Why          `json:"why"`
	Token     string       `json:"token"` // in the environment of all it starts
	PID       int          `json:"pid,omitempty"`
	StartTime uint64       `json:"start_time,omitempty"` // /proc/PID/stat field 22
	Begun     proc.Instant `json:"begun"`                // decided upon; once PID is set, spawned
	// Executable is, until PID is set, what is to be run, nil for what is at the spec's
	// path; then what runs, nil if that is not known.
	Executable *Executable `json:"executable,omitempty"`

	Hello      bool         `json:"hello,omitempty"`  // uses the child protocol
	Notify     bool         `json:"notify,omitempty"` // sent some sd_notify message
	Signalled  bool         `json:"signalled,omitempty"`
	Accepting  proc.Instant `json:"accepting,omitempty"` // seen to accept since then
	Blind      bool         `json:"blind,omitempty"`     // its processes cannot be looked at
	Deaf       bool         `json:"deaf,omitempty"`      // its messages to an earlier handoverd are lost
	ReadyAt    proc.Instant `json:"ready_at,omitempty"`
	ReadyBy    string       `json:"ready_by,omitempty"`
	AcceptSent bool         `json:"accept_sent,omitempty"`
	Adopted    bool         `json:"adopted,omitempty"`
	AdoptFault string       `json:"adopt_fault,omitempty"` // the last thing that adoption lacked
	Idle       []string     `json:"idle,omitempty"`        // sockets that it does not poll
	Probed     bool         `json:"probed,omitempty"`      // its probe succeeds
	ProbeBad   bool         `json:"probe_bad,omitempty"`   // its probe has failed so often that it is believed
	ProbeSaid  string       `json:"probe_said,omitempty"`  // how it failed last
	GateBegan  proc.Instant `json:"gate_began,omitempty"`  // all but the gate is done
	GateOpen   bool         `json:"gate_open,omitempty"`   // the outside has agreed
	GateSaid   string       `json:"gate_said,omitempty"`   // why it has not
	GraceEnds  proc.Instant `json:"grace_ends,omitempty"`
	BakeEnds   proc.Instant `json:"bake_ends,omitempty"`
	Committed  proc.Instant `json:"committed,omitempty"`

	DrainBegan proc.Instant `json:"drain_began,omitempty"`
	DrainWhy   string       `json:"drain_why,omitempty"`
	Read       bool         `json:"read,omitempty"`      // it has received the drain message
	Answered   bool         `json:"answered,omitempty"`  // it said draining
	SignalAt   proc.Instant `json:"signal_at,omitempty"` // drain signal due; 0: sent or not wanted
	TermAt     proc.Instant `json:"term_at,omitempty"`   // SIGTERM due; 0: sent or not wanted
	Leaving    []string     `json:"leaving,omitempty"`   // keys of sockets whose queues it empties before it is told
	EmptyBy    proc.Instant `json:"empty_by,omitempty"`  // told then, whatever is left in them
	Held       bool         `json:"held,omitempty"`      // told when its connections are silent
	Untold     bool         `json:"untold,omitempty"`    // drains, and was not told yet
	Forced     bool         `json:"forced,omitempty"`    // told though its connections were not silent
	Hook       bool         `json:"hook,omitempty"`      // its drain hook is under way
	Open       int          `json:"open,omitempty"`      // connections at the last look before its exit
	Termed     bool         `json:"termed,omitempty"`    // SIGTERM was sent to it before its drain had ended
	KillAt     proc.Instant `json:"kill_at,omitempty"`   // SIGKILL due: every draining generation has one
	Release    Release      `json:"release,omitempty"`
	ReleaseBy  proc.Instant `json:"release_by,omitempty"`
	StaleEpoll bool         `json:"stale_epoll,omitempty"`
	AgainAt    proc.Instant `json:"again_at,omitempty"` // drain signal once more, if it still polls then

	// Unheld is until when its number was surely its own, of one that has ended and whose number nobody holds; 0: it
	// lives, or a zombie holds it, or, in a state file, the time of its writing.
	Unheld proc.Instant `json:"unheld,omitempty"`
	Exited bool         `json:"exited,omitempty"`
	Status uint32       `json:"status,omitempty"` // wait status, once Exited
	Cut    bool         `json:"cut,omitempty"`    // ended by a signal before it had finished
	Killed proc.Instant `json:"killed,omitempty"`
	Stuck  bool         `json:"stuck,omitempty"`
	Reason string       `json:"reason,omitempty"` // why it failed or was killed
}

// Upgrade is a new generation that is wanted, waits for its turn, or is under way.
type Upgrade struct {
	Spec    *Spec        `json:"spec"`
	Jobs    []int        `json:"jobs"`              // the reloads that wait for it
	Gen     int          `json:"gen,omitempty"`     // 0: not spawned yet
	Waiting bool         `json:"waiting,omitempty"` // for a place below max_draining
	Since   proc.Instant `json:"since"`
	Drained bool         `json:"drained,omitempty"` // the old one was drained for it (handoff = "exclusive")
	Why     Why          `json:"why,omitempty"`     // "": WhyReload
	// Executable is what it is to run; nil: what is at the spec's path.
	Executable *Executable `json:"executable,omitempty"`
}

// Restart is a wait in back-off.
type Restart struct {
	At       proc.Instant `json:"at"`
	Failures int          `json:"failures"`
}

// Failure is the last thing that went wrong with a service.
type Failure struct {
	Generation int          `json:"generation"`
	Phase      Phase        `json:"phase"`
	Reason     string       `json:"reason"`
	Status     uint32       `json:"status,omitempty"`
	Exited     bool         `json:"exited,omitempty"`
	At         proc.Instant `json:"at"`
}

// StopPhase is where the stop of one service stands.
type StopPhase string

// The steps of a service's stop.
const (
	StopNone     StopPhase = ""
	StopLameDuck StopPhase = "lame duck"
	StopWaiting  StopPhase = "waiting" // for the services that come after it
	StopHolding  StopPhase = "holding" // until its connections are silent
	StopDraining StopPhase = "draining"
)

// Service is one managed program.
type Service struct {
	Name        string        `json:"name"`
	Generations []*Generation `json:"generations,omitempty"` // living, oldest first
	LastN       int           `json:"last_n"`                // numbers are used up by attempts
	Spec        *Spec         `json:"spec,omitempty"`        // the last good one; before any, the first wanted
	Good        bool          `json:"good,omitempty"`        // Spec has been committed
	SpecGen     int           `json:"spec_gen,omitempty"`    // by this generation, which a reload had started
	Executable  *Executable   `json:"executable,omitempty"`  // what it ran; nil: not known
	Previous    *Previous     `json:"previous,omitempty"`    // what a rollback goes to
	Upgrade     *Upgrade      `json:"upgrade,omitempty"`
	Restart     *Restart      `json:"restart,omitempty"`
	Delay       time.Duration `json:"delay,omitempty"` // current back-off, 0: none yet
	Failures    int           `json:"failures,omitempty"`
	Looping     bool          `json:"looping,omitempty"` // in a crash loop: see crashes
	Stop        StopPhase     `json:"stop,omitempty"`
	Budget      *StopBudget   `json:"budget,omitempty"`
	Lame        *LameDuck     `json:"lame_duck,omitempty"`
	Undo        proc.Instant  `json:"undo,omitempty"`         // an announcement is being taken back since then
	OpenAtExit  int           `json:"open_at_exit,omitempty"` // connections, of all generations that drained
	Removed     bool          `json:"removed,omitempty"`      // no longer in the configuration
	Failure     *Failure      `json:"failure,omitempty"`
	Reloads     int           `json:"reloads,omitempty"` // committed
}

// JobStage is where a reload stands.
type JobStage string

// The stages of a job.
const (
	JobRemembered JobStage = "remembered" // waits for the one before it
	JobPreparing  JobStage = "preparing"  // parse, check, bind
	JobRunning    JobStage = "running"
)

// Result is what a reload did to one service.
type Result struct {
	Service    string  `json:"service"`
	Outcome    Outcome `json:"outcome"`
	Generation int     `json:"generation,omitempty"`
	Old        int     `json:"old,omitempty"` // the generation it retired
	Release    Release `json:"release,omitempty"`
	Phase      Phase   `json:"phase,omitempty"` // where it failed
	Reason     string  `json:"reason,omitempty"`
	Status     uint32  `json:"status,omitempty"`
	Exited     bool    `json:"exited,omitempty"`
	Waiting    bool    `json:"waiting,omitempty"`
}

// Outcome is how a reload of one service ended.
type Outcome string

// The outcomes. Pending is the only one that is not final.
const (
	OutcomePending Outcome = "pending"
	OutcomeServing Outcome = "serving"
	OutcomeFailed  Outcome = "failed"
	OutcomeSkipped Outcome = "skipped"
	OutcomeRefused Outcome = "refused"
	OutcomeRemoved Outcome = "removed"
)

// Job is one reload: of every service, or of those named.
type Job struct {
	ID       int          `json:"id"`
	Stage    JobStage     `json:"stage"`
	Why      Why          `json:"why,omitempty"`      // "": WhyReload
	First    bool         `json:"first,omitempty"`    // the start of handoverd itself
	Services []string     `json:"services,omitempty"` // nil: all
	NoQueue  bool         `json:"no_queue,omitempty"`
	Results  []Result     `json:"results,omitempty"`
	Removed  []string     `json:"removed,omitempty"` // services to retire when all others are done
	Began    proc.Instant `json:"began"`
}

// Stop is a stop of the whole of handoverd.
type Stop struct {
	Began  proc.Instant `json:"began"`
	Now    bool         `json:"now,omitempty"`
	Cut    []string     `json:"cut,omitempty"`
	Exited bool         `json:"exited,omitempty"`
	// CrashLoop is the service whose crash loop has ended handoverd; "": somebody asked.
	CrashLoop string `json:"crash_loop,omitempty"`
	// Keeps is set where a start follows that is given the sockets: nobody empties
	// their queues.
	Keeps bool `json:"keeps,omitempty"`
	// Hard is when handoverd leaves even if the kernel has not ended all.
	Hard proc.Instant `json:"hard"`
}

// State is everything that handoverd knows. It is owned by the loop, changed
// only by transition, and written to the state file before any action.
type State struct {
	Version  int                 `json:"version"`
	BootID   string              `json:"boot_id"`
	Digest   string              `json:"digest,omitempty"` // of the file last applied
	Services map[string]*Service `json:"services"`
	Order    []string            `json:"order"` // after order
	Jobs     []*Job              `json:"jobs,omitempty"`
	LastJob  int                 `json:"last_job"`
	// Numbers are the last generations of services that were removed: a number is
	// never used again, not even by a service that comes back.
	Numbers map[string]int `json:"numbers,omitempty"`
	Stop    *Stop          `json:"stop,omitempty"`
	// Passed are the keys of sockets that a service manager holds as well and passes
	// to each start: they are closed for nobody.
	Passed []string `json:"passed,omitempty"`
	// Of handoverd itself: the upgrade that is under way, how the last one has ended,
	// and its number.
	Self        *SelfUpgrade   `json:"self_upgrade,omitempty"`
	Upgraded    *UpgradeResult `json:"upgraded,omitempty"`
	LastUpgrade int            `json:"last_upgrade,omitempty"`
}

// gen returns the living generation n, or nil.
func (svc *Service) gen(n int) *Generation {
	for _, g := range svc.Generations {
		if g.N == n {
			return g
		}
	}
	return nil
}

// in returns the newest generation in one of the phases, or nil.
func (svc *Service) in(phases ...Phase) *Generation {
	for _, g := range slices.Backward(svc.Generations) {
		if slices.Contains(phases, g.Phase) {
			return g
		}
	}
	return nil
}

// Serving is the generation that serves, or nil.
func (svc *Service) Serving() *Generation { return svc.in(PhaseServing) }

// coming is the generation that is to serve: starting or baking, or nil.
func (svc *Service) coming() *Generation { return svc.in(PhaseStarting, PhaseBaking) }

// count counts the generations in a phase.
func (svc *Service) count(p Phase) int {
	n := 0
	for _, g := range svc.Generations {
		if g.Phase == p {
			n++
		}
	}
	return n
}

// retired counts the old generations that hold a place below max_draining. A
// stuck one holds none: nothing can be done about it.
func (svc *Service) retired() int {
	n := 0
	for _, g := range svc.Generations {
		switch g.Phase {
		case PhaseDraining, PhaseEnding, PhaseKilling:
			if !g.Stuck {
				n++
			}
		}
	}
	return n
}

func (s *State) job(id int) *Job {
	for _, j := range s.Jobs {
		if j.ID == id {
			return j
		}
	}
	return nil
}

func (j *Job) result(service string) *Result {
	for i := range j.Results {
		if j.Results[i].Service == service {
			return &j.Results[i]
		}
	}
	return nil
}

// running reports whether some service of the job has not committed or failed
// and does not merely wait for a place below max_draining or for a release.
func (j *Job) busy() bool {
	if j.Stage == JobPreparing {
		return true
	}
	if j.Stage != JobRunning {
		return false
	}
	for _, r := range j.Results {
		if r.Outcome == OutcomePending && !r.Waiting {
			return true
		}
	}
	return false
}

// done reports whether every result is final.
func (j *Job) done() bool {
	if j.Stage != JobRunning || len(j.Removed) > 0 {
		return false
	}
	for _, r := range j.Results {
		if r.Outcome == OutcomePending || r.Release == ReleasePending {
			return false
		}
	}
	return true
}
