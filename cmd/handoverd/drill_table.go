package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/handoverd/handover/internal/drill"
)

// samplesShown is how many failures of a mode are shown in full.
const samplesShown = 3

// write prints the report for people.
func (r *drillReport) write(w io.Writer) error {
	var b strings.Builder
	checked := "status and length of the answers checked"
	if r.Contract {
		checked = "each byte of the answers checked"
	}
	fmt.Fprintf(&b, "%s: %.1f s, %d requests, %s\n", r.URL, r.Seconds, r.Sent, checked)
	r.writeTriggers(&b)
	b.WriteByte('\n')
	r.writeCounts(&b)
	b.WriteByte('\n')
	r.writeLatencies(&b)
	r.writeDetails(&b)
	r.writeLost(&b)
	r.writeSizing(&b)
	for _, reason := range r.Reasons {
		fmt.Fprintf(&b, "failed: %s\n", reason)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *drillReport) writeTriggers(b *strings.Builder) {
	if r.Trigger == "" {
		b.WriteString("no trigger: nothing was reloaded\n")
		return
	}
	fmt.Fprintf(b, "%s: %d reloads", r.Trigger, r.Reloads)
	if r.ReloadMax > 0 {
		fmt.Fprintf(b, ", p50 %.3f s, max %.3f s", r.ReloadP50, r.ReloadMax)
	}
	if r.Seed != 0 || r.Kills > 0 {
		fmt.Fprintf(b, "; %d kills (--seed %d)", r.Kills, r.Seed)
	}
	if r.SupervisorKills > 0 {
		fmt.Fprintf(b, "; %d kills of handoverd, in %d of which what served went on", r.SupervisorKills, r.Adopted)
	}
	if r.FailedTriggers > 0 {
		fmt.Fprintf(b, "; %d FAILED", r.FailedTriggers)
	}
	b.WriteByte('\n')
	switch a := r.LastArrival; {
	case a != nil:
		fmt.Fprintf(b, "last request to an older generation, sent after the reload's begin: p99 %.3f s, max %.3f s, known of %d of %d reloads\n",
			a.P99, a.Max, a.Reloads, r.Reloads)
	case r.Reloads > 0:
		b.WriteString("last request to an older generation: unknown (no answer on a new connection tells its generation, or none changed)\n")
	}
	for _, t := range r.Triggers {
		if t.Error != "" {
			fmt.Fprintf(b, "  %s at %.1f s failed: %s\n", t.Kind, t.At, t.Error)
		}
	}
}

// table aligns the columns that write fills.
func table(b *strings.Builder, write func(w io.Writer)) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	write(w)
	_ = w.Flush() // a Builder takes everything
}

func (r *drillReport) writeCounts(b *strings.Builder) {
	table(b, func(w io.Writer) {
		fmt.Fprint(w, "mode\trate/s\tsent\tok\tfailed\tin windows\toutside\tper reload\t")
		if r.Kills > 0 {
			fmt.Fprint(w, "per kill\t")
		}
		if r.SupervisorKills > 0 {
			fmt.Fprint(w, "per kill of handoverd\t")
		}
		fmt.Fprintln(w)
		for i := range r.Modes {
			m := &r.Modes[i]
			fmt.Fprintf(w, "%s\t%.0f\t%d\t%d\t%d\t%d\t%d\t%s\t",
				m.Mode, m.Rate, m.Sent, m.OK, m.Failed, m.InsideFailed, m.OutsideFailed, each(m.InReloads, r.Reloads))
			if r.Kills > 0 {
				fmt.Fprintf(w, "%s\t", each(m.InKills, r.Kills))
			}
			if r.SupervisorKills > 0 {
				fmt.Fprintf(w, "%s\t", each(m.InSupervisor, r.SupervisorKills))
			}
			fmt.Fprintln(w)
		}
	})
}

// each is what one trigger of n lost; a 0 comes with its upper bound.
func each(lost, n int) string {
	switch {
	case n == 0:
		return "-"
	case lost == 0:
		return fmt.Sprintf("0 (< %.2g)", 3/float64(n))
	}
	return fmt.Sprintf("%.2f", float64(lost)/float64(n))
}

