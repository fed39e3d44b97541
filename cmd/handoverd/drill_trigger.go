package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/supervisor"
)

const (
	// triggerTimeout bounds the wait for one trigger's outcome.
	triggerTimeout = 2 * time.Minute
	// killPoll is how often it is looked whether a killed generation was replaced.
	killPoll = 20 * time.Millisecond
)

// Kinds of what a drill triggers.
const (
	triggerReload = "reload"
	triggerKill   = "kill"
	// triggerKillSupervisor is a SIGKILL of handoverd itself.
	triggerKillSupervisor = "kill-supervisor"
)

// drillTrigger fires once and returns when the reload is over.
type drillTrigger interface {
	// name is what the report calls it.
	name() string
	// kind is what the next call of fire does.
	kind() string
	// fire returns when the window is over.
	fire(ctx context.Context) (firing, error)
}

// firing is how a trigger went.
type firing struct {
	generation int       // that serves now; 0 where nobody tells
	done       time.Time // of the reload, before what the window adds; zero where nobody tells
	adopted    bool      // what served before handoverd was killed serves on
}

// trigger is the one that was asked for, nil for none.
func (o *drillFlags) trigger(ctx context.Context, e *env) (drillTrigger, error) {
	switch {
	case o.reload != "":
		c, err := o.where.client()
		if err != nil {
			return nil, err
		}
		t := newReloadTrigger(c, o)
		t.restarter = o.restarter(e)
		if _, err := t.serving(ctx); err != nil {
			return nil, err
		}
		if o.killSupervisor > 0 { // better now than at the first kill
			p, err := listenerOf(ctx, c.path)
			if err != nil {
				return nil, err
			}
			p.close()
		}
		return t, nil
	case o.signal != "":
		sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(o.signal), "SIG"))
		if sig == 0 {
			return nil, usage(fmt.Errorf("--signal %s: no such signal", o.signal))
		}
		// By a pidfd, where the kernel has them: the number of a process that has ended may soon be another's.
		p, err := os.FindProcess(o.pid)
		if err == nil {
			err = p.Signal(unix.Signal(0))
		}
		if err != nil {
			return nil, fmt.Errorf("--pid %d: %w", o.pid, err)
		}
		return &signalTrigger{process: p, sig: sig, window: o.window}, nil
	case o.exec != "":
		return &execTrigger{command: o.exec, window: o.window}, nil
	}
	return nil, nil
}

// reloadTrigger reloads a service of a running handoverd, or kills what serves, or handoverd.
type reloadTrigger struct {
	client    *client
	service   string
	kills     float64       // share of the triggers that kill what serves
	slays     float64       // share of those that kill handoverd
	window    time.Duration // after a kill
	restarter restarter
	rand      *rand.Rand
	chosen    string // what the next one does
}

func newReloadTrigger(c *client, o *drillFlags) *reloadTrigger {
	t := &reloadTrigger{
		client: c, service: o.reload, kills: o.kill, slays: o.killSupervisor, window: o.window, rand: rand.New(rand.NewPCG(o.seed, 0)),
	}
	t.next()
	return t
}

func (t *reloadTrigger) name() string { return "reload of " + t.service }

func (t *reloadTrigger) kind() string { return t.chosen }

func (t *reloadTrigger) next() {
	switch drawn := t.rand.Float64(); {
	case drawn < t.kills:
		t.chosen = triggerKill
	case drawn < t.kills+t.slays:
		t.chosen = triggerKillSupervisor
	default:
		t.chosen = triggerReload
	}
}

func (t *reloadTrigger) fire(ctx context.Context) (firing, error) {
	defer t.next()
	switch t.chosen {
	case triggerKill:
		return t.slay(ctx)
	case triggerKillSupervisor:
		return t.slaySupervisor(ctx)
	}
	report, err := t.client.reload(ctx, "/v1/reload", url.Values{"service": {t.service}}, func(*supervisor.Event) {})
	switch {
	case err != nil:
		return firing{}, err
	case report == nil:
		return firing{}, &reachError{t.client.path, errors.New("handoverd ended before the reload did")}
	}
	f := firing{done: time.Now()}
	for i := range report.Results {
		r := &report.Results[i]
		if r.Service == t.service {
			f.generation = r.Generation
		}
		if !report.OK() && r.Outcome != supervisor.OutcomeServing {
			return firing{}, errors.New(strings.Join(append([]string{resultText(r)}, r.Output...), "\n  | "))
		}
	}
	return f, nil
}

// serving is the generation that serves.
func (t *reloadTrigger) serving(ctx context.Context) (supervisor.GenerationStatus, error) {
	st, err := t.client.status(ctx)
	if err != nil {
		return supervisor.GenerationStatus{}, err
	}
	for i := range st.Services {
		if st.Services[i].Name != t.service {
			continue
		}
		for _, g := range st.Services[i].Generations {
			if g.Phase == supervisor.PhaseServing {
				return g, nil
			}
		}
		return supervisor.GenerationStatus{}, fmt.Errorf("no generation of %s serves", t.service)
	}
	return supervisor.GenerationStatus{}, fmt.Errorf("handoverd has no service %s", t.service)
}

// slay kills what serves and waits until another generation does, and for the window.
func (t *reloadTrigger) slay(ctx context.Context) (firing, error) {
	old, err := t.serving(ctx)
	if err != nil {
		return firing{}, err
	}
	if old.PID <= 0 {
		return firing{}, fmt.Errorf("the process of %s is not known", generationName(t.service, old.Generation))
	}
	if err := unix.Kill(old.PID, unix.SIGKILL); err != nil {
		return firing{}, fmt.Errorf("SIGKILL to %s, process %d: %w", generationName(t.service, old.Generation), old.PID, err)
	}
	tick := time.NewTicker(killPoll)
	defer tick.Stop()
	for {
		g, err := t.serving(ctx)
		if err == nil && g.Generation != old.Generation {
			// Connections that died with it are found dead when they are used next.
			return firing{generation: g.Generation, done: time.Now()}, drill.Pause(ctx, t.window)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return firing{}, fmt.Errorf("%s was killed, and nothing serves in its place: %w", generationName(t.service, old.Generation), errors.Join(err, ctx.Err()))
		}
	}
}

// signalTrigger sends a signal. Nobody tells when the reload is over.
type signalTrigger struct {
	process *os.Process
	sig     unix.Signal
	window  time.Duration
}

func (t *signalTrigger) name() string {
	return fmt.Sprintf("%s to process %d", unix.SignalName(t.sig), t.process.Pid)
}

func (t *signalTrigger) kind() string { return triggerReload }

func (t *signalTrigger) fire(ctx context.Context) (firing, error) {
	if err := t.process.Signal(t.sig); err != nil {
		return firing{}, fmt.Errorf("%s: %w", t.name(), err)
	}
	return firing{}, drill.Pause(ctx, t.window)
}
