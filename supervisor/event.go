package supervisor

import (
	"time"

	"github.com/handoverd/handover/internal/proc"
)

// event is something that happened: a request, a fact about a generation, or
// the passing of time. Events are the only way in which the state changes.
type event interface{ isEvent() }

// at names the generation that an event is about.
type at struct {
	Service string
	Gen     int
}

type (
	// evReload asks for a reload, or, by Why, for a rollback or a repair, which are
	// reloads to a spec that the state has. Services nil means all.
	evReload struct {
		Request  int
		Services []string
		NoQueue  bool
		First    bool
		Why      Why // "": WhyReload
	}
	// evAbort asks to roll back what has not been committed. Services nil means all.
	evAbort struct {
		Request  int
		Services []string
	}
	// evPrepared ends the preparation of a job: all of it or nothing.
	evPrepared struct {
		Job    int
		Digest string
		Order  []string
		Specs  map[string]*Spec // of the services to upgrade
		// Executables are what these are to run; of others what is at the spec's path.
		Executables map[string]*Executable
		Fault       string   // not "": refused, nothing was touched
		Passed      []string // keys of sockets that a service manager holds as well
	}
	// evStop asks for a stop; a second one, or Now, for a stop at once. Within is
	// the notice that is left: it shortens a stop, also one under way; 0: none.
	evStop struct {
		Now    bool
		Within time.Duration
		Keeps  bool // a start follows that is given the sockets
	}
	// evGiveUp: the service is in a crash loop that is to end handoverd.
	evGiveUp struct {
		Service string
		Keeps   bool // a start follows that is given the sockets
	}
	// evLame begins the lame duck of services, or with Off ends it. Services nil
	// means all.
	evLame struct {
		Request  int
		Services []string
		Off      bool
	}
	// evDuty: a hook has ended, well or with a fault.
	evDuty struct {
		duty
		Fault string
	}
	// evProbed: every prober has seen the service's lame duck often enough.
	evProbed struct {
		Service string
		Began   proc.Instant // of the lame duck
	}
	// evQuiet: every connection of what is to be drained has been silent for as
	// long as hold wants.
	evQuiet struct{ Service string }
	// evLeft: the queues of sockets are empty, and handoverd has closed them.
	evLeft struct{ Keys []string }
	// evSpawned tells the pid of a generation, which waits for "go".
	evSpawned struct {
		at
		PID       int
		StartTime uint64
		Token     string // random; in the environment of all it starts
		// Executable is what it will run; nil: not known.
		Executable *Executable
	}
	// evKept: the content of an executable is known, and whether a copy was made.
	evKept struct{ Executable *Executable }
	// evSpawnFailed says that the program could not be started.
	evSpawnFailed struct {
		at
		Reason string
	}
	// evUnwritten says that the state in which it was spawned, told to go or
	// committed cannot be written.
	evUnwritten struct {
		at
		Reason string
	}
	evHello    struct{ at } // it speaks the child protocol
	evNotify   struct{ at } // it sent some sd_notify message
	evRead     struct{ at } // it has received all that it was sent
	evAnswered struct{ at } // it said draining
	// evReady is a readiness signal, by "native" or "notify".
	evReady struct {
		at
		By string
	}
	// evExtend asks for more init grace, counted from now.
	evExtend struct {
		at
		By time.Duration
	}
	// evSight is what a look at a generation's processes showed.
	evSight struct {
		at
		Polls bool     // at least one of its sockets
		Blind bool     // cannot be seen
		Fault string   // adoption: what speaks against it
		Idle  []string // sockets that it does not poll
		Stale bool     // an epoll entry without a descriptor
	}
	// evProbe is what its probe has found since the last one: enough successes in
	// a row, enough failures in a row, or, neither, how it failed.
	evProbe struct {
		at
		OK, Bad bool
		Text    string
	}
	// evGate is what the outside has answered.
	evGate struct {
		at
		OK   bool
		Text string
	}
	// evExited: its main process has exited (and is not reaped yet).
	evExited struct {
		at
		Status uint32
	}
	// evOpen: it is about to be known to have exited, and had so many connections at
	// the last look.
	evOpen struct {
		at
		Connections int
	}
	evGone struct{ at } // nothing of it is left
	evTick struct{}     // time has passed
)

