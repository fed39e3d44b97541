package kube

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// DefaultMargin is what is left of the grace for the way of the signal and of the exit.
const DefaultMargin = 2 * time.Second

// Options is what Check is told beside the objects.
type Options struct {
	// Default are figures for every workload that has none of its own.
	Default Figures
	// Handoverd are those of pods that run handoverd, nil for none. They go
	// before Default and after annotations.
	Handoverd *Figures
	// Margin must be left of each grace; DefaultMargin where zero is not meant.
	Margin time.Duration
	// Nodes is how many nodes a DaemonSet runs on, Replicas how many pods a
	// workload without spec.replicas has; 0 is one of each, and said to be
	// assumed.
	Nodes, Replicas int
}

// Report is what Check has found. Its lists are sorted by file, line and rule, and never nil.
type Report struct {
	// Objects were read, Checked of them were looked at.
	Objects int `json:"objects"`
	Checked int `json:"checked"`

	Problems []Problem `json:"problems"`
	Findings []Finding `json:"findings"`
	Notes    []Finding `json:"notes"`
	// Ignored are findings that an annotation switches off.
	Ignored   []Finding  `json:"ignored"`
	Workloads []Workload `json:"workloads"`
}

// Failed reports whether something is wrong, or could not be read.
func (r *Report) Failed() bool { return len(r.Findings) > 0 || len(r.Problems) > 0 }

// Workload is the time line of one workload.
type Workload struct {
	Place
	Stops   []Stop  `json:"stop"`
	Rollout Rollout `json:"rollout"`
}

// Stop is the stop of one container.
type Stop struct {
	Container    string  `json:"container"`
	GraceSeconds float64 `json:"grace_seconds"`
	NeedSeconds  float64 `json:"need_seconds"`
	// DrainKnown is whether the drain is a figure or what the others leave.
	DrainKnown bool    `json:"drain_known"`
	Phases     []Phase `json:"phases"`
}

// Phase is one part of a stop, in seconds from its begin.
type Phase struct {
	From float64 `json:"from_seconds"`
	To   float64 `json:"to_seconds"`
	Name string  `json:"name"`
	Note string  `json:"note,omitempty"`
}

// checker is one run of Check.
type checker struct {
	opt       *Options
	objects   []*Object
	workloads []*workload
	services  []*service
	balancers []*balancer
	report    *Report
	seen      map[findingKey]bool
}

type findingKey struct {
	rule  string
	place Place
}

// Check applies all rules to objects of any number of files, which may refer to one another. The
// objects may be used for one Check only.
func Check(objects []*Object, opt Options) *Report {
	ck := &checker{
		opt: &opt, objects: objects, seen: map[findingKey]bool{},
		report: &Report{
			Objects: len(objects), Problems: []Problem{}, Findings: []Finding{}, Notes: []Finding{}, Ignored: []Finding{}, Workloads: []Workload{},
		},
	}
	ck.read()
	for _, w := range ck.workloads {
		ck.checkStop(w)
		ck.report.Workloads = append(ck.report.Workloads, ck.timeLine(w))
	}
	for _, b := range ck.balancers {
		ck.checkBalancer(b)
	}
	problems := map[Problem]bool{}
	for _, o := range objects {
		for _, p := range o.problems {
			if !problems[p] {
				problems[p] = true
				ck.report.Problems = append(ck.report.Problems, p)
			}
		}
	}
	ck.report.sort()
	return ck.report
}

// read takes from the objects what the rules need, Services first: what they select decides what serves.
func (ck *checker) read() {
	for _, o := range ck.objects {
		if o.is("Service") {
			ck.services = append(ck.services, readService(o))
		}
	}
	for _, o := range ck.objects {
		switch {
		case isWorkload(o):
			w := readWorkload(o, ck.opt)
			w.serving(ck.services)
			ck.workloads = append(ck.workloads, w)
			ck.report.Checked++
		case o.is("Service") || o.is("Ingress"):
			ck.balancers = append(ck.balancers, readBalancers(o, ck.services)...)
			ck.report.Checked++
		case o.is("Namespace"):
			ck.report.Checked++
		}
	}
	for _, b := range ck.balancers {
		for _, w := range ck.behind(b) {
			w.balancers = append(w.balancers, b)
		}
	}
}

// find adds a finding, once for a place, where it is not switched off.
func (ck *checker) find(ignore map[string]bool, rule string, at value, reason, remedy string) {
	f := Finding{Rule: rule, Severity: severityOf(rule), Place: at.place(), Reason: reason, Remedy: remedy}
	key := findingKey{rule, f.Place}
	if ck.seen[key] {
		return
	}
	ck.seen[key] = true
	r := ck.report
	switch {
	case ignore[rule]:
		r.Ignored = append(r.Ignored, f)
	case f.Severity == Note:
		r.Notes = append(r.Notes, f)
	default:
		r.Findings = append(r.Findings, f)
	}
}

func (ck *checker) timeLine(w *workload) Workload {
	out := Workload{Place: w.place(), Stops: []Stop{}}
	for _, c := range w.mains() {
		b := w.budget(c, ck.opt.Margin)
		s := Stop{Container: c.name, GraceSeconds: w.grace.Seconds(), NeedSeconds: need(b).Seconds(), DrainKnown: w.figures.drain.known, Phases: []Phase{}}
		for _, l := range b.Lines() {
			note := l.Note
			switch {
			case l.Name == "pre-stop hook":
				note = c.hook.what + ": " + note
			case l.Name == "lame duck":
				note += " (" + w.figures.lameDuck.from + ")"
			case l.Name == "drain" && w.figures.drain.known:
				note += " (" + w.figures.drain.from + ")"
			case l.Name == "drain":
				note += "; what is left, since its time is not known"
			}
			if l.To > w.grace {
				note = strings.TrimPrefix(note+"; cut off at the end of the grace", "; ")
			}
			s.Phases = append(s.Phases, Phase{l.From.Seconds(), l.To.Seconds(), l.Name, note})
		}
		s.Phases = append(s.Phases, Phase{w.grace.Seconds(), w.grace.Seconds(), "SIGKILL", graceKey})
		out.Stops = append(out.Stops, s)
	}
	out.Rollout = ck.rollout(w)
	return out
}

func (r *Report) sort() {
	byPlace := func(a, b Place) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Key, b.Key))
	}
	for _, list := range [][]Finding{r.Findings, r.Notes, r.Ignored} {
		slices.SortStableFunc(list, func(a, b Finding) int { return cmp.Or(byPlace(a.Place, b.Place), cmp.Compare(a.Rule, b.Rule)) })
	}
	slices.SortStableFunc(r.Problems, func(a, b Problem) int { return byPlace(a.Place, b.Place) })
}
