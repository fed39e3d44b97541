package kube

import (
	"fmt"
	"time"
)

// Rollout is how long the replacement of every pod of a workload takes, if each pod takes as long as the manifest
// lets it. Pulls of images and scheduling are not in it.
type Rollout struct {
	// Strategy is "RollingUpdate", "Recreate" or "OnDelete".
	Strategy string `json:"strategy"`
	// Pods are replicas, for a DaemonSet nodes. Assumed is set where the manifest does not say it.
	Pods    int  `json:"pods"`
	Assumed bool `json:"pods_assumed,omitempty"`
	// AtOnce pods are replaced at a time, in Waves.
	AtOnce int `json:"at_once"`
	Waves  int `json:"waves"`
	// Available is from a pod's start until it counts as available, Stop from its end's begin until it is gone.
	Available time.Duration `json:"-"`
	Stop      time.Duration `json:"-"`
	Total     time.Duration `json:"-"`

	AvailableSeconds float64 `json:"available_seconds"`
	StopSeconds      float64 `json:"stop_seconds"`
	TotalSeconds     float64 `json:"total_seconds"`

	// Formula is how Total was computed.
	Formula string `json:"formula"`
	// AvailableParts and StopParts say what the times are made of.
	AvailableParts string `json:"available_parts"`
	StopParts      string `json:"stop_parts"`
}

// rollout computes the time for one workload. The rules are those of the controllers (Kubernetes docs:
// Deployments, Rolling Update; StatefulSets, Update Strategies; DaemonSet, Rolling Update).
func (ck *checker) rollout(w *workload) Rollout {
	r := Rollout{Strategy: "RollingUpdate"}
	r.Available, r.AvailableParts = ck.available(w)
	r.Stop, r.StopParts = ck.stopTime(w)
	spec := w.root.get("spec")
	switch w.Kind {
	case "Deployment":
		ck.deployment(w, &r, spec)
	case "StatefulSet":
		ck.statefulSet(&r, spec)
	case "DaemonSet":
		ck.daemonSet(&r, spec)
	}
	r.AvailableSeconds, r.StopSeconds, r.TotalSeconds = r.Available.Seconds(), r.Stop.Seconds(), r.Total.Seconds()
	return r
}

// replicas reads spec.replicas. Where it is missing, as under an autoscaler, it is what the caller assumes.
func (ck *checker) replicas(r *Rollout, spec value) {
	v := spec.get("replicas")
	r.Pods, r.Assumed = v.whole(max(1, ck.opt.Replicas), maxSeconds), !v.exists()
}

func (ck *checker) strategy(r *Rollout, v value) value {
	if t := v.get("type").text(); t != "" {
		r.Strategy = t
	}
	return v.get("rollingUpdate")
}

// deployment: pods above the number wanted are created at once (maxSurge, rounded up), and some may be missing
// (maxUnavailable, rounded down), 25 % each by default. A pod that terminates counts as neither, so only the last
// ones to stop are waited for.
func (ck *checker) deployment(w *workload, r *Rollout, spec value) {
	ck.replicas(r, spec)
	rolling := ck.strategy(r, spec.get("strategy"))
	if r.Strategy == "Recreate" {
		r.AtOnce, r.Waves = r.Pods, 1
		r.Total = r.Stop + r.Available
		r.Formula = fmt.Sprintf("all stop %s, then all start %s: nobody serves meanwhile", r.Stop, r.Available)
	} else {
		surge := rolling.get("maxSurge").share("25%", r.Pods, true)
		missing := rolling.get("maxUnavailable").share("25%", r.Pods, false)
		if surge == 0 && missing == 0 {
			missing = 1 // the controller's own rule, so that a rollout can move
		}
		r.inWaves(surge + missing)
		r.Total = times(r.Available, r.Waves) + r.Stop
		r.Formula = fmt.Sprintf("%s = %d × %s available + %s stop of the last", r.count(fmt.Sprintf("(surge %d + unavailable %d)", surge, missing)), r.Waves, r.Available, r.Stop)
	}
	deadline := spec.get("progressDeadlineSeconds").seconds(600)
	if r.Available > deadline {
		ck.find(w.ignore, "progress-deadline", spec.get("progressDeadlineSeconds"), fmt.Sprintf(
			"a new pod is available after %s (%s) and the Deployment is reported as failed after %s without progress", r.Available, r.AvailableParts, deadline),
			"progressDeadlineSeconds: more than "+inSeconds(r.Available))
	}
}

