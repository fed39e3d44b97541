package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

// A line is one row of the second table, measured.
type line struct {
	row
	Stops   []stopped      `json:"stops"`
	Seconds float64        `json:"seconds"`
	Exits   map[string]int `json:"exits"`
	tally
}

// runRows runs all rows side by side: most of the time all of them wait.
func runRows(ctx context.Context, exe string, p pace, rows []row) ([]line, error) {
	lines, errs := make([]line, len(rows)), make([]error, len(rows))
	var wg sync.WaitGroup
	for i, r := range rows {
		wg.Go(func() { lines[i], errs[i] = runRow(ctx, exe, p, r) })
	}
	wg.Wait()
	return lines, errors.Join(errs...)
}

// behind is a balancer with its two servers, and the load.
type behind struct {
	row      row
	pace     pace
	servers  [2]*backend
	balancer *balancer
	load     *drill.Run
}

// runRow stops the servers, one after the other, each until the balancer sends to it again.
func runRow(ctx context.Context, exe string, p pace, r row) (found line, err error) {
	found = line{row: r, Exits: map[string]int{}}
	dir, err := os.MkdirTemp("", "drainbench")
	if err != nil {
		return found, err
	}
	defer os.RemoveAll(dir)
	b := &behind{row: r, pace: p}
	defer b.close()
	if err := b.start(ctx, exe, dir); err != nil {
		return found, fmt.Errorf("%s: %w", r.Name, err)
	}
	begin := time.Now()
	for i := range p.stops {
		if err := b.stopOne(ctx, b.servers[i%2], &found); err != nil {
			return found, fmt.Errorf("%s, stop %d: %w", r.Name, i+1, err)
		}
	}
	report := b.load.Stop()
	found.tally, found.Seconds = countDrill(&report), time.Since(begin).Seconds()
	return found, nil
}

func (b *behind) start(ctx context.Context, exe, dir string) (err error) {
	stats := filepath.Join(dir, "stats")
	for i, name := range []string{"app/a", "app/b"} {
		b.servers[i], err = newBackend(exe, name, "-loop", b.row.Loop, "-stats", stats,
			"-longest", b.pace.longest.String(), "-drain", b.pace.drain.String(), "-deadline", b.pace.deadline.String())
		if err != nil {
			return err
		}
		if err := b.servers[i].start(ctx); err != nil {
			return err
		}
	}
	if b.balancer, err = startBalancer(dir, b.row, b.pace, b.servers[0].addr, b.servers[1].addr); err != nil {
		return err
	}
	if err := accepts(ctx, b.balancer.addr); err != nil {
		return fmt.Errorf("the balancer: %w: %s", err, b.balancer.log.String())
	}
	for _, s := range b.servers {
		if err := b.balancer.up(ctx, s.name); err != nil {
			return err
		}
	}
	b.load, err = drill.Start(ctx, drill.Load{
		Network: "tcp", Address: b.balancer.addr, Mode: drill.ModeKeepAlive, Rate: b.pace.rate, Clients: 128,
		Spread: 20 * time.Millisecond, Duration: time.Hour,
	})
	if err != nil {
		return err
	}
	return b.load.WaitOK(ctx, 100)
}

// stopOne stops a server, waits until the balancer knows, starts it again and waits until the balancer knows that.
func (b *behind) stopOne(ctx context.Context, s *backend, found *line) error {
	before := b.lost()
	how, account, err := s.stop(ctx)
	if err != nil {
		return err
	}
	found.Exits[how]++
	if err := b.balancer.down(ctx, s.name); err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	if !b.row.Nginx {
		// What Acknowledged has changed stays until it is changed back: who starts a server has to.
		if err := setState(ctx, b.balancer.stats, s.name, "ready"); err != nil {
			return err
		}
	}
	if err := b.balancer.up(ctx, s.name); err != nil {
		return err
	}
	one := stopOf(account)
	one.LostThen = b.lost() - before
	found.Stops = append(found.Stops, one)
	return nil
}

func (b *behind) lost() int {
	r := b.load.Snapshot()
	return r.Failed()
}

// close ends what runs.
func (b *behind) close() {
	if b.load != nil {
		b.load.Stop()
	}
	if b.balancer != nil {
		b.balancer.stop()
	}
	for _, s := range b.servers {
		if s != nil {
			s.kill()
		}
	}
}
