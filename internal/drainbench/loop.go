package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/handoverd/handover/drain"
)

// parseLoop reads how a lame duck phase ends: "", "timer:D", "probes:COUNT:THEN", or "acknowledged", which asks the balancer
// whose runtime API is at the path stats to send nothing more to name, backend/server.
// The last two end after longest, whatever happens.
func parseLoop(text, stats, name string, longest time.Duration) (drain.Loop, error) {
	kind, rest, _ := strings.Cut(text, ":")
	switch kind {
	case "":
		return nil, nil
	case "timer":
		d, err := time.ParseDuration(rest)
		return drain.Timer(d), err
	case "probes":
		var count int
		var then string
		if _, err := fmt.Sscanf(strings.Replace(rest, ":", " ", 1), "%d %s", &count, &then); err != nil {
			return nil, fmt.Errorf("-loop %q: %w", text, err)
		}
		d, err := time.ParseDuration(then)
		return drain.ProbesSeen{Count: count, Then: d, Max: longest}, err
	case "acknowledged":
		if stats == "" || name == "" {
			return nil, errors.New("-loop acknowledged: want -stats and -name")
		}
		return drain.Acknowledged{By: func(ctx context.Context) error { return setDrain(ctx, stats, name) }, Max: longest}, nil
	}
	return nil, fmt.Errorf("-loop %q: unknown", text)
}

// setDrain tells HAProxy to send nothing new to a server, and returns when nothing is under way there: scur, the number of
// its current sessions, is 0 (HAProxy 2.6 management guide, sections 9.1 and 9.3).
func setDrain(ctx context.Context, stats, name string) error {
	if err := setState(ctx, stats, name, "drain"); err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := serverStat(ctx, stats, name)
		if err != nil {
			return err
		}
		if s.current == 0 && s.queued == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
