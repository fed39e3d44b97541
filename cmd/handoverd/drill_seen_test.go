package main

import (
	"testing"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

// TestDrillSeen: the failures of a trigger were seen from the first of all modes to the last of all.
func TestDrillSeen(t *testing.T) {
	trigger := time.Unix(1000, 0)
	window := func(first, last int) *drill.WindowReport {
		at := func(ms int) time.Time { return trigger.Add(time.Duration(ms) * time.Millisecond) }
		return &drill.WindowReport{FirstBlamed: at(first), LastBlamed: at(last)}
	}
	var o drillOutcome
	o.seen(&drill.WindowReport{}, trigger)
	if o.FirstFailed != 0 || o.LastFailed != 0 {
		t.Errorf("nothing failed, and was seen from %v to %v", o.FirstFailed, o.LastFailed)
	}
	o.seen(window(30, 400), trigger)
	o.seen(&drill.WindowReport{}, trigger)
	o.seen(window(20, 300), trigger)
	if o.FirstFailed != 0.02 || o.LastFailed != 0.4 {
		t.Errorf("seen from %v to %v s, want 0.02 to 0.4", o.FirstFailed, o.LastFailed)
	}
}