func (r *drillReport) writeLatencies(b *strings.Builder) {
	if r.OK == 0 {
		return
	}
	table(b, func(w io.Writer) {
		fmt.Fprintln(w, "latency, ms\t\tp50\tp99\tp99.9\tmax\t")
		for i := range r.Modes {
			m := &r.Modes[i]
			line := func(where string, l drillLatency) {
				if l.Count > 0 {
					fmt.Fprintf(w, "%s\t%s\t%.2f\t%.2f\t%.2f\t%.2f\t\n", m.Mode, where, l.P50, l.P99, l.P999, l.Max)
				}
			}
			line("steady", m.Outside)
			line("in windows", m.Inside)
			if m.P99Ratio > 0 {
				fmt.Fprintf(w, "%s\tratio\t\t%.2f\t\t\t\n", m.Mode, m.P99Ratio)
			}
		}
	})
}

// writeDetails tells of failures by kind, and of the generator's own faults.
func (r *drillReport) writeDetails(b *strings.Builder) {
	for i := range r.Modes {
		m := &r.Modes[i]
		for _, k := range drill.Kinds() {
			if n := m.Failures[k]; n > 0 {
				fmt.Fprintf(b, "%s: %s %d, %d in windows, %d on reused connections\n", m.Mode, k, n, m.InsideFailures[k], m.ReusedFailures[k])
			}
		}
		if m.RefusedStreams > 0 {
			fmt.Fprintf(b, "%s: %d streams refused unprocessed, and sent again on a new connection (not lost)\n", m.Mode, m.RefusedStreams)
		}
		for _, code := range slices.Sorted(maps.Keys(m.Closes)) {
			note := ""
			if code == 1006 {
				note = " (no close frame)"
			}
			fmt.Fprintf(b, "%s: %d connections ended by the server with code %d%s\n", m.Mode, m.Closes[code], code, note)
		}
		for _, s := range m.Samples[:min(len(m.Samples), samplesShown)] {
			fmt.Fprintf(b, "  %s\n", s)
		}
		for _, name := range slices.Sorted(maps.Keys(m.Faults)) {
			fmt.Fprintf(b, "%s: the generator failed to send %d: %s (not counted as lost)\n", m.Mode, m.Faults[name], name)
		}
		if m.RateReached < 0.99 {
			fmt.Fprintf(b, "%s: only %.1f %% of the rate asked for was sent: the figures are those of that rate\n", m.Mode, 100*m.RateReached)
		}
	}
}

func (r *drillReport) writeLost(b *strings.Builder) {
	l := r.Lost
	if l == nil {
		return
	}
	fmt.Fprintf(b, "\nlost in %d reloads: %d", r.Reloads, l.InReloads)
	if l.InReloads == 0 {
		fmt.Fprintf(b, ", at most 3/%d = %.2g a reload (95 %% confidence)", r.Reloads, l.AtMost)
	} else {
		fmt.Fprintf(b, ", %.2f a reload", l.PerReload)
	}
	if r.Kills > 0 {
		fmt.Fprintf(b, "; in %d kills: %d", r.Kills, l.InKills)
	}
	if r.SupervisorKills > 0 {
		fmt.Fprintf(b, "; in %d kills of handoverd: %d", r.SupervisorKills, l.InSupervisor)
	}
	fmt.Fprintf(b, "; outside windows: %d\n", l.Outside)
	if l.Deploys > 0 {
		fmt.Fprintf(b, "%v reloads a week of %d instances: %.4g requests lost a week", l.Deploys, l.Instances, l.PerWeek)
		if l.InReloads == 0 {
			fmt.Fprintf(b, ", at most %.3g", l.PerWeekAtMost)
		}
		b.WriteByte('\n')
	}
}

func (r *drillReport) writeSizing(b *strings.Builder) {
	s := &r.Sizing
	note := ""
	if s.CheckInterval == 0 {
		note = "  (lame_duck: give --check-interval, if a balancer stands before it)\n"
	}
	fmt.Fprintf(b, "sizing from p99.9 %.1f ms and a longest answer of %.1f ms:\n  lame_duck %gs + drain %gs + grace %gs = deadline %gs\n%s",
		s.P999, s.Longest, s.LameDuck, s.Drain, s.Grace, s.Deadline, note)
}
