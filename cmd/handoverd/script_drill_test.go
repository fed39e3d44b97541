//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/handoverd/handover/internal/drill"
)

type flakyKey struct{}

// cmdFlaky starts a server each Nth answer of which is 503. It ends with the script.
func cmdFlaky(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: flaky VARIABLE N")
	}
	every, err := strconv.Atoi(args[1])
	ts.Check(err)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	ts.Check(err)
	answers, failed := new(atomic.Int64), flakyCount(ts)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if answers.Add(1)%int64(every) == 0 {
			failed.Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte("page\n")) // the client counts
	})}
	done := make(chan struct{})
	go func() { // the deferred function waits for it
		defer close(done)
		_ = server.Serve(l) // ends by Close
	}()
	ts.Defer(func() { _ = server.Close(); <-done })
	ts.Setenv(args[0], l.Addr().String())
}

// flakyCount is how many answers of the script's flaky server were 503.
func flakyCount(ts *testscript.TestScript) *atomic.Int64 { return ts.Value(flakyKey{}).(*atomic.Int64) }

func readReport(ts *testscript.TestScript) (r drillReport, fields map[string]any) {
	text := []byte(ts.ReadFile("stdout"))
	ts.Check(json.Unmarshal(text, &r))
	ts.Check(json.Unmarshal(text, &fields))
	return r, fields
}

// cmdReport compares fields of the drill's report, which is stdout.
func cmdReport(ts *testscript.TestScript, neg bool, args []string) {
	r, fields := readReport(ts)
	for _, a := range args {
		name, want, _ := strings.Cut(a, "=")
		if got := fmt.Sprint(fields[name]); got != want {
			ts.Fatalf("%s is %s, want %s:\n%s", name, got, want, ts.ReadFile("stdout"))
		}
	}
	sent, ok, failed := 0, 0, 0
	for _, m := range r.Modes {
		sent, ok, failed = sent+m.Sent, ok+m.OK, failed+m.Failed
		if m.Sent != m.OK+m.Failed || m.Failed != m.InsideFailed+m.OutsideFailed || m.Latency.Count != int64(m.OK) {
			ts.Fatalf("%s does not add up:\n%s", m.Mode, ts.ReadFile("stdout"))
		}
	}
	if sent == 0 || sent != r.Sent || ok != r.OK || failed != r.Failed || len(r.Triggers) != r.Reloads+r.Kills+r.SupervisorKills+r.FailedTriggers {
		ts.Fatalf("the report does not add up:\n%s", ts.ReadFile("stdout"))
	}
	for _, t := range r.Triggers {
		if t.Error == "" && (t.Reload <= 0 || t.Seconds < t.Reload || t.Generation < 2 && t.Kind != triggerKillSupervisor) {
			ts.Fatalf("trigger %+v", t)
		}
	}
}

// cmdEach wants these modes in the report, each with answers.
func cmdEach(ts *testscript.TestScript, neg bool, args []string) {
	r, _ := readReport(ts)
	if len(r.Modes) != len(args) {
		ts.Fatalf("%d modes, want %v:\n%s", len(r.Modes), args, ts.ReadFile("stdout"))
	}
	for i := range r.Modes {
		if m := &r.Modes[i]; string(m.Mode) != args[i] || m.OK == 0 {
			ts.Fatalf("mode %s with %d answers, want %s:\n%s", m.Mode, m.OK, args[i], ts.ReadFile("stdout"))
		}
	}
}

// cmdFailures wants as many failures of that kind as the flaky server has made, and no others.
func cmdFailures(ts *testscript.TestScript, neg bool, args []string) {
	r, _ := readReport(ts)
	want := int(flakyCount(ts).Load())
	if got := r.Modes[0].Failures[drill.Kind(args[0])]; got != want || r.Failed != want || want == 0 {
		ts.Fatalf("%d %s, %d failures, want %d:\n%s", got, args[0], r.Failed, want, ts.ReadFile("stdout"))
	}
}
