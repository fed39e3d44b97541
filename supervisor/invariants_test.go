package supervisor

import (
	"fmt"
	"slices"

	"github.com/handoverd/handover/internal/proc"
)

// ledger is what the checks remember of a walk, kept apart from the state.
type ledger struct {
	last      proc.Instant // time of the last step
	answered  map[int]int
	done      map[int]int
	lamed     map[int]bool
	lives     map[at]*life
	numbers   map[string]int
	committed map[string]string      // digest of the spec last committed
	ran       map[string]*Executable // by what was committed last
	exits     int
	exited    bool
	upgraded  map[int]int // of handoverd itself, by number
}

// life is what was done to one generation.
type life struct {
	spawnEvent bool // its pid is in the state
	gone       bool
	reaped     bool
	rung       int // of the ladder: 1 message, 2 drain signal, 3 SIGTERM, 4 SIGKILL
	told       proc.Instant
	bound      proc.Instant // its drain ends by then
	accepted   bool
}

func newLedger() ledger {
	return ledger{
		answered: map[int]int{}, done: map[int]int{}, lamed: map[int]bool{}, lives: map[at]*life{}, numbers: map[string]int{},
		committed: map[string]string{}, ran: map[string]*Executable{}, upgraded: map[int]int{},
	}
}

// check checks one step.
func (w *walk) check(prev *State, e event, next *State, acts []action) {
	back, restored := e.(evRestored)
	if restored && !back.Whole {
		w.crashed(prev, next, acts)
	}
	w.checkUpgrade(prev, e, next, acts)
	for _, a := range acts {
		w.checkAction(prev, e, next, a)
	}
	w.checkAnswers(e, acts)
	for name, svc := range next.Services {
		w.checkService(prev.Services[name], svc, next, acts)
	}
	for name, svc := range prev.Services {
		if next.Services[name] == nil { // removed and forgotten: if it comes back, it begins anew
			delete(w.ledger.committed, name)
			delete(w.ledger.ran, name)
		}
		if next.Services[name] == nil && len(svc.Generations) > 0 && !goneNow(acts, name) {
			w.fail("%s was forgotten with generations", name)
		}
	}
	if !restored || back.Whole { // which calls it off
		w.checkStop(prev, next, acts)
	}
	if ev, ok := e.(evSpawned); ok && w.ledger.lives[ev.at] != nil {
		w.ledger.lives[ev.at].spawnEvent = true
	}
	w.ledger.last = w.now
}

func goneNow(acts []action, service string) bool {
	return slices.ContainsFunc(acts, func(a action) bool {
		r, ok := a.(acReap)
		return ok && r.Service == service
	})
}

// living is the life that an action may refer to.
func (w *walk) living(a at, act action) *life {
	l := w.ledger.lives[a]
	if l == nil || l.reaped {
		w.fail("%T for %v, which is gone or never was", act, a)
		return &life{}
	}
	return l
}

func (w *walk) checkAction(prev *State, e event, next *State, a action) {
	switch a := a.(type) {
	case acSpawn:
		w.checkSpawn(prev, next, a.at)
	case acGo:
		l := w.living(a.at, a)
		g := generationOf(next, a.at)
		if l.gone {
			w.fail("go twice for %v", a.at)
		}
		if ev, ok := e.(evSpawned); !ok || ev.at != a.at || g == nil || g.PID != ev.PID || g.StartTime != ev.StartTime {
			w.fail("go for %v, whose pid is not in the state", a.at)
		}
		l.gone = true
	case acAccept:
		w.living(a.at, a).accepted = true
		if g := generationOf(next, a.at); g != nil && !g.Hello {
			w.fail("accept for %v, which did not say hello", a.at)
		}
	case acAck:
		w.living(a.at, a)
	case acLame:
		w.living(a.at, a)
		if next.Services[a.Service].Lame == nil {
			w.fail("%v is told of a lame duck that there is not", a.at)
		}
	case acDrain:
		l := w.living(a.at, a)
		l.told = w.now
		g := generationOf(next, a.at)
		if g == nil || !g.Hello {
			w.fail("drain message to %v, which did not say hello", a.at)
			return
		}
		if g.Untold {
			w.fail("%v is told to drain before the queues of its sockets are empty", a.at)
		}
		if _, late := e.(evHello); !late || g.DrainBegan == w.now {
			w.climb(a.at, l, 1)
		}
	case acSignal:
		w.checkSignal(prev, next, a)
	case acKill:
		l := w.living(a.at, a)
		if a.Signal == sigKill {
			w.climb(a.at, l, 4)
			if g := generationOf(prev, a.at); g != nil && g.Phase == PhaseDraining && w.now >= g.KillAt {
				w.seen["SIGKILL at the deadline"] = true
			}
		} else if g := generationOf(next, a.at); g != nil && !g.Exited {
			w.fail("what %v started is terminated while it runs", a.at)
		}
	case acCommit:
		w.checkCommit(prev, next, a.at)
	case acReap:
		w.living(a.at, a).reaped = true
		if generationOf(next, a.at) != nil {
			w.fail("%v is reaped and in the state", a.at)
		}
	case acNote:
		if a.Gen != 0 {
			w.living(a.at, a)
		}
	}
}

