package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

// A cell is one way to leave with one kind of client.
type cell struct {
	Way     way            `json:"way"`
	Column  string         `json:"column"`
	Stops   int            `json:"stops"`
	Seconds float64        `json:"seconds"`
	Exits   map[string]int `json:"exits"` // how the generations ended
	tally
}

// programs are the executables of the servers.
type programs struct {
	own  string // this one
	grpc string // empty: no column needs it
}

// of is the server of a column.
func (p programs) of(c column) string {
	if c.GRPC {
		return p.grpc
	}
	return p.own
}

// buildGRPC builds the module beside this package. It must run in the root of the tree, as "go run ./internal/drainbench" does.
func buildGRPC(ctx context.Context, dir string) (string, error) {
	file := filepath.Join(dir, "grpcserver")
	cmd := exec.CommandContext(ctx, "go", "build", "-C", "internal/drainbench/grpcserver", "-o", file, ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build grpcserver: %w\n%s", err, out)
	}
	return file, nil
}

// runColumn runs the ways side by side, so that all have the same machine, but does not start their generations at the same
// moments.
func runColumn(ctx context.Context, exe programs, c column, s size, ways []way) ([]cell, error) {
	cells, errs := make([]cell, len(ways)), make([]error, len(ways))
	var wg sync.WaitGroup
	for i, w := range ways {
		wg.Go(func() {
			if errs[i] = drill.Pause(ctx, c.Every*time.Duration(i)/time.Duration(len(ways))); errs[i] == nil {
				cells[i], errs[i] = runCell(ctx, exe, c, s, w)
			}
		})
	}
	wg.Wait()
	return cells, errors.Join(errs...)
}

// runCell replaces the server again and again, under the load of the column.
func runCell(ctx context.Context, exe programs, c column, s size, w way) (found cell, err error) {
	found = cell{Way: w, Column: c.Name}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s, %s: %w", c.Name, w, err)
		}
	}()
	dir, err := os.MkdirTemp("", "drainbench")
	if err != nil {
		return found, err
	}
	defer os.RemoveAll(dir)
	args := []string{"-way", string(w)}
	worker := c.Unit == "jobs"
	if worker {
		args = append(args, "-queue", queuePath(dir))
	}
	h, err := newHolder(exe.of(c), !worker, c.Limit, args...)
	if err != nil {
		return found, err
	}
	defer func() { found.Exits = h.close() }()
	b := &bench{ctx: ctx, addr: h.addr(), dir: dir, size: s}
	var load client
	if worker { // it asks the queue from its begin on
		load, err = c.begin(b)
	}
	if err == nil {
		err = h.replace(ctx)
	}
	if err == nil && load == nil {
		load, err = c.begin(b)
	}
	if err != nil {
		return found, err
	}
	begin := time.Now()
	err = h.replaceUntil(ctx, c.Every, func(stops int) bool {
		found.Stops = stops
		return stops >= c.Stops && load.count() >= c.Target
	})
	found.tally = load.finish()
	found.Seconds = time.Since(begin).Seconds()
	return found, err
}

// replaceUntil replaces the server each time that the interval has passed, until it is enough.
func (h *holder) replaceUntil(ctx context.Context, every time.Duration, enough func(stops int) bool) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for stops := 0; !enough(stops); stops++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := h.replace(ctx); err != nil {
			return err
		}
	}
	return nil
}