// statefulSet: one pod after another, from the highest ordinal, also with podManagementPolicy Parallel, which is about
// scaling only; each is gone before its successor starts, which has its name. maxUnavailable is behind a feature gate.
func (ck *checker) statefulSet(r *Rollout, spec value) {
	ck.replicas(r, spec)
	rolling := ck.strategy(r, spec.get("updateStrategy"))
	if r.onDelete() {
		return
	}
	r.Pods = max(0, r.Pods-rolling.get("partition").whole(0, maxSeconds))
	r.inWaves(rolling.get("maxUnavailable").share("1", r.Pods, true))
	r.Total = times(r.Stop+r.Available, r.Waves)
	r.Formula = fmt.Sprintf("%s = %d × (%s stop + %s available)", r.count(fmt.Sprint(r.AtOnce)), r.Waves, r.Stop, r.Available)
}

// daemonSet: one node after another (maxUnavailable 1), old pod first; with maxSurge the new one first.
func (ck *checker) daemonSet(r *Rollout, spec value) {
	r.Pods, r.Assumed = max(1, ck.opt.Nodes), ck.opt.Nodes == 0
	rolling := ck.strategy(r, spec.get("updateStrategy"))
	if r.onDelete() {
		return
	}
	if surge := rolling.get("maxSurge").share("0", r.Pods, true); surge > 0 {
		r.inWaves(surge)
		r.Total = times(r.Available, r.Waves) + r.Stop
		r.Formula = fmt.Sprintf("%s = %d × %s available + %s stop of the last", r.count(fmt.Sprintf("surge %d", surge)), r.Waves, r.Available, r.Stop)
		return
	}
	r.inWaves(rolling.get("maxUnavailable").share("1", r.Pods, true))
	r.Total = times(r.Stop+r.Available, r.Waves)
	r.Formula = fmt.Sprintf("%s = %d × (%s stop + %s available)", r.count(fmt.Sprint(r.AtOnce)), r.Waves, r.Stop, r.Available)
}

// onDelete is for the strategy that replaces no pod by itself.
func (r *Rollout) onDelete() bool {
	if r.Strategy == "OnDelete" {
		r.Formula = "pods are replaced when somebody deletes them"
	}
	return r.Strategy == "OnDelete"
}

func (r *Rollout) inWaves(atOnce int) {
	r.AtOnce = max(1, min(atOnce, r.Pods))
	r.Waves = (r.Pods + r.AtOnce - 1) / r.AtOnce
}

func (r *Rollout) count(atOnce string) string { return fmt.Sprintf("%d pods / %s", r.Pods, atOnce) }

// available is the time from a pod's start until its controller counts it: ready by its probes, by the balancer where
// a readiness gate waits for that, and for minReadySeconds.
func (ck *checker) available(w *workload) (time.Duration, string) {
	ready, parts := w.figures.startup.d, "startup "+w.figures.startup.d.String()
	if !w.figures.startup.known {
		for _, c := range w.containers {
			ready = max(ready, c.firstReady())
		}
		parts = "probes " + ready.String()
	}
	var gate time.Duration
	for _, b := range w.balancers {
		if b.byIP() && ck.gatedPods(b) {
			gate = max(gate, b.healthyAfter())
		}
	}
	if gate > 0 {
		parts += " + healthy for the balancer " + gate.String()
	}
	settled := w.root.get("spec", "minReadySeconds").seconds(0)
	if settled > 0 {
		parts += " + minReadySeconds " + settled.String()
	}
	return ready + gate + settled, parts
}

// firstReady is when the probes can have succeeded at the latest, if the program is up at once: each probe is a period apart.
func (c *container) firstReady() time.Duration {
	var at time.Duration
	if c.startup.exists {
		at = c.startup.initialDelay + c.startup.period
	}
	if c.readiness.exists {
		at = max(at, c.readiness.initialDelay) + c.readiness.period
	}
	return at
}

// stopTime is how long a pod takes to go: what is needed where it is known, else the grace.
func (ck *checker) stopTime(w *workload) (time.Duration, string) {
	var stop time.Duration
	parts := "at once"
	for _, c := range w.mains() {
		if !w.figures.drain.known || c.hook.exists && !c.hook.known {
			return w.grace, "at most the grace " + w.grace.String()
		}
		if b := w.budget(c, 0); need(b) > stop {
			stop, parts = need(b), budgetParts(b)
		}
	}
	if stop > w.grace {
		return w.grace, "cut off by the grace " + w.grace.String()
	}
	return stop, parts
}
