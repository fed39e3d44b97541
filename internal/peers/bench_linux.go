package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

// The block has a network namespace of its own, so addresses need not be looked for.
const (
	address        = "127.0.0.1:8080"
	port           = 8080
	backendAddress = "127.0.0.1:8081"
)

const (
	// leastWindow is how long a window lasts at least, and steady how long the stretch between two.
	leastWindow = 500 * time.Millisecond
	steady      = 450 * time.Millisecond
	// settled is the time between the two, in which what was in flight in the window ends.
	settled = 50 * time.Millisecond
	// patience bounds each wait for something that a contender does.
	patience = 30 * time.Second
	// look is the time between two looks at what tells nothing by itself.
	look = 2 * time.Millisecond
)

// loads are the modes of every block. Together they are far below what any contender and the generator can do on one core.
var loads = []drill.Load{
	{Mode: drill.ModeFresh, Rate: 250, Clients: 300},
	{Mode: drill.ModeKeepAlive, Rate: 250, Clients: 32},
	{Mode: drill.ModePost, Rate: 250, Clients: 32},
	// As few connections as will do: one that is idle for long holds up a server that leaves politely.
	{Mode: drill.ModeStream, Rate: 20, Clients: 8, Delay: 150 * time.Millisecond, Spread: 150 * time.Millisecond},
}

// target is a contender as started in a block.
type target interface {
	// start returns when the first generation has been started; whether it serves is seen from outside.
	start(ctx context.Context) error
	// reload begins to replace what serves by that generation, and returns when nothing more has to be done for it.
	reload(ctx context.Context, generation int) error
}

// bench is one block under way.
type bench struct {
	contender contender
	dir       string // for its files; the coordinator removes it
	programs  map[string]string
	log       io.Writer // of what it starts
	runs      map[drill.Mode]*drill.Run
	keep      []int // processes of the name replace that a reload does not replace
}

// measure runs the block. What it started is ended by the end of this process, which is the first one of its pid namespace.
func (b *bench) measure(ctx context.Context, reloads int) (block, error) {
	newTarget, ok := targets[b.contender.name]
	if !ok {
		return block{}, fmt.Errorf("%s has no target", b.contender.name)
	}
	t := newTarget(b)
	if b.contender.header != "" {
		if _, err := b.launch(nil, programBackend, "-addr", backendAddress); err != nil {
			return block{}, err
		}
		if err := b.answers(ctx, backendAddress); err != nil {
			return block{}, err
		}
	}
	if err := t.start(ctx); err != nil {
		return block{}, fmt.Errorf("start: %w", err)
	}
	if err := b.answers(ctx, address); err != nil {
		return block{}, err
	}
	if err := b.load(ctx); err != nil {
		return block{}, err
	}
	if err := b.seen(ctx, 1); err != nil {
		return block{}, err
	}
	triggers, gone := []time.Time{}, []float64{}
	err := b.stretch(ctx)
	for n := 2; n <= reloads+1 && err == nil; n++ {
		triggers = append(triggers, time.Now())
		var took time.Duration
		if took, err = b.cycle(ctx, t, n); err != nil {
			err = fmt.Errorf("reload to generation %d: %w", n, err)
		}
		gone = append(gone, milliseconds(took))
	}
	return b.result(triggers, gone), err
}

// cycle is one reload, its window, and the steady stretch after it. gone is when the old processes had ended.
func (b *bench) cycle(ctx context.Context, t target, generation int) (gone time.Duration, err error) {
	old := b.replaced()
	if len(old) == 0 {
		return 0, fmt.Errorf("no process %s serves", b.contender.replace)
	}
	windows := b.mark(fmt.Sprint(generation))
	began := time.Now()
	if err := t.reload(ctx, generation); err != nil {
		return 0, err
	}
	if err := b.seen(ctx, generation); err != nil {
		return 0, err
	}
	if err := b.ended(ctx, old); err != nil {
		return 0, err
	}
	gone = time.Since(began)
	if err := drill.Pause(ctx, max(leastWindow-gone, b.contender.after)); err != nil {
		return 0, err
	}
	end(windows)
	return gone, b.stretch(ctx)
}

// stretch is a steady one, with a window of its own, so that both kinds are measured in the same way.
func (b *bench) stretch(ctx context.Context) error {
	if err := drill.Pause(ctx, settled); err != nil {
		return err
	}
	windows := b.mark(steadyName)
	err := drill.Pause(ctx, steady)
	end(windows)
	return err
}

// mark opens a window in each mode.
func (b *bench) mark(name string) (windows []*drill.Window) {
	for _, r := range b.runs {
		windows = append(windows, r.Mark(name))
	}
	return windows
}

func end(windows []*drill.Window) {
	for _, w := range windows {
		w.End()
	}
}

// load starts the clients; result stops them.
func (b *bench) load(ctx context.Context) error {
	for _, l := range loads {
		l.Network, l.Address, l.GenerationHeader = "tcp", address, b.contender.header
		run, err := drill.Start(ctx, l)
		if err != nil {
			return err
		}
		b.runs[l.Mode] = run
	}
	return nil
}

// result ends the clients and takes their figures.
func (b *bench) result(triggers []time.Time, gone []float64) block {
	out := block{Modes: map[string]modeBlock{}, GoneMS: gone}
	first := make([]time.Time, len(triggers))
	for mode, run := range b.runs {
		report := run.Stop()
		out.Modes[string(mode)] = newModeBlock(&report)
		for i := range first {
			// Generation 1 was there before the first trigger.
			if span, ok := report.Spans[i+2]; ok && (first[i].IsZero() || report.Begin.Add(span.First).Before(first[i])) {
				first[i] = report.Begin.Add(span.First)
			}
		}
	}
	for i, at := range first {
		if !at.IsZero() {
			out.ReloadMS = append(out.ReloadMS, milliseconds(at.Sub(triggers[i])))
		}
	}
	return out
}

// seen waits until new connections are answered by that generation.
func (b *bench) seen(ctx context.Context, generation int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return b.runs[drill.ModeFresh].WaitGeneration(ctx, generation)
}

// answers waits until what listens there keeps the contract.
func (b *bench) answers(ctx context.Context, where string) error {
	var last error
	err := until(ctx, "an answer from "+where, func() bool {
		ok, err := drill.Probe(drill.Load{Network: "tcp", Address: where})
		last = err
		return ok
	})
	return errors.Join(err, last)
}

// replaced are the living processes that the next reload replaces.
func (b *bench) replaced() []int {
	return slices.DeleteFunc(named(b.contender.replace), func(pid int) bool { return slices.Contains(b.keep, pid) })
}

// ended waits until none of them lives.
func (b *bench) ended(ctx context.Context, pids []int) error {
	return until(ctx, fmt.Sprintf("the end of %s %v", b.contender.replace, pids), func() bool { return !slices.ContainsFunc(pids, alive) })
}

// until waits for what tells nothing by itself.
func until(ctx context.Context, what string, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !ok() {
		if err := drill.Pause(ctx, look); err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
	}
	return nil
}

// file is the path of a file of this block.
func (b *bench) file(name string) string { return filepath.Join(b.dir, name) }

// write replaces a file at once, so that nobody reads half of it.
func (b *bench) write(name, text string) error {
	temp := b.file(name + ".new")
	if err := os.WriteFile(temp, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, b.file(name))
}
