//go:build linux

package main

import (
	"os"
	"strconv"
)

// newScript reads what the supervisor says in the environment.
func newScript() (*script, error) {
	s := &script{notify: os.Getenv("NOTIFY_SOCKET")}
	if g := os.Getenv("HANDOVER_GENERATION"); g != "" {
		var err error
		if s.generation, err = strconv.Atoi(g); err != nil {
			return nil, err
		}
	}
	return s, nil
}