func generationOf(s *State, a at) *Generation {
	if svc := s.Services[a.Service]; svc != nil {
		return svc.gen(a.Gen)
	}
	return nil
}

// climb: the ladder is climbed in order, never down.
func (w *walk) climb(a at, l *life, rung int) {
	if rung < l.rung {
		w.fail("%v: rung %d of the ladder after rung %d", a, rung, l.rung)
	}
	l.rung = max(l.rung, rung)
}

func (w *walk) checkSpawn(prev, next *State, a at) {
	g := generationOf(next, a)
	if g == nil || next.Stop != nil {
		w.fail("spawn of %v, which is not in the state or after a stop", a)
		return
	}
	if a.Gen <= w.ledger.numbers[a.Service] {
		w.fail("number %v is used again", a)
	}
	w.ledger.numbers[a.Service] = a.Gen
	w.ledger.lives[a] = &life{}
	svc := next.Services[a.Service]
	w.checkRuns(prev.Services[a.Service], g, a)
	if svc.exclusively() && svc.old() != 1 {
		w.fail("%v is spawned beside another, and handoff is exclusive", a)
	}
	switch good := w.ledger.committed[a.Service]; g.Why {
	case WhyRestart:
		w.seen["restart"] = true
		if good != "" && g.Spec.Digest != good {
			w.fail("%v restarts with the spec of %s, not with %s, which was committed last", a, g.Spec.Digest, good)
		}
		if old := prev.Services[a.Service]; svc.Serving() != nil || old.Serving() != nil && !old.Serving().Exited && old.Serving() == svc.Serving() {
			w.fail("%v restarts while another serves", a)
		}
	default:
		limit := g.Spec.Config.Retire.MaxDraining
		if n := svc.retired(); svc.Serving() != nil && n >= limit {
			w.fail("%v is spawned while %d of %d are draining", a, n, limit)
		}
	}
}

// checkRuns: a restart and a repair run what was committed last, the spec and the file;
// a rollback what the state has kept of before that.
func (w *walk) checkRuns(old *Service, g *Generation, a at) {
	ran, known := w.ledger.ran[a.Service]
	same := known && (ran == nil) == (g.Executable == nil) && (ran == nil || ran.same(g.Executable))
	switch g.Why {
	case WhyRestart, WhyRepair:
		if known && !same {
			w.fail("%v is to run %+v, and what was committed last ran %+v", a, g.Executable, ran)
		}
		if g.Why == WhyRepair && w.ledger.committed[a.Service] != g.Spec.Digest {
			w.fail("%v repairs with the spec of %s, not with %s, which was committed last", a, g.Spec.Digest, w.ledger.committed[a.Service])
		}
		w.seen[string(g.Why)] = true
	case WhyRollback:
		w.seen["rollback"] = true
		if g.Spec.Digest == w.ledger.committed[a.Service] && same {
			w.fail("%v rolls back to what was committed last", a)
		}
	case WhyReload, WhyStart:
		if g.Executable != nil {
			w.fail("%v is a reload, and is to run %+v and not what is at its path", a, g.Executable)
		}
	}
}

// checkPrevious: what a rollback goes to is not what serves, and a rollback is not
// rolled back.
func (w *walk) checkPrevious(old, svc *Service) {
	p := svc.Previous
	if p == nil {
		return
	}
	if old.Previous == nil && svc.SpecGen == old.SpecGen {
		w.fail("%s: %+v to go back to, and nothing was committed", svc.Name, p)
	}
	if p.Gen >= svc.SpecGen || p.Spec == svc.Spec && p.Executable == svc.Executable {
		w.fail("%s: to go back from generation %d to %d, from %s to %s", svc.Name, svc.SpecGen, p.Gen, svc.Spec.Digest, p.Spec.Digest)
	}
}

