package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/handoverd/handover/supervisor"
)

// How often a reload that waits says what it waits for and how long: soon, when
// that changes, and now and then.
const (
	firstWaitLine = time.Second
	nextWaitLine  = 10 * time.Second
)

// progress says on stderr what a reload is doing.
type progress struct {
	to       io.Writer
	client   *client
	services []string // nil: all

	mu sync.Mutex // lines are whole
}

func (p *progress) wants(service string) bool {
	return service == "" || len(p.services) == 0 || slices.Contains(p.services, service)
}

func (p *progress) event(e *supervisor.Event) {
	if e.Kind == "lost" || !p.wants(e.Service) {
		return
	}
	p.line(eventText(e))
}

func (p *progress) line(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = fmt.Fprintln(p.to, text) // nobody reads: the outcome is what counts
}

// begin starts to tell of waits; the function returned ends it and waits
// until it has ended.
func (p *progress) begin(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { p.waits(ctx) })
	return func() { cancel(); done.Wait() }
}

func (p *progress) waits(ctx context.Context) {
	began := time.Now()
	said, saidAt := "", time.Time{}
	t := time.NewTicker(firstWaitLine)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		st, err := p.client.status(ctx)
		if err != nil {
			continue // the reload's own connection tells
		}
		lines := p.waiting(st, time.Since(began))
		// Only times pass: that is no news.
		what := strings.Map(dropDigit, strings.Join(lines, "\n"))
		if what == said && time.Since(saidAt) < nextWaitLine {
			continue
		}
		said, saidAt = what, time.Now()
		for _, line := range lines {
			p.line(line)
		}
	}
}

// dropDigit is for strings.Map.
func dropDigit(r rune) rune {
	if r >= '0' && r <= '9' || r == '.' {
		return -1
	}
	return r
}

// coming says what a generation that is not committed waits for, where there is
// more to say than that it starts.
func coming(g *supervisor.GenerationStatus) string {
	switch {
	case g.Phase == supervisor.PhaseBaking && g.Probe != "":
		return fmt.Sprintf("bakes, commit in %s; its probe: %s", shortSeconds(g.Ends), g.Probe)
	case g.Phase == supervisor.PhaseBaking:
		return fmt.Sprintf("bakes, commit in %s", shortSeconds(g.Ends))
	case g.Phase == supervisor.PhaseStarting && g.Gate != "" && g.Gate != "open":
		return "waits for the gate: " + g.Gate
	case g.Phase == supervisor.PhaseStarting && g.Probe != "":
		return "not ready, its probe: " + g.Probe
	}
	return ""
}

// waiting says what the reload waits for.
func (p *progress) waiting(st *supervisor.Status, since time.Duration) []string {
	var lines []string
	for _, s := range st.Services {
		if s.Waiting != "" && p.wants(s.Name) {
			lines = append(lines, fmt.Sprintf("%s: waiting for %s: %s", s.Name, shortSeconds(s.WaitingFor), s.Waiting))
		}
		for i := range s.Generations {
			if text := coming(&s.Generations[i]); text != "" && p.wants(s.Name) {
				lines = append(lines, generationName(s.Name, s.Generations[i].Generation)+": "+text)
			}
		}
	}
	if len(lines) > 0 {
		return lines
	}
	for _, j := range st.Reloads {
		for _, r := range j.Results {
			if r.Release == supervisor.ReleasePending && p.wants(r.Service) {
				lines = append(lines, fmt.Sprintf("%s: serving, waiting for %s to let go of the sockets",
					generationName(r.Service, r.Generation), generationName(r.Service, r.Old)))
			}
		}
	}
	if len(lines) > 0 {
		return lines
	}
	for _, j := range st.Reloads {
		if j.Stage == supervisor.JobRemembered {
			what := "another reload is under way"
			if st.Upgrade != nil && st.Upgrade.Stage != "" {
				what = "handoverd itself is being upgraded"
			}
			return []string{fmt.Sprintf("waiting for %s: %s", shortSeconds(since.Seconds()), what)}
		}
	}
	return []string{fmt.Sprintf("under way for %s", shortSeconds(since.Seconds()))}
}
