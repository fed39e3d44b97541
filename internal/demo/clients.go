package main

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/drill"
)

// clients is the load of one scene.
type clients struct {
	fresh, posts *drill.Run
}

func load(ctx context.Context, address string) (*clients, error) {
	c := &clients{}
	var err error
	if c.fresh, err = drill.Start(ctx, drill.Load{
		Network: "tcp", Address: address, Mode: drill.ModeFresh, Rate: rate,
	}); err != nil {
		return nil, err
	}
	if c.posts, err = drill.Start(ctx, drill.Load{
		Network: "tcp", Address: address, Mode: drill.ModePost, Rate: rate, Clients: 16,
	}); err != nil {
		c.fresh.Stop()
		return nil, err
	}
	return c, c.fresh.WaitOK(ctx, 1)
}

// see waits until clients have been answered by the generation, and a moment
// more, so that there is load between two steps.
func (c *clients) see(ctx context.Context, generation int) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := c.fresh.WaitGeneration(ctx, generation); err != nil {
		return fmt.Errorf("generation %d was not seen: %w", generation, err)
	}
	return c.moment(ctx)
}

// moment waits for a fifth of a second's answers.
func (c *clients) moment(ctx context.Context) error {
	return c.fresh.WaitOK(ctx, c.fresh.Snapshot().OK+rate/5)
}

// print ends the load and tells what it cost.
func (c *clients) print(title string, took time.Duration) {
	reports := []drill.Report{c.fresh.Stop(), c.posts.Stop()}
	sent, failed, kinds := 0, 0, map[drill.Kind]int{}
	for _, r := range reports {
		sent, failed = sent+r.Sent, failed+r.Failed()
		for k, n := range r.Failures {
			kinds[k] += n
		}
	}
	var what []string
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		if kinds[k] > 0 {
			what = append(what, fmt.Sprintf("%d %s", kinds[k], k))
		}
	}
	if len(what) > 0 {
		what = []string{": " + strings.Join(what, ", ")}
	}
	say("  %-52s %6d requests, %4d failed%s  (%.1f s)", title, sent, failed, strings.Join(what, ""), took.Seconds())
}

// usualWay restarts the same server without handoverd: SIGTERM, start again.
func usualWay(ctx context.Context, server string) error {
	address, err := freePort()
	if err != nil {
		return err
	}
	var running *exec.Cmd
	begin := func() error {
		running = exec.Command(server, "-addr", address)
		return running.Start()
	}
	if err := begin(); err != nil {
		return err
	}
	defer func() { _, _ = running.Process.Kill(), running.Wait() }()
	c, err := load(ctx, address)
	if err != nil {
		return err
	}
	began := time.Now()
	for range reloads {
		if err := running.Process.Signal(unix.SIGTERM); err != nil {
			return err
		}
		_ = running.Wait()
		if err := begin(); err != nil {
			return err
		}
		if err := c.moment(ctx); err != nil {
			return err
		}
	}
	c.print(fmt.Sprintf("without handoverd: %d restarts (SIGTERM, start)", reloads), time.Since(began))
	return nil
}