func (w *walk) checkSignal(prev, next *State, a acSignal) {
	l := w.living(a.at, a)
	g := generationOf(next, a.at)
	if g == nil || g.PID == 0 || g.DrainBegan == 0 {
		w.fail("signal to %v, which is not draining", a.at)
		return
	}
	if g.Untold {
		w.fail("%v is signalled before the queues of its sockets are empty", a.at)
	}
	term := a.Signal == sigTerm && (g.Spec.Drain != sigTerm || g.hooked())
	switch {
	case g.hooked() && !term:
		w.fail("%v: signal %d, and it has a drain hook", a.at, a.Signal)
	case term:
		w.climb(a.at, l, 3)
		w.seen["SIGTERM on the ladder"] = true
		early := g.KillAt.Add(-g.Spec.Config.Retire.KillGrace)
		if w.now < early {
			w.fail("%v: SIGTERM at %v, more than a kill grace before the deadline %v", a.at, w.now, g.KillAt)
		}
	case a.Signal != g.Spec.Drain:
		w.fail("%v: signal %d is not on its ladder", a.at, a.Signal)
	case g.Spec.Drain != sigTerm:
		w.climb(a.at, l, 2)
		if was := generationOf(prev, a.at); was != nil && was.Answered {
			w.fail("%v has answered the drain message and is signalled", a.at)
		}
		if was := generationOf(prev, a.at); l.told == g.DrainBegan && l.told != 0 && was != nil && !was.Read && !was.Deaf {
			w.fail("%v has not read the drain message and is signalled", a.at)
		}
		if l.told == g.DrainBegan && l.told != 0 && g.Spec.Config.Retire.AnswerTimeout == 0 {
			w.fail("%v is signalled for want of an answer that nobody waits for", a.at)
		}
		// A native one has its time to answer, if its deadline is not nearer.
		if l.told != 0 && w.now < l.told.Add(g.Spec.Config.Retire.AnswerTimeout) && w.now < g.KillAt.Add(-g.Spec.Config.Retire.KillGrace) && l.told > g.DrainBegan {
			break // it said hello when it had been signalled already, or is to be
		}
		if l.told != 0 && l.told == g.DrainBegan && w.now < l.told.Add(g.Spec.Config.Retire.AnswerTimeout) &&
			w.now < g.KillAt.Add(-g.Spec.Config.Retire.KillGrace) {
			w.fail("%v is signalled before it had its time to answer", a.at)
		}
	}
}

func (w *walk) checkCommit(prev, next *State, a at) {
	w.living(a, acCommit{a})
	g := generationOf(next, a)
	was := generationOf(prev, a)
	if g == nil || was == nil || was.PID == 0 {
		if g == nil || g.PID == 0 {
			w.fail("commit of %v, which does not run", a)
			return
		}
	}
	w.ledger.committed[a.Service], w.ledger.ran[a.Service] = g.Spec.Digest, g.Executable
	if was := generationOf(prev, a); was != nil && was.Why == WhyRollback {
		w.seen["rolled back to what served before"] = true
		if next.Services[a.Service].Previous != nil {
			w.fail("%v was a rollback, and there is something to roll back to", a)
		}
	}
	if g.ReadyAt == 0 || w.now < g.ReadyAt.Add(g.Spec.Config.Ready.Settle) {
		w.fail("%v is committed before it was ready and settled", a)
	}
	if !g.Adopted && g.Spec.shares() && was != nil && was.Phase != PhaseBaking {
		w.fail("%v is committed and accepts on nothing", a)
	}
	if g.Hello && !g.AcceptSent {
		w.fail("%v is committed and was not told to accept", a)
	}
	// Whom the outside or its own probe has not found good is not committed beside
	// one that serves.
	cfg := &g.Spec.Config.Ready
	if serves := prev.Services[a.Service].Serving(); serves != nil && !serves.Exited && next.Services[a.Service].in(PhaseEnding) == nil {
		if cfg.Gate != nil && !g.GateOpen {
			w.fail("%v is committed before the gate opened", a)
		}
		if cfg.Gate != nil {
			w.seen["through the gate"] = true
		}
		if baked := cfg.Bake > 0 || isProbe(cfg.When); cfg.Probe != nil && baked && (!g.Probed || g.ProbeBad) {
			w.fail("%v is committed while its probe fails: %+v", a, g)
		}
		if was != nil && was.Phase == PhaseBaking && w.now < was.BakeEnds {
			w.fail("%v is committed before the end of its bake", a)
		}
	}
	if next.Stop != nil && prev.Services[a.Service].Serving() != nil && next.Services[a.Service].in(PhaseEnding) == nil {
		w.fail("%v is committed in the middle of a stop", a)
	}
}

