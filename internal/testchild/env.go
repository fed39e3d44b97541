package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// settings is what the environment says: see the package's documentation.
type settings struct {
	mode             string
	generation       int
	delay            time.Duration
	counts           string // path, or empty
	network, address string // empty network: the mode's own
	notify           string // NOTIFY_SOCKET
	sockets          []string
	readyFD          int // of a newline
	lines            bool
	// The health server: its socket and the network of that, its descriptor for
	// the modes that know only numbers, and the file that decides.
	healthSocket, healthNetwork string
	healthFD                    int
	healthFile                  string
}

func readSettings() (settings, error) {
	s := settings{
		counts:  os.Getenv("TESTCHILD_COUNTS"),
		network: os.Getenv("TESTCHILD_NETWORK"),
		address: os.Getenv("TESTCHILD_ADDR"),
		notify:  os.Getenv("NOTIFY_SOCKET"),
		lines:   os.Getenv("TESTCHILD_LINES") != "",
		sockets: strings.Fields(os.Getenv("TESTCHILD_SOCKETS")),
	}
	if len(s.sockets) == 0 {
		s.sockets = []string{"http"}
	}
	if s.address == "" {
		s.address = "127.0.0.1:0"
	}
	// Modes that do not use package handover have the number only here.
	if g := os.Getenv("HANDOVER_GENERATION"); g != "" {
		var err error
		if s.generation, err = strconv.Atoi(g); err != nil {
			return s, fmt.Errorf("HANDOVER_GENERATION: %w", err)
		}
	}
	if d := os.Getenv("TESTCHILD_DELAY"); d != "" {
		var err error
		if s.delay, err = time.ParseDuration(d); err != nil {
			return s, fmt.Errorf("TESTCHILD_DELAY: %w", err)
		}
	}
	s.healthFile = os.Getenv("TESTCHILD_HEALTH_FILE")
	s.healthSocket, s.healthNetwork, _ = strings.Cut(os.Getenv("TESTCHILD_HEALTH"), " ")
	for name, number := range map[string]*int{
		"HANDOVER_READY_FD": &s.readyFD, "HANDOVER_FD_" + strings.ToUpper(s.healthSocket): &s.healthFD,
	} {
		var err error
		if v := os.Getenv(name); v != "" {
			if *number, err = strconv.Atoi(v); err != nil {
				return s, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	s.mode = readMode(s.generation)
	return s, nil
}

// readMode decides how this generation behaves.
func readMode(generation int) string {
	if path := os.Getenv("TESTCHILD_MODE_FILE"); path != "" {
		// A missing file is no mode.
		if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) != "" {
			return strings.TrimSpace(string(b))
		}
	}
	m := os.Getenv("TESTCHILD_MODE")
	if only := os.Getenv("TESTCHILD_FAIL_GEN"); m == "" || only != "" && only != strconv.Itoa(generation) {
		return "ok"
	}
	return m
}
