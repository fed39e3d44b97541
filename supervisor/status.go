package supervisor

import (
	"context"
	"maps"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/proc"
)

// snapshot is what the loop publishes after each turn. It is never changed.
type snapshot struct {
	state State
	texts map[at]string
}

// publish lets everybody see the state as it is now.
func (l *loop) publish() {
	s := &snapshot{state: l.state, texts: make(map[at]string, len(l.texts))}
	maps.Copy(s.texts, l.texts)
	l.s.state.Store(s)
}

// Status is what handoverd knows, for people and programs. It holds no argv
// and no environment.
type Status struct {
	PID        int             `json:"pid"`
	Version    string          `json:"version,omitempty"`
	Config     string          `json:"config,omitempty"`      // name of the file
	Digest     string          `json:"digest,omitempty"`      // of the file last applied
	ConfigNote string          `json:"config_note,omitempty"` // why the file is not what runs
	RuntimeDir string          `json:"runtime_dir"`
	Ready      bool            `json:"ready"` // every service serves, and no stop is under way
	Stopping   bool            `json:"stopping,omitempty"`
	Services   []ServiceStatus `json:"services"`
	Reloads    []Job           `json:"reloads,omitempty"`   // under way or remembered
	Reaped     uint64          `json:"reaped,omitempty"`    // orphans that were re-parented to handoverd
	Followers  int             `json:"followers,omitempty"` // of the events
	StateError string          `json:"state_error,omitempty"`
	Keeper     *KeeperStatus   `json:"keeper,omitempty"`
	Store      *StoreStatus    `json:"fd_store,omitempty"`
	// Terminations are how the lives of handoverd before this one have ended.
	Terminations Terminations `json:"terminations"`
	// Upgrade is the upgrade of handoverd itself that is under way, or the last one.
	Upgrade *UpgradeStatus `json:"upgrade,omitempty"`
}

// ServiceStatus is one service.
type ServiceStatus struct {
	Name        string             `json:"name"`
	Ready       bool               `json:"ready"`
	Digest      string             `json:"digest,omitempty"` // of the file that its serving generation came from
	DrainSignal string             `json:"drain_signal,omitempty"`
	Generations []GenerationStatus `json:"generations"`
	Sockets     []SocketStatus     `json:"sockets,omitempty"`
	Waiting     string             `json:"waiting,omitempty"` // what a new generation waits for
	WaitingFor  float64            `json:"waiting_seconds,omitempty"`
	RestartIn   float64            `json:"restart_in_seconds,omitempty"`
	Failures    int                `json:"failures,omitempty"`
	// CrashLoop is what is done about a crash loop that it is in: "hold", "close" (its
	// sockets are closed while nothing of it runs) or "exit"; "": it is in none.
	CrashLoop string          `json:"crash_loop,omitempty"`
	Failure   *FailureStatus  `json:"last_failure,omitempty"`
	Reloads   int             `json:"reloads"`
	Removed   bool            `json:"removed,omitempty"`
	Stop      StopPhase       `json:"stop,omitempty"`
	LameDuck  *LameDuckStatus `json:"lame_duck,omitempty"`
	// OpenAtExit is how many connections its draining generations had when they
	// exited, at the last look before each: the only trace of what was cut.
	OpenAtExit int `json:"open_at_exit,omitempty"`
	// Program is the SHA-256 of the executable that a restart runs, "" if it is not kept,
	// and Copy how its content is kept beside the file: "reflink", "memory" or "".
	Program string `json:"program,omitempty"`
	Copy    string `json:"program_copy,omitempty"`
	// Rollback is what a rollback would go back to.
	Rollback *RollbackStatus `json:"rollback,omitempty"`
	// Sources say where its sockets would come from if handoverd were killed now.
	Sources *Sources `json:"sources,omitempty"`
}

