package main

import (
	"fmt"
	"os"
	"strconv"
)

// environment is this process's, for what it starts.
func environment() []string { return os.Environ() }

// reloadCounts are how many reloads a cell of handoverd gets, PEERS_RELOADS, and one of the others, PEERS_PEER_RELOADS.
// 0: not set.
func reloadCounts() (own, peers int, err error) {
	for name, n := range map[string]*int{"PEERS_RELOADS": &own, "PEERS_PEER_RELOADS": &peers} {
		text := os.Getenv(name)
		if text == "" {
			continue
		}
		if *n, err = strconv.Atoi(text); err != nil || *n < 1 {
			return 0, 0, fmt.Errorf("%s=%q, want a number of reloads", name, text)
		}
	}
	return own, peers, nil
}
