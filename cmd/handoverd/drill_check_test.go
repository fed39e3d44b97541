//go:build linux

package main

import (
	"context"
	"io"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/drill"
)

// TestDrillArguments: what is parsed as a number and is none, or cannot be kept, is refused and not sent.
func TestDrillArguments(t *testing.T) {
	tests := []struct {
		want string
		set  func(o *drillFlags)
	}{
		{"", func(*drillFlags) {}},
		{"--rate NaN", func(o *drillFlags) { o.rate = math.NaN() }},
		{"--kill NaN", func(o *drillFlags) { o.kill = math.NaN() }},
		{"--max-p99-ratio NaN", func(o *drillFlags) { o.maxP99Ratio = math.NaN() }},
		{"--deploys-per-week +Inf", func(o *drillFlags) { o.deploys = math.Inf(1) }},
		{"--every 1µs", func(o *drillFlags) { o.every = time.Microsecond }},
		{"no trigger comes within --for 30s", func(o *drillFlags) { o.every = 30 * time.Second }},
		{"--max-p99-ratio goes with a trigger", func(o *drillFlags) { o.exec, o.maxP99Ratio = "", 2 }},
		{"--restart-within", func(o *drillFlags) { o.restartWithin = math.MaxInt64 }},
		{"together more than 24h", func(o *drillFlags) { o.checkInterval, o.checkFailures = time.Hour, math.MaxInt }},
	}
	for _, tt := range tests {
		o := &drillFlags{
			url: "http://127.0.0.1:1", rate: 100, duration: 30 * time.Second, every: time.Second, exec: "true", instances: 1, contract: "auto",
		}
		tt.set(o)
		err := o.check()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("want %q: %v", tt.want, err)
		}
	}
}

// TestDrillGatesNeedFigures: a gate does not pass for want of what it is about.
func TestDrillGatesNeedFigures(t *testing.T) {
	r := drillReport{Modes: []drillMode{{Mode: "fresh", OK: 1, Sent: 1}}}
	if r.judge(&drillFlags{maxP99Ratio: 2}); r.Passed {
		t.Error("the ratio is not known, and passed")
	}
	r = drillReport{Modes: []drillMode{{Mode: "fresh", OK: 980, Sent: 980, Faults: map[string]int{"unsent": 20}}}}
	if r.judge(&drillFlags{}); r.Passed || !strings.Contains(r.Reasons[0], "20 of 1000 requests could not be sent") {
		t.Errorf("a fiftieth was not sent: %v", r.Reasons)
	}
	r = drillReport{Modes: []drillMode{{Mode: "fresh", OK: 990, Sent: 990, Faults: map[string]int{"unsent": 10}}}}
	if r.judge(&drillFlags{}); !r.Passed {
		t.Errorf("a hundredth was not sent: %v", r.Reasons)
	}
}

// TestDrillSecondSignal: a second signal ends the wait for answers that may never come.
func TestDrillSecondSignal(t *testing.T) {
	asked := make(chan struct{}, 1000)
	hang := make(chan struct{})
	s := startBroken(t, func(io.Writer) { asked <- struct{}{}; <-hang })
	defer close(hang)
	o := &drillFlags{
		url: "http://" + s.addr + "/page", contract: "off", rate: 100, duration: time.Hour, every: time.Minute, timeout: time.Hour,
		modes: []string{"fresh"}, instances: 1,
	}
	target, err := o.target()
	if err != nil {
		t.Fatal(err)
	}
	loads, _, err := o.loads(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	signals := make(chan os.Signal)
	d := &drillRun{flags: o, env: &env{stderr: io.Discard, signals: func() (<-chan os.Signal, func()) { return signals, func() {} }}}
	done := make(chan error, 1)
	go func() { done <- d.run(context.Background(), loads) }()
	<-asked
	signals <- unix.SIGINT
	signals <- unix.SIGUSR1
	signals <- unix.SIGTERM
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r := d.report(false)
	if r.Passed || !r.Interrupted || r.Sent == 0 || r.OK != 0 || r.Modes[0].Failures[drill.KindTimeout] != 0 {
		t.Errorf("%+v", r)
	}
}
