package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/handoverd/handover/drain"
	"github.com/handoverd/handover/supervisor"
)

// emptyQueue is how long a stop waits at most until the accept queue of a socket
// that nobody else holds is empty. It is taken from the drain's time.
const emptyQueue = 2 * time.Second

// phase is one part of a stop, in seconds from the request.
type phase struct {
	From float64 `json:"from_seconds"`
	To   float64 `json:"to_seconds"`
	Name string  `json:"name"`
	Note string  `json:"note,omitempty"`
}

// stopBudget is the stop of a service in the worst case: the lame duck lasts as long as it may.
func stopBudget(s *supervisor.ServiceConfig) drain.Budget {
	return drain.Budget{Key: "deadline", Limit: s.Stop.Deadline, LameDuck: s.Stop.LongestLameDuck(), KillGrace: s.Retire.KillGrace}
}

// stopLine is the time line of a service's stop, each part at its latest.
func stopLine(s *supervisor.ServiceConfig, p *supervisor.ServicePlan) []phase {
	var list []phase
	for _, l := range stopBudget(s).Lines() {
		ph := phase{From: l.From.Seconds(), To: l.To.Seconds(), Name: l.Name, Note: l.Note}
		switch l.Name {
		case "lame duck":
			switch d := &s.Stop.LameDuck; {
			case d.Until != "timer":
				ph.Note = "at most (lame_duck.max)"
			case s.Stop.LongestLameDuck() > d.For:
				ph.Note = fmt.Sprintf("at most (lame_duck.max): %s (for) after the announcement was made, and the drain has the rest as well", d.For)
			default:
				ph.Note = "lame_duck.for"
			}
			ph.Note += "; serves on, /ready answers 503"
		case "drain":
			if s.Stop.Hold != "" && s.Stop.Hold != "0s" {
				list = append(list, phase{ph.From, ph.To, "hold", s.Stop.Hold + ": the drain signal waits for it, inside the drain's time"})
			}
			if len(s.Sockets) > 0 {
				end := min(l.From+emptyQueue, l.To)
				list = append(list, phase{ph.From, end.Seconds(), "empty queue", "at most, inside the drain's time"})
			}
			ph.Note = "what is left: told to drain by " + toldBy(s, p)
		case "kill grace":
			ph.Note = "SIGTERM at its begin, unless that was the drain signal"
		}
		list = append(list, ph)
	}
	end := s.Stop.Deadline.Seconds()
	return append(list, phase{end, end, "SIGKILL", "deadline: to everything it started"})
}

// stopWarnings are budgets that work and are tight.
func stopWarnings(s *supervisor.ServiceConfig) []string {
	duck := s.Stop.LongestLameDuck()
	left := s.Stop.Deadline - duck - s.Retire.KillGrace
	if len(s.Sockets) == 0 || left <= 0 || left > emptyQueue {
		return nil
	}
	return []string{fmt.Sprintf("service.%s.stop.deadline: a lame duck of %s, the longest that it may be, leaves %s for emptying the queue (up to %s) and the drain",
		s.Name, duck, left, emptyQueue)}
}

// printPhases writes a time line as a table.
func printPhases(out io.Writer, indent string, phases []phase) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, p := range phases {
		to := exact(p.To)
		if p.From == p.To {
			to = ""
		}
		line := indent + exact(p.From) + "\t" + to + "\t" + p.Name
		if p.Note != "" {
			line += "\t" + p.Note
		}
		fmt.Fprintln(t, line)
	}
	_ = t.Flush() // an error stays in the errWriter
}