// GenerationStatus is one living generation.
type GenerationStatus struct {
	Generation int     `json:"generation"`
	PID        int     `json:"pid,omitempty"`
	Phase      Phase   `json:"phase"`
	Why        Why     `json:"why"`
	Age        float64 `json:"age_seconds"`
	ReadyBy    string  `json:"ready_by,omitempty"`
	Adoption   string  `json:"adoption,omitempty"` // "seen", "not visible", or what is lacking
	// Ends is how long it has until its next deadline: of its init grace while
	// starting, the commit while baking, SIGKILL while draining.
	Ends       float64  `json:"deadline_in_seconds,omitempty"`
	Release    Release  `json:"release,omitempty"`
	StaleEpoll bool     `json:"stale_epoll,omitempty"`
	Stuck      bool     `json:"stuck,omitempty"`
	Idle       []string `json:"unpolled_sockets,omitempty"`
	// Probe and Gate are how its probe failed last, and why the outside has not
	// agreed to the commit yet ("open": it has).
	Probe string `json:"probe,omitempty"`
	Gate  string `json:"gate,omitempty"`
	// Sockets are those that are bound for this generation alone.
	Sockets []SocketStatus `json:"sockets,omitempty"`
	Text    string         `json:"status,omitempty"` // what it says of itself (STATUS=)
	Reason  string         `json:"reason,omitempty"`
}

// SocketStatus is one socket.
type SocketStatus struct {
	Name        string `json:"name"`
	Address     string `json:"address"` // as bound: port 0 is resolved
	Inode       uint64 `json:"inode"`
	Listening   bool   `json:"listening"`
	Nonblocking bool   `json:"nonblocking"`
	Queued      int    `json:"queued"` // connections in the accept queue; -1: not known
	// TakenFrom says whom it was taken back from after an earlier handoverd had been
	// killed; "": it was bound by this one.
	TakenFrom string `json:"taken_from,omitempty"`
}

// FailureStatus is the last thing that went wrong.
type FailureStatus struct {
	Generation int     `json:"generation"`
	Phase      Phase   `json:"phase"`
	Reason     string  `json:"reason"`
	Ago        float64 `json:"seconds_ago"`
}

// Status describes everything. It also looks at each socket's O_NONBLOCK and
// sets it again where a child has cleared it.
func (s *Supervisor) Status(ctx context.Context) (*Status, error) {
	var st *Status
	err := s.ask(ctx, func(l *loop) { st = l.status() })
	return st, err
}

// Ready reports whether every service serves, or the one named.
func (s *Supervisor) Ready(service string) bool {
	snap := s.state.Load()
	if snap == nil || len(snap.state.Services) == 0 || snap.state.Stop != nil {
		return false
	}
	if service != "" {
		svc := snap.state.Services[service]
		return svc != nil && svc.ready()
	}
	for _, svc := range snap.state.Services {
		if !svc.Removed && !svc.ready() {
			return false
		}
	}
	return true
}

// ready reports whether the service serves, and nobody is told to go elsewhere.
func (svc *Service) ready() bool { return svc.Serving() != nil && svc.Lame == nil }

func (l *loop) status() *Status {
	now := proc.Now()
	l.setRight()
	l.publish()
	st := &Status{
		PID: os.Getpid(), Version: l.opts.Version, Config: l.opts.Name, Digest: l.state.Digest, ConfigNote: l.note,
		RuntimeDir: l.dir.path, Ready: l.s.Ready(""), Stopping: l.state.Stop != nil, Reaped: l.reaper.Reaped(),
		Followers: l.s.hub.size(),
		Services:  []ServiceStatus{}, Keeper: l.keeperStatus(), Store: l.storeStatus(),
		Terminations: l.ends, Upgrade: l.upgradeStatus(),
	}
	if l.saveErr != nil {
		st.StateError = l.saveErr.Error()
	}
	for _, j := range l.state.Jobs {
		st.Reloads = append(st.Reloads, *j)
	}
	for _, name := range l.state.Order {
		st.Services = append(st.Services, l.serviceStatus(l.state.Services[name], now))
	}
	return st
}

