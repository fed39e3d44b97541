package supervisor

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// A program that could not be started is gone in the step that says why.
func TestReportSaysWhyNothingWasStarted(t *testing.T) {
	var log bytes.Buffer
	l := &loop{s: &Supervisor{}, log: slog.New(slog.NewTextHandler(&log, nil))}
	with := func(svc *Service) *State {
		return &State{Order: []string{"web"}, Services: map[string]*Service{"web": svc}}
	}
	l.report(
		with(&Service{Name: "web", Generations: []*Generation{{N: 4, Phase: PhaseStarting}}}),
		with(&Service{Name: "web", Failure: &Failure{Generation: 4, Reason: "operation not permitted"}}),
	)
	if got := log.String(); !strings.Contains(got, "level=WARN") ||
		!strings.Contains(got, `from=starting to=gone why="operation not permitted"`) {
		t.Errorf("logged: %s", got)
	}
}