// checkAnswers: every request is answered at once and once, every job ends once.
func (w *walk) checkAnswers(e event, acts []action) {
	asked := 0
	if r, ok := e.(evReload); ok {
		asked = r.Request
	}
	if r, ok := e.(evAbort); ok {
		asked = r.Request
	}
	for _, a := range acts {
		switch a := a.(type) {
		case acAnswer:
			w.ledger.answered[a.Request]++
			if a.Request != asked || (a.Job == 0) == (a.Refused == RefusedNot) {
				w.fail("answer %+v to %#v", a, e)
			}
			asked = 0
			if a.Job != 0 && a.Job <= len(w.ledger.done) {
				w.seen["merged reload"] = true
			}
			if a.Job != 0 && w.ledger.answered[a.Request] == 1 {
				if _, ok := w.ledger.done[a.Job]; ok {
					w.seen["merged reload"] = true
				} else {
					w.ledger.done[a.Job] = 0
				}
			}
		case acAborted:
			w.ledger.answered[a.Request]++
			if a.Request != asked || (len(a.Results) > 0) != (a.Refused == RefusedNot) || a.Job != 0 && a.Refused != RefusedNot {
				w.fail("abort %+v to %#v", a, e)
			}
			asked = 0
			if a.Refused == RefusedNot {
				w.seen["aborted"] = true
			}
			if a.Job != 0 {
				w.seen["aborted, then a newer one"] = true
			}
		case acLamed:
			if r, ok := e.(evLame); !ok || r.Request != a.Request || w.ledger.lamed[a.Request] {
				w.fail("lame duck %d is answered to %#v, or again", a.Request, e)
			}
			w.ledger.lamed[a.Request] = true
		case acJobDone:
			w.ledger.done[a.Job.ID]++
			for _, r := range a.Job.Results {
				if r.Outcome == OutcomePending || r.Release == ReleasePending || r.Waiting && r.Outcome != OutcomeRemoved {
					w.fail("job %d ended with %+v", a.Job.ID, r)
				}
				w.seen[string(r.Outcome)] = true
				w.seen[string(r.Release)] = true
			}
		}
	}
	if asked != 0 {
		w.fail("request %d was not answered at once", asked)
	}
}

func (w *walk) checkService(old, svc *Service, next *State, acts []action) {
	if old == nil {
		old = &Service{Name: svc.Name}
	}
	if svc.Removed { // if it comes back, it begins anew
		delete(w.ledger.committed, svc.Name)
		delete(w.ledger.ran, svc.Name)
	}
	if svc.LastN < old.LastN {
		w.fail("%s: last number %d after %d", svc.Name, svc.LastN, old.LastN)
	}
	w.checkLame(old, svc, next)
	w.checkLoop(old, svc, next)
	w.checkPrevious(old, svc)
	coming, serving, number := 0, 0, 0
	for _, g := range svc.Generations {
		if g.N <= number || g.N > svc.LastN {
			w.fail("%s: numbers not in order: %d", svc.Name, g.N)
		}
		number = g.N
		switch g.Phase {
		case PhaseStarting, PhaseBaking:
			coming++
		case PhaseServing:
			serving++
		}
		w.checkGeneration(old.gen(g.N), g, svc, next)
	}
	if coming > 1 || serving > 1 { // promise 3
		w.fail("%s: %d starting and %d serving", svc.Name, coming, serving)
	}
	if u := svc.Upgrade; u != nil && u.Gen != 0 {
		if g := svc.gen(u.Gen); g == nil || g.Phase != PhaseStarting && g.Phase != PhaseBaking {
			w.fail("%s: the upgrade is generation %d, which does not start", svc.Name, u.Gen)
		}
	}
	if svc.Upgrade != nil && svc.Upgrade.Waiting {
		w.seen["waiting for a place"] = true
	}
	// A serving generation is left alone until another is committed, a stop or a
	// removal was asked for, or it dies.
	if was := old.Serving(); was != nil {
		now := svc.gen(was.N)
		first := now != nil && now.DrainWhy == exclusive && svc.Upgrade != nil && svc.exclusively()
		if now != nil && now.Phase != PhaseServing && !now.Exited && next.Stop == nil && !svc.Removed && !replacedBy(acts, svc.Name, was.N) && !first {
			w.fail("%s: serving generation %d became %s and nothing was committed", svc.Name, was.N, now.Phase)
		}
		if now != nil && now.Phase == PhaseServing {
			for _, a := range acts {
				switch a := a.(type) {
				case acSignal, acKill, acDrain:
					if r := refOf(a); r == (at{svc.Name, was.N}) {
						w.fail("%T for %v, which serves", a, r)
					}
				}
			}
		}
	}
}

