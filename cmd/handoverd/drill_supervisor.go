package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/supervisor"
)

// restarter starts handoverd again after it was killed. The zero value leaves that to whoever supervises it.
type restarter struct {
	command string
	within  time.Duration // the longest pause before it
	rand    *rand.Rand
	output  *os.File // of the command; nil: nowhere
}

func (o *drillFlags) restarter(e *env) restarter {
	// A sequence of its own: whether there is a pause changes nothing of which triggers kill.
	r := restarter{command: o.restart, within: o.restartWithin, rand: rand.New(rand.NewPCG(o.seed, 1))}
	r.output, _ = e.stderr.(*os.File) // any other writer would be a pipe, whose reader ends before handoverd does
	return r
}

// pause is how long handoverd stays away this time.
func (r *restarter) pause() time.Duration {
	if r.command == "" {
		return 0
	}
	return time.Duration(r.rand.Int64N(int64(r.within) + 1))
}

// start runs the command. The channel tells how it ended; nil: it is not run by this drill. It may be handoverd
// itself, which outlives the drill: a session of its own keeps the terminal's signals from it.
func (r *restarter) start() (<-chan error, error) {
	if r.command == "" {
		return nil, nil
	}
	cmd := exec.Command("/bin/sh", "-c", r.command)
	if r.output != nil {
		cmd.Stdout, cmd.Stderr = r.output, r.output
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("--restart: %w", err)
	}
	ended := make(chan error, 1)
	go reap(cmd, ended) // nobody waits for it after the drill: it ends with the command, or with this process
	return ended, nil
}

func reap(cmd *exec.Cmd, ended chan<- error) { ended <- cmd.Wait() }

// slaySupervisor kills handoverd, has it started again, and waits until a generation serves under it, and for the window.
func (t *reloadTrigger) slaySupervisor(ctx context.Context) (firing, error) {
	old, err := t.serving(ctx)
	if err != nil {
		return firing{}, err
	}
	p, err := listenerOf(ctx, t.client.path)
	if err != nil {
		return firing{}, err
	}
	defer p.close()
	if err := p.kill(); err != nil {
		return firing{}, err
	}
	// A connection to the one that is gone would cost the next question.
	defer t.client.http.CloseIdleConnections()
	t.client.http.CloseIdleConnections()
	// An interruption skips the pause, and nothing else: the drill leaves no service without its supervisor.
	_ = drill.Pause(ctx, t.restarter.pause())
	ended, err := t.restarter.start()
	if err != nil {
		return firing{}, err
	}
	g, err := t.servesAgain(ctx, ended)
	if err != nil {
		return firing{}, fmt.Errorf("handoverd, process %d, was killed: %w", p.pid, err)
	}
	f := firing{generation: g.Generation, done: time.Now(), adopted: g.Generation == old.Generation && g.PID == old.PID}
	return f, drill.Pause(ctx, t.window)
}

// servesAgain waits until handoverd answers and a generation serves. ended is how the command that starts it may end.
func (t *reloadTrigger) servesAgain(ctx context.Context, ended <-chan error) (supervisor.GenerationStatus, error) {
	tick := time.NewTicker(killPoll)
	defer tick.Stop()
	for {
		g, err := t.serving(ctx)
		if err == nil {
			return g, nil
		}
		select {
		case <-tick.C:
		case end := <-ended:
			if end != nil {
				return g, fmt.Errorf("%s: %w", strings.TrimSpace(t.restarter.command), end)
			}
			ended = nil // it has left a daemon behind, or told an init to start one
		case <-ctx.Done():
			who := "--restart has not started another one under which something serves"
			if t.restarter.command == "" {
				who = "nobody has started it again: without --restart that is for who supervises it, as systemd with Restart="
			}
			return g, fmt.Errorf("%s: %w", who, errors.Join(err, ctx.Err()))
		}
	}
}
