package main

import (
	"fmt"

	"github.com/handoverd/handover/supervisor"
)

// diesText says what is done when a program dies.
func diesText(s *supervisor.ServiceConfig) string {
	c := &s.Restart
	loop := loopNote(c.OnCrashLoop)
	if len(s.Sockets) == 0 && c.OnCrashLoop != "exit" {
		loop = "tried on, since no client waits for it" // there is nothing to hold or to close
	}
	what := "as the program that served, also if its file was overwritten"
	if c.KeepExecutable == "none" {
		what = "as what is at its path then"
	}
	return fmt.Sprintf("started again, %s: at once if it served for long enough, else after %s, doubled up to %s; after %d deaths in a row (crash loop): %s",
		what, c.BackoffMin, c.BackoffMax, c.CrashLoopAfter, loop)
}

// loopNote says what is done about a crash loop.
func loopNote(policy string) string {
	switch policy {
	case "close":
		return "its sockets are closed but during each try, and clients are refused"
	case "exit":
		return fmt.Sprintf("handoverd stops, with exit code %d", supervisor.ExitCrashLoop)
	}
	return "its sockets stay open, and clients wait in their queues"
}