// checkLoop: a crash loop is one of so many deaths, its sockets are closed only while
// nothing of the service runs, and with "exit" handoverd does not go on.
func (w *walk) checkLoop(old, svc *Service, next *State) {
	if svc.Spec == nil || svc.Removed {
		return
	}
	cfg := &svc.Spec.Config.Restart
	running := svc.Serving() != nil || svc.coming() != nil
	if svc.Looping {
		w.seen["crash loop"] = true
		if svc.Failures < 1 {
			w.fail("%s is in a crash loop without a death", svc.Name)
		}
	}
	if g := svc.Serving(); g != nil && w.now >= g.Committed.Add(steadyAfter) && (svc.Looping || svc.Failures > 0) {
		w.fail("%s has served since %v, and %d deaths count, in a crash loop: %v", svc.Name, g.Committed, svc.Failures, svc.Looping)
	}
	if !svc.Looping && svc.Failures > old.Failures && svc.Failures >= cfg.loopAfter() {
		w.fail("%s has died %d times, and that is no crash loop", svc.Name, svc.Failures)
	}
	if old.Looping && !svc.Looping && svc.Serving() != nil {
		w.seen["a crash loop is over"] = true
	}
	need := neededSockets(next)
	closed := svc.Looping && cfg.OnCrashLoop == "close" && !running && svc.Upgrade == nil && len(next.Services) == 1
	for _, k := range sharedKeys(svc.Spec) {
		switch {
		case closed && need[k.Key]:
			w.fail("%s is in a crash loop, and its socket %s is needed", svc.Name, k.Key)
		case closed:
			w.seen["closed by a crash loop"] = true
		case running && next.Stop == nil && !need[k.Key] && svc.in(PhaseServing, PhaseStarting, PhaseBaking).Spec == svc.Spec:
			w.fail("%s runs, and its socket %s is not needed", svc.Name, k.Key)
		case running && svc.Looping && cfg.OnCrashLoop == "close":
			w.seen["open again after a crash loop"] = true
		}
	}
}

// checkLame: the wait of a lame duck ends by its max, whoever hangs, and a drain for
// a stop does not begin before it has ended.
func (w *walk) checkLame(old, svc *Service, next *State) {
	l := svc.Lame
	if svc.Undo != 0 && w.now >= svc.Undo.Add(undoLimit) {
		w.fail("%s takes its announcement back since %v", svc.Name, svc.Undo)
	}
	switch {
	case l == nil && next.Stop != nil:
		w.fail("%s stops and is no lame duck", svc.Name)
	case l == nil:
	case l.Ended == 0 && w.now >= l.Max:
		w.fail("%s is a lame duck after %v", svc.Name, l.Max)
	case l.Ended == 0 && (svc.Stop == StopWaiting || svc.Stop == StopHolding || svc.Stop == StopDraining):
		w.fail("%s is %s in its lame duck", svc.Name, svc.Stop)
	case l.Ended != 0:
		w.seen["lame duck by "+l.By] = true
	}
	if was := old.Lame; was != nil && l != nil && was.Began == l.Began && (l.Max > was.Max || was.Ended != 0 && l.Ended != was.Ended) {
		w.fail("%s: the end of its lame duck moved from %v to %v", svc.Name, was, l)
	}
	for _, g := range svc.Generations {
		if g.Untold && g.Held && len(g.Leaving) == 0 {
			w.seen["held after its queue was empty"] = true
		}
		if g.Forced {
			w.seen["forced"] = true
		}
	}
	if svc.Upgrade != nil && svc.Upgrade.Drained {
		w.seen["exclusive"] = true
	}
}

func replacedBy(acts []action, service string, old int) bool {
	return slices.ContainsFunc(acts, func(a action) bool {
		c, ok := a.(acCommit)
		return ok && c.Service == service && c.Gen > old
	})
}