func (l *loop) serviceStatus(svc *Service, now proc.Instant) ServiceStatus {
	out := ServiceStatus{
		Name: svc.Name, Ready: svc.ready() && l.state.Stop == nil, Failures: svc.Failures,
		Reloads: svc.Reloads, Removed: svc.Removed, Stop: svc.Stop, Generations: []GenerationStatus{},
		LameDuck: l.lameStatus(svc, now), OpenAtExit: svc.OpenAtExit,
		Sources: l.sourcesOf(svc),
	}
	if g := svc.Serving(); g != nil {
		out.Digest, out.DrainSignal = g.Spec.Digest, unix.SignalName(unix.Signal(g.Spec.Drain))
	}
	if e := svc.Executable; e != nil {
		out.Program, out.Copy = e.Digest, e.Copy
	}
	out.Rollback = svc.rollbackStatus()
	if svc.Looping && svc.Spec != nil {
		out.CrashLoop = svc.Spec.Config.Restart.onLoop()
	}
	if svc.Restart != nil {
		out.RestartIn = max(0, svc.Restart.At.Sub(now).Seconds())
	}
	if u := svc.Upgrade; u != nil && u.Waiting {
		out.Waiting, out.WaitingFor = "a new generation", now.Sub(u.Since).Seconds()
		for _, id := range u.Jobs {
			if j := l.state.job(id); j != nil && j.result(svc.Name) != nil {
				out.Waiting = "the new generation " + j.result(svc.Name).Reason
			}
		}
	}
	if f := svc.Failure; f != nil {
		out.Failure = &FailureStatus{Generation: f.Generation, Phase: f.Phase, Reason: f.Reason, Ago: now.Sub(f.At).Seconds()}
	}
	for _, g := range svc.Generations {
		out.Generations = append(out.Generations, l.generationStatus(svc, g, now))
	}
	if svc.Spec != nil {
		out.Sockets = l.socketStatus(sharedKeys(svc.Spec))
	}
	return out
}

func (l *loop) generationStatus(svc *Service, g *Generation, now proc.Instant) GenerationStatus {
	out := GenerationStatus{
		Generation: g.N, PID: g.PID, Phase: g.Phase, Why: g.Why, Age: now.Sub(g.Begun).Round(time.Millisecond).Seconds(),
		ReadyBy: g.ReadyBy, Release: g.Release, StaleEpoll: g.StaleEpoll, Stuck: g.Stuck, Idle: g.Idle,
		Text: l.texts[ref(svc, g)], Reason: g.Reason,
	}
	switch {
	case !g.Spec.shares():
	case g.Blind:
		out.Adoption = "not visible"
	case g.Adopted:
		out.Adoption = "seen"
	case g.AdoptFault != "":
		out.Adoption = g.AdoptFault
	}
	out.Sockets, out.Probe, out.Gate = l.socketStatus(g.ownKeys()), g.ProbeSaid, g.gateStatus()
	for _, t := range []proc.Instant{g.GraceEnds, g.BakeEnds, g.KillAt} {
		if t != 0 {
			out.Ends = t.Sub(now).Seconds()
		}
	}
	return out
}

func (l *loop) socketStatus(keys []SocketKey) []SocketStatus {
	var out []SocketStatus
	for _, k := range keys {
		s := l.sockets.open[k.Key]
		if s == nil {
			continue
		}
		st := SocketStatus{Name: k.Name, Address: s.Addr().String(), Inode: s.Inode(), Queued: -1, TakenFrom: l.sources[k.Key]}
		st.Listening, _ = s.Listening()
		st.Nonblocking, _ = s.Nonblocking()
		if isInet(s.Addr().Kind) {
			st.Queued = queued(s)
		}
		out = append(out, st)
	}
	return out
}
