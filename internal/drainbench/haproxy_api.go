package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// runtimeAPI sends one command to HAProxy's runtime API and returns the answer.
func runtimeAPI(ctx context.Context, stats, command string) (string, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", stats)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, command+"\n"); err != nil {
		return "", fmt.Errorf("%s: %w", command, err)
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		return "", fmt.Errorf("%s: %w", command, err)
	}
	return string(answer), nil
}

// setState sets the administrative state of a server, backend/server: ready, drain or maint.
func setState(ctx context.Context, stats, name, state string) error {
	answer, err := runtimeAPI(ctx, stats, "set server "+name+" state "+state)
	if err == nil && strings.TrimSpace(answer) != "" {
		err = fmt.Errorf("set server %s state %s: %s", name, state, strings.TrimSpace(answer))
	}
	return err
}

// stat is what HAProxy tells of one server.
type stat struct {
	status          string // UP, DOWN, DRAIN, also "UP 1/3"
	current, queued int
}

// serverStat reads "show stat" (management guide, section 9.1: CSV, names in the first line).
func serverStat(ctx context.Context, stats, name string) (stat, error) {
	backend, server, _ := strings.Cut(name, "/")
	answer, err := runtimeAPI(ctx, stats, "show stat")
	if err != nil {
		return stat{}, err
	}
	lines, err := csv.NewReader(strings.NewReader(strings.TrimPrefix(answer, "# "))).ReadAll()
	if err != nil {
		return stat{}, fmt.Errorf("show stat: %w", err)
	}
	column := map[string]int{}
	for i, name := range lines[0] {
		column[name] = i
	}
	for _, line := range lines[1:] {
		if line[column["pxname"]] != backend || line[column["svname"]] != server {
			continue
		}
		s := stat{status: line[column["status"]]}
		if s.current, err = strconv.Atoi(line[column["scur"]]); err != nil {
			return s, fmt.Errorf("show stat: scur: %w", err)
		}
		if s.queued, err = strconv.Atoi(line[column["qcur"]]); err != nil {
			return s, fmt.Errorf("show stat: qcur: %w", err)
		}
		return s, nil
	}
	return stat{}, fmt.Errorf("show stat: no server %s", name)
}