func refOf(a action) at {
	switch a := a.(type) {
	case acSignal:
		return a.at
	case acKill:
		return a.at
	case acDrain:
		return a.at
	}
	return at{}
}

func (w *walk) checkGeneration(old, g *Generation, svc *Service, next *State) {
	a := at{svc.Name, g.N}
	l := w.ledger.lives[a]
	if l == nil {
		w.fail("%v was never spawned", a)
		return
	}
	cfg := &g.Spec.Config
	switch g.Phase {
	case PhaseStarting:
		if g.PID != 0 && w.now >= g.GraceEnds {
			w.fail("%v starts after the end of its grace", a)
		}
		if g.Exited {
			w.fail("%v has exited and starts", a)
		}
	case PhaseBaking:
		w.seen["baking"] = true
		if svc.Serving() == nil {
			w.fail("%v bakes and nothing serves", a)
		}
	case PhaseDraining:
		if l.bound == 0 {
			l.bound = g.DrainBegan.Add(cfg.Retire.ParentShutdown)
			if g.DrainWhy == "stop" {
				l.bound = next.Stop.Began.Add(max(cfg.Stop.Deadline, svc.Spec.Config.Stop.Deadline))
			}
			if g.DrainWhy == "rolled back" {
				w.seen["rolled back"] = true
				w.seen["rolled back while "+string(old.Phase)] = true
			}
		}
		if g.Release == ReleaseNo {
			w.seen["not released"] = true
		}
		if !g.Untold && l.rung == 0 && !g.Signalled && g.SignalAt == 0 && g.TermAt == 0 && !g.Hook {
			w.fail("%v drains, and nothing tells it to", a)
		}
	case PhaseKilling:
		if g.Stuck {
			w.seen["stuck"] = true
		}
		if g.PID != 0 && l.rung < 4 {
			w.fail("%v is being killed and was not sent SIGKILL", a)
		}
	}
	// Promise 4: while it drains, and while what it started is ended, there is a
	// deadline; it is never passed, and never moved away.
	if g.Phase == PhaseDraining || g.Phase == PhaseEnding {
		if g.KillAt == 0 || w.now >= g.KillAt {
			w.fail("%v is %s at %v, its deadline is %v", a, g.Phase, w.now, g.KillAt)
		}
		if l.bound != 0 && g.KillAt > l.bound {
			w.fail("%v: deadline %v, later than %v", a, g.KillAt, l.bound)
		}
		if old != nil && old.KillAt != 0 && g.KillAt > old.KillAt {
			w.fail("%v: the deadline went from %v to %v", a, old.KillAt, g.KillAt)
		}
		if next.Stop != nil && g.KillAt > next.Stop.Hard {
			w.fail("%v: deadline %v after the end of handoverd %v", a, g.KillAt, next.Stop.Hard)
		}
	}
}

func (w *walk) checkStop(prev, next *State, acts []action) {
	for _, a := range acts {
		switch a := a.(type) {
		case acExit:
			w.ledger.exits++
			w.ledger.exited = true
			left := 0
			for _, svc := range next.Services {
				left += len(svc.Generations)
			}
			want := 0
			switch {
			case next.Stop == nil:
			case next.Stop.CrashLoop != "":
				want = ExitCrashLoop
			case left > 0 || len(next.Stop.Cut) > 0:
				want = ExitCut
			}
			if next.Stop == nil || a.Code != want {
				w.fail("exit %d with %d left, want %d", a.Code, left, want)
			}
			w.seen[fmt.Sprintf("exit %d", a.Code)] = true
		case acPrepare:
			if next.Stop != nil {
				w.fail("prepared after a stop")
			}
			for name, svc := range next.Services { // where nothing serves it is replaced
				if svc.Upgrade != nil && svc.Upgrade.Gen != 0 && svc.Serving() != nil {
					w.fail("job %d is prepared while the upgrade of %s is under way", a.Job, name)
				}
			}
		}
	}
	if prev.Stop != nil && (next.Stop == nil || next.Stop.Hard > prev.Stop.Hard) {
		w.fail("the end of the stop moved away")
	}
	if next.Stop != nil && w.now >= next.Stop.Hard && !w.ledger.exited {
		w.fail("still there after %v", next.Stop.Hard)
	}
	if next.Stop != nil {
		for _, svc := range next.Services {
			if g := svc.in(PhaseStarting); g != nil {
				w.fail("%s generation %d starts in a stop", svc.Name, g.N)
			}
		}
	}
}
