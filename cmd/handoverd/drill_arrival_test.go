//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestDrillLastArrival: after each trigger an older instance goes on taking connections for a while, as one does that a
// balancer has not dropped yet. The report knows for how long, as the server does.
func TestDrillLastArrival(t *testing.T) {
	const stale, every = 150 * time.Millisecond, 400 * time.Millisecond
	type state struct {
		generation int
		since      time.Time
	}
	var now atomic.Pointer[state]
	now.Store(&state{generation: 1})
	var turn atomic.Int64
	last := [4]atomic.Int64{} // by generation that is old: when it last answered, ns after the trigger
	s := startBroken(t, func(w io.Writer) {
		st := now.Load()
		g, since := st.generation, time.Since(st.since)
		if g > 1 && since < stale && turn.Add(1)%2 == 0 {
			g--
			last[g].Store(int64(since))
		}
		_, _ = io.WriteString(w, strings.Replace(goodAnswer, "\r\n", fmt.Sprintf("\r\nX-Generation: %d\r\n", g), 1))
	})
	o := &drillFlags{rate: 1000, duration: 1500 * time.Millisecond, every: every, modes: []string{"fresh", "tcp"}}
	trigger := &fakeTrigger{do: func(context.Context) error {
		now.Store(&state{now.Load().generation + 1, time.Now()})
		return nil
	}}
	r, reports := drillAgainst(t, s.addr, o, trigger)
	if r.Failed != 0 || len(r.Triggers) != 3 {
		t.Fatalf("%d triggers: %s", len(r.Triggers), reports[0].String())
	}
	for i, got := range r.Triggers {
		want := time.Duration(last[i+1].Load()).Seconds()
		// The client sends before the server answers: by the time of a connect, which on a busy machine is any. That it is the
		// last one, and not any one, is seen below in the longest of the three.
		if got.LastArrival == nil || *got.LastArrival > want+0.001 || *got.LastArrival <= 0 || want < stale.Seconds()/2 {
			t.Errorf("trigger %d: last arrival %v, the server answered it after %.3f s", i, got.LastArrival, want)
		}
	}
	if a := r.LastArrival; a == nil || a.Reloads != 3 || a.Max < 0.05 || a.Max > 0.4 || a.P99 > a.Max || r.Sizing.LameDuck != 1 {
		t.Errorf("%+v, sizing %+v", a, r.Sizing)
	}
	var text strings.Builder
	if err := r.write(&text); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "known of 3 of 3 reloads") {
		t.Errorf("the table does not say it:\n%s", text.String())
	}
	page := filepath.Join(t.TempDir(), "p.html")
	if err := writeDrillPage(page, r, reports); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(page); err != nil || strings.Count(string(b), "last request to an older generation sent after") != 6 {
		t.Errorf("the page's marks do not say it: %v", err)
	}
}

// TestDrillLastArrivalUnknown: without generations nothing is said.
func TestDrillLastArrivalUnknown(t *testing.T) {
	s := startBroken(t, func(w io.Writer) { _, _ = io.WriteString(w, goodAnswer) })
	o := &drillFlags{rate: 200, duration: 500 * time.Millisecond, every: 200 * time.Millisecond, modes: []string{"fresh"}}
	r, _ := drillAgainst(t, s.addr, o, &fakeTrigger{do: func(context.Context) error { return nil }})
	var text strings.Builder
	if err := r.write(&text); err != nil {
		t.Fatal(err)
	}
	if r.LastArrival != nil || r.Triggers[0].LastArrival != nil || !strings.Contains(text.String(), "older generation: unknown") || r.Sizing.LameDuck != 0 {
		t.Errorf("%+v:\n%s", r.Triggers, text.String())
	}
}
