package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/handoverd/handover/internal/kube"
)

// print writes the report for people: what could not be read to stderr, then the
// findings, the notes, and for each workload its stop and its rollout.
func (r *kubeReport) print(stdout, stderr io.Writer) error {
	for _, p := range r.Problems {
		fmt.Fprintln(stderr, p.Error())
	}
	out := &errWriter{w: stdout}
	for _, group := range []struct {
		word     string
		findings []kube.Finding
	}{{"", r.Findings}, {"note: ", r.Notes}, {"ignored: ", r.Ignored}} {
		for _, f := range group.findings {
			fmt.Fprintf(out, "%s: %s%s\n    %s\n    remedy: %s\n", f.Place, group.word, f.Rule, f.Reason, f.Remedy)
		}
	}
	for i := range r.Workloads {
		printWorkload(out, &r.Workloads[i])
	}
	r.printRollouts(out)
	fmt.Fprintf(out, "\n%s, %d looked at: %s, %s", plural(r.Objects, "object"), r.Checked, plural(len(r.Findings), "finding"), plural(len(r.Notes), "note"))
	if n := len(r.Ignored); n > 0 {
		fmt.Fprintf(out, ", %d ignored", n)
	}
	if n := len(r.Problems); n > 0 {
		fmt.Fprintf(out, "; %s: what was not read was not checked", plural(n, "error"))
	}
	fmt.Fprintln(out)
	return out.err
}

func printWorkload(out io.Writer, w *kube.Workload) {
	for _, s := range w.Stops {
		drain := ""
		if !s.DrainKnown {
			drain = " and what the drain takes"
		}
		fmt.Fprintf(out, "\n%s: stop of container %s, which needs %s%s of %s\n", w.Object, s.Container, exact(s.NeedSeconds), drain, exact(s.GraceSeconds))
		phases := make([]phase, 0, len(s.Phases))
		for _, p := range s.Phases {
			phases = append(phases, phase(p))
		}
		printPhases(out, "  ", phases)
	}
}

func (r *kubeReport) printRollouts(out io.Writer) {
	if len(r.Workloads) == 0 {
		return
	}
	fmt.Fprintf(out, "\nRollout\n")
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  workload\tpods\tat once\tavailable after\tstop\ttotal\tcomputed as")
	for _, w := range r.Workloads {
		o, pods := w.Rollout, fmt.Sprint(w.Rollout.Pods)
		if o.Assumed {
			pods += " (assumed)"
		}
		total := o.Total.String()
		if o.Strategy == "OnDelete" {
			total = "-"
		}
		fmt.Fprintf(t, "  %s\t%s\t%d\t%s\t%s\t%s\t%s\n", w.Object, pods, o.AtOnce, o.Available, o.Stop, total, o.Formula)
		fmt.Fprintf(t, "\t\t\t%s\t%s\t\t%s\n", o.AvailableParts, o.StopParts, o.Strategy)
	}
	_ = t.Flush() // an error stays in the errWriter
}

func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