func (evReload) isEvent()      {}
func (evAbort) isEvent()       {}
func (evPrepared) isEvent()    {}
func (evStop) isEvent()        {}
func (evGiveUp) isEvent()      {}
func (evLame) isEvent()        {}
func (evOpen) isEvent()        {}
func (evDuty) isEvent()        {}
func (evProbed) isEvent()      {}
func (evQuiet) isEvent()       {}
func (evLeft) isEvent()        {}
func (evSpawned) isEvent()     {}
func (evSpawnFailed) isEvent() {}
func (evUnwritten) isEvent()   {}
func (evKept) isEvent()        {}
func (evHello) isEvent()       {}
func (evNotify) isEvent()      {}
func (evRead) isEvent()        {}
func (evAnswered) isEvent()    {}
func (evReady) isEvent()       {}
func (evExtend) isEvent()      {}
func (evSight) isEvent()       {}
func (evProbe) isEvent()       {}
func (evGate) isEvent()        {}
func (evExited) isEvent()      {}
func (evGone) isEvent()        {}
func (evTick) isEvent()        {}

// action is something to be done, after the state has been written.
type action interface{ isAction() }

type (
	// acAnswer tells a requester which job is his, or why there is none.
	acAnswer struct {
		Request int
		Job     int
		Refused Refusal // "" if not
	}
	// acAborted tells a requester what was rolled back, and which reload, that was
	// remembered, begins now: 0 if none.
	acAborted struct {
		Request int
		Refused Refusal // "" if not
		Job     int
		Results []Result
	}
	acPrepare struct{ Job int } // parse, check, bind; ends with evPrepared
	acSpawn   struct{ at }      // ends with evSpawned or evSpawnFailed
	acGo      struct{ at }      // its pid is in the state: it may exec
	acAccept  struct{ at }      // tell it to accept
	acAck     struct{ at }      // tell it that it serves
	acLame    struct{ at }      // tell it that a stop is coming
	acLamed   struct {          // tells a requester whether his lame duck was taken
		Request int
		Refused Refusal
	}
	acDrain struct { // the drain message; followed by evRead when it was received
		at
		Why      string
		Deadline proc.Instant
	}
	acAwaitRead struct{ at } // wait for evRead again
	acSignal    struct {     // to its main process
		at
		Signal int
	}
	acKill struct { // everything it started, until evGone
		at
		Signal int
	}
	acCommit struct{ at } // the sockets are now those of its spec
	// acReap says that nothing of it is left: reap it and close what is its.
	acReap    struct{ at }
	acJobDone struct{ Job Job }
	acNote    struct { // a log line that no change of phase tells
		at
		Level string
		Text  string
	}
	acGiveUp struct{ Service string } // ends with evGiveUp
	acExit   struct{ Code int }
)

func (acAnswer) isAction()    {}
func (acAborted) isAction()   {}
func (acPrepare) isAction()   {}
func (acSpawn) isAction()     {}
func (acGo) isAction()        {}
func (acAccept) isAction()    {}
func (acAck) isAction()       {}
func (acLame) isAction()      {}
func (acLamed) isAction()     {}
func (acDrain) isAction()     {}
func (acAwaitRead) isAction() {}
func (acSignal) isAction()    {}
func (acKill) isAction()      {}
func (acCommit) isAction()    {}
func (acReap) isAction()      {}
func (acJobDone) isAction()   {}
func (acNote) isAction()      {}
func (acGiveUp) isAction()    {}
func (acExit) isAction()      {}

// Refusal is why a request was not taken.
type Refusal string

// The refusals.
const (
	RefusedNot      Refusal = ""
	RefusedStopping Refusal = "stopping"
	RefusedBusy     Refusal = "busy"
	RefusedUnknown  Refusal = "no such service"
	RefusedNothing  Refusal = "nothing to abort"
	RefusedNoBack   Refusal = "nothing to roll back to"
)
