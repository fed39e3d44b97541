package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// annotationPrefix begins the annotations that tell this package what a manifest
// cannot. A prefix is a DNS subdomain (Kubernetes docs, Annotations); one label is one.
const annotationPrefix = "handoverd/"

// Figures are the durations that a manifest cannot tell. Nil is unknown.
type Figures struct {
	// Hook is how long a preStop hook runs whose manifest does not say it.
	Hook *time.Duration
	// LameDuck is how long the program goes on accepting after SIGTERM,
	// while its readiness fails.
	LameDuck *time.Duration
	// Drain is how long what was accepted may take after that.
	Drain *time.Duration
	// KillGrace is kept for what does not end with the drain.
	KillGrace *time.Duration
	// Startup is from the start of a pod to ready.
	Startup *time.Duration
	// From says where they are from, for people: "flags".
	From string
}

// figure is one of them, with where it is from.
type figure struct {
	d     time.Duration
	known bool
	from  string
}

// figures are those of one workload.
type figures struct {
	hook, lameDuck, drain, killGrace, startup figure
}

// fields names every figure as its annotation does.
func (f *figures) fields() map[string]*figure {
	return map[string]*figure{
		"hook": &f.hook, "lame-duck": &f.lameDuck, "drain": &f.drain, "kill-grace": &f.killGrace, "startup": &f.startup,
	}
}

// fill sets what is still unknown.
func (f *figures) fill(from Figures) {
	given := map[string]*time.Duration{
		"hook": from.Hook, "lame-duck": from.LameDuck, "drain": from.Drain, "kill-grace": from.KillGrace, "startup": from.Startup,
	}
	for name, field := range f.fields() {
		if d := given[name]; d != nil && !field.known {
			*field = figure{*d, true, from.From}
		}
	}
}

// notes are the annotations of this program on an object and its pod template.
type notes struct {
	figures figures
	// ignore are the rules that are not to be applied.
	ignore map[string]bool
	// runs is "true" or "false" where a pod says whether it runs handoverd.
	runs string
}

// readNotes reads the annotations of the metadata given, the first of which wins.
func readNotes(metadata ...value) notes {
	n := notes{ignore: map[string]bool{}}
	for _, m := range metadata {
		pairs := m.get("annotations").pairs()
		for _, key := range slices.Sorted(maps.Keys(pairs)) {
			if name, ours := strings.CutPrefix(key, annotationPrefix); ours {
				n.read(name, pairs[key])
			}
		}
	}
	return n
}

func (n *notes) read(name string, v value) {
	switch name {
	case "ignore":
		for rule := range strings.SplitSeq(v.text(), ",") {
			if rule = strings.TrimSpace(rule); !slices.ContainsFunc(Rules, func(r Rule) bool { return r.Name == rule }) {
				v.bad("no such rule: %q", rule)
				continue
			}
			n.ignore[rule] = true
		}
	case "runs":
		if v.text() != "true" && v.text() != "false" {
			v.bad(`must be "true" or "false", not %s`, v.shown())
		} else if n.runs == "" {
			n.runs = v.text()
		}
	default:
		fields := n.figures.fields()
		field := fields[name]
		if field == nil {
			v.bad("no such annotation; there are %s", strings.Join(slices.Sorted(maps.Keys(fields)), ", ")+", ignore, runs")
			return
		}
		d, err := time.ParseDuration(v.text())
		if err != nil || d < 0 || d > maxSeconds*time.Second {
			v.bad(`must be a duration like "20s", not %s`, v.shown())
			return
		}
		if !field.known {
			*field = figure{d, true, fmt.Sprintf("annotation, line %d", v.line)}
		}
	}
}
