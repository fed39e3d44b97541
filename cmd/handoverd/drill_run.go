package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/drill"
)

// liveEvery is the time between two live lines.
const liveEvery = 500 * time.Millisecond

// drillRun is a drill under way, and what is left of it.
type drillRun struct {
	flags   *drillFlags
	env     *env
	trigger drillTrigger // nil: none

	begin       time.Time
	runs        []*drill.Run
	reports     []drill.Report // after the end
	interrupted bool
	hurried     chan struct{} // closed at a second signal: what is in flight is not waited for
	clear       string        // takes the live line away, where there is one

	mu    sync.Mutex
	fired []firedTrigger
}

// firedTrigger is one trigger that is over.
type firedTrigger struct {
	kind       string
	begin, end time.Time
	firing
	err error
}

// run sends all loads and fires the triggers until the time is over or a signal asks for the end.
func (d *drillRun) run(ctx context.Context, loads []drill.Load) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A terminal that goes takes the load with it, unless it was begun with nohup.
	ends := []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGQUIT}
	if !signal.Ignored(unix.SIGHUP) {
		ends = append(ends, unix.SIGHUP)
	}
	signals, stopSignals := d.env.signals()
	defer stopSignals()
	var others sync.WaitGroup
	defer others.Wait()
	over := make(chan struct{})
	defer close(over)
	defer cancel()
	d.hurried = make(chan struct{})
	others.Go(func() { d.interrupt(over, cancel, signals, ends) })

	d.begin = time.Now()
	for _, l := range loads {
		// Not ctx: what is in flight at an interruption is counted to its end.
		r, err := drill.Start(context.Background(), l)
		if err != nil {
			d.stop()
			return usage(err)
		}
		d.runs = append(d.runs, r)
	}
	if f, ok := d.env.stderr.(*os.File); ok && isTerminal(f) {
		d.clear = "\r\x1b[K"
		others.Go(func() { d.live(ctx) })
	}
	if d.trigger != nil {
		d.fireAll(ctx)
	}
	_ = drill.Pause(ctx, time.Until(d.begin.Add(d.flags.duration))) // an interruption is told from the end below
	d.interrupted = ctx.Err() != nil
	d.stop()
	return nil
}

// stop ends all runs at once, then waits for each, unless somebody is in a hurry: a --timeout may be long.
func (d *drillRun) stop() {
	reports := make([]drill.Report, len(d.runs))
	var all sync.WaitGroup
	for i, r := range d.runs {
		ended := make(chan drill.Report, 1)
		// Waited for below, unless there is a hurry: then the process ends soon.
		go end(r, ended)
		all.Go(func() {
			select {
			case reports[i] = <-ended:
			case <-d.hurried:
				reports[i] = r.Snapshot()
			}
		})
	}
	all.Wait()
	d.reports = reports
}

func end(r *drill.Run, report chan<- drill.Report) { report <- r.Stop() }

// interrupt ends the drill on one of the signals; it is still reported. A second one ends the wait for what is in flight.
func (d *drillRun) interrupt(over <-chan struct{}, cancel func(), signals <-chan os.Signal, ends []os.Signal) {
	for asked := 0; ; {
		select {
		case s := <-signals:
			if !slices.Contains(ends, s) {
				continue
			}
			cancel()
			if asked++; asked == 2 {
				close(d.hurried)
			}
		case <-over:
			return
		}
	}
}

// fireAll fires a trigger every so often while there is time for one. What comes more than half that time late, because the
// one before lasted, falls out.
func (d *drillRun) fireAll(ctx context.Context) {
	for at := d.flags.every; at < d.flags.duration; at += d.flags.every {
		wait := time.Until(d.begin.Add(at))
		if wait < -d.flags.every/2 {
			continue
		}
		if drill.Pause(ctx, wait) != nil {
			return
		}
		f := d.fire(ctx)
		if ctx.Err() != nil {
			return // its outcome was not waited for
		}
		d.mu.Lock()
		d.fired = append(d.fired, f)
		d.mu.Unlock()
	}
}

// fire fires once, in a window of every run.
func (d *drillRun) fire(ctx context.Context) firedTrigger {
	ctx, cancel := context.WithTimeout(ctx, triggerTimeout)
	defer cancel()
	f := firedTrigger{kind: d.trigger.kind()}
	windows := make([]*drill.Window, len(d.runs))
	for i, r := range d.runs {
		windows[i] = r.Mark(f.kind)
	}
	f.begin = time.Now()
	f.firing, f.err = d.trigger.fire(ctx)
	f.end = time.Now()
	for _, w := range windows {
		w.End()
	}
	if f.err != nil {
		_, _ = fmt.Fprintf(d.env.stderr, "%shandoverd: %s at %.1f s failed: %v\n", d.clear, f.kind, f.begin.Sub(d.begin).Seconds(), f.err)
	}
	return f
}

// live rewrites one line while the drill runs.
func (d *drillRun) live(ctx context.Context) {
	tick := time.NewTicker(liveEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_, _ = fmt.Fprintf(d.env.stderr, "%s%s", d.clear, d.liveText())
		case <-ctx.Done():
			_, _ = fmt.Fprint(d.env.stderr, d.clear)
			return
		}
	}
}

func (d *drillRun) liveText() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%.1f of %.0f s", time.Since(d.begin).Seconds(), d.flags.duration.Seconds())
	d.mu.Lock()
	if n := len(d.fired); n > 0 {
		fmt.Fprintf(&b, ", %d triggers", n)
	}
	d.mu.Unlock()
	for _, r := range d.runs {
		s := r.Snapshot()
		fmt.Fprintf(&b, " | %s %d sent, %d failed", s.Load.Mode, s.Sent, s.Failed())
	}
	return b.String()
}

// isTerminal takes every character device for one: a line too many in /dev/null harms nobody.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
