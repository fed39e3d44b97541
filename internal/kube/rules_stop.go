package kube

import (
	"fmt"
	"strings"
	"time"

	"github.com/handoverd/handover/drain"
)

const (
	// farAbove is how much longer than the need a grace is before it is a
	// finding, if it is also twice as long.
	farAbove = time.Minute
	graceKey = "terminationGracePeriodSeconds"
)

// mains are the containers whose stop counts: those that serve, and all where none does.
func (w *workload) mains() []*container {
	var list []*container
	for _, c := range w.containers {
		if c.serves {
			list = append(list, c)
		}
	}
	if len(list) == 0 {
		return w.containers
	}
	return list
}

// budget is the stop of one container. Its hook counts against the grace.
func (w *workload) budget(c *container, margin time.Duration) drain.Budget {
	b := drain.Budget{
		Key: graceKey, Limit: w.grace, Hook: c.hook.time, LameDuck: w.lameDuck(c),
		Drain: w.figures.drain.d, KillGrace: w.figures.killGrace.d, Margin: margin,
	}
	if c.hook.lameDuck && w.byDeadline {
		b.Drain += w.figures.lameDuck.d // the deadline counts from SIGTERM, after the hook
	}
	return b
}

// need is what a budget's parts take together.
func need(b drain.Budget) time.Duration {
	return b.Hook + b.LameDuck + b.Drain + b.KillGrace + b.Margin
}

// checkStop applies the rules for one workload's stop.
func (ck *checker) checkStop(w *workload) {
	for _, c := range w.containers {
		if c.hook.known && c.hook.time >= w.grace {
			ck.find(w.ignore, "hook-takes-grace", c.hookAt, fmt.Sprintf(
				"the %s runs for %s and counts against the grace of %s: the program of container %s gets no time for its drain, only the %s "+
					"that the kubelet adds once for a hook that is late, then SIGKILL",
				c.hook.what, c.hook.time, w.grace, c.name, drain.PlatformExtension),
				fmt.Sprintf("a shorter hook, or %s of at least hook + drain: more than %s", graceKey, inSeconds(c.hook.time+ck.opt.Margin)))
		}
	}
	for _, c := range w.mains() {
		if c.serves {
			ck.checkWait(w, c)
			ck.checkProbe(w, c)
		}
		ck.checkGrace(w, c)
		ck.noteUnknown(w, c)
	}
	if w.graceAt.exists() && w.grace > defaultGrace*time.Second {
		ck.find(w.ignore, "eviction-caps-grace", w.graceAt, fmt.Sprintf(
			"a grace of %s is not given by everything that ends a pod: node pressure gives at most --eviction-max-pod-grace-period of the "+
				"kubelet (soft eviction; 0 s by default) or nothing (hard), a node's shutdown its shutdownGracePeriod, the cluster autoscaler "+
				"10 minutes by default, and spot capacity ends 2 minutes after its notice, or sooner", w.grace),
			"set these in the cluster where the whole grace is needed, and expect work to be cut off: it must be safe to do again")
	}
}

// checkWait is about the begin of the stop: endpoints go away while SIGTERM is on its way, and balancers
// go on sending until they have noticed (Kubernetes docs, Termination of Pods).
func (ck *checker) checkWait(w *workload, c *container) {
	if w.waits(c) {
		return
	}
	hook := "no preStop hook"
	if c.hook.exists {
		hook = "a preStop hook that takes no time (" + c.hook.what + ")" // as handoverd lame-duck, where for = "0s"
	}
	ck.find(w.ignore, "no-lame-duck", c.hookAt, fmt.Sprintf(
		"container %s has %s, and no lame duck is known of its program: SIGTERM comes at the moment in which the pod begins to leave "+
			"its EndpointSlices, and requests that proxies and balancers still send are refused", c.name, hook),
		`lifecycle.preStop: {sleep: {seconds: 5}} (Kubernetes 1.30; an exec of "sleep 5" before), or a program that serves on after SIGTERM: `+
			`handoverd with lame_duck = { for = "5s" }; for another say so, annotation handoverd/lame-duck`)
	if w.raised() && w.grace > need(w.budget(c, ck.opt.Margin)) {
		ck.find(w.ignore, "grace-for-start-gap", w.graceAt, fmt.Sprintf(
			"the grace was raised to %s, but what is lost here is lost at the begin of the stop, in the first seconds after SIGTERM: more time at the "+
				"end changes nothing", w.grace),
			"a preStop hook or a lame duck at the begin, and a grace as long as hook, lame duck and drain together")
	}
}

// raised reports whether somebody asked for more than the default grace.
func (w *workload) raised() bool { return w.graceAt.exists() && w.grace > defaultGrace*time.Second }

func (ck *checker) checkProbe(w *workload, c *container) {
	if !c.readiness.exists {
		ck.find(w.ignore, "no-readiness-probe", c.readiness.at, fmt.Sprintf(
			"container %s counts as ready as soon as it runs: in a rollout it is sent requests before it listens, and old pods leave too early", c.name),
			"a readinessProbe; under handoverd httpGet /ready on the health address")
		return
	}
	wait := w.wait(c)
	if !w.waits(c) || c.hook.exists && !c.hook.known || c.readiness.noticed() <= wait {
		return
	}
	ck.find(w.ignore, "probe-slower-than-wait", c.readiness.at, fmt.Sprintf(
		"that container %s is not ready any more is seen after %s × %d = %s, and it accepts for only %s (%s): who goes by the probe sends requests to a closed port",
		c.name, c.readiness.period, c.readiness.failures, c.readiness.noticed(), wait, w.waitParts(c)),
		fmt.Sprintf("periodSeconds and failureThreshold whose product is at most %s, or a wait of %s; where nothing but the EndpointSlices counts, which a "+
			`deletion changes without the probe, annotation handoverd/ignore: probe-slower-than-wait`, inSeconds(wait), c.readiness.noticed()))
}

// waitParts says what a wait is made of.
func (w *workload) waitParts(c *container) string {
	var parts []string
	if c.hook.exists {
		parts = append(parts, fmt.Sprintf("%s %s", c.hook.what, c.hook.time))
	}
	if d := w.lameDuck(c); d > 0 {
		parts = append(parts, fmt.Sprintf("lame duck %s, from %s", d, w.figures.lameDuck.from))
	}
	return strings.Join(parts, ", ")
}

// checkGrace is about the end of the stop: whether all that has to happen fits, and how much is left over.
func (ck *checker) checkGrace(w *workload, c *container) {
	if c.hook.known && c.hook.time >= w.grace {
		return // said already
	}
	b := w.budget(c, ck.opt.Margin)
	if err := b.Check(); err != nil {
		said := "is the default"
		if w.graceAt.exists() {
			said = "is set here"
		}
		ck.find(w.ignore, "grace-too-short", w.graceAt, fmt.Sprintf(
			"the grace of %s, which %s, contains everything from the begin of the hook to SIGKILL, and %s need %s: what is still in progress is cut",
			w.grace, said, budgetParts(b), need(b)),
			fmt.Sprintf("%s: %s, or less time for hook, lame duck or drain", graceKey, inSeconds(need(b)+boolSecond(b.Drain == 0))))
		return
	}
	n := need(b)
	gap := c.serves && !w.waits(c)
	if w.figures.drain.known && !gap && w.grace >= 2*n && w.grace-n >= farAbove {
		ck.find(w.ignore, "grace-far-above-need", w.graceAt, fmt.Sprintf(
			"%s need %s and the grace is %s: a pod that hangs holds up each rollout and each drain of its node for that long", budgetParts(b), n, w.grace),
			fmt.Sprintf("%s: %s", graceKey, inSeconds(n)))
	}
}

// boolSecond is the second that must be left where the drain's time is not known.
func boolSecond(more bool) time.Duration {
	if more {
		return time.Second
	}
	return 0
}

// budgetParts names the parts that take time.
func budgetParts(b drain.Budget) string {
	var list []string
	for _, p := range []struct {
		name string
		d    time.Duration
	}{{"hook", b.Hook}, {"lame duck", b.LameDuck}, {"drain", b.Drain}, {"kill grace", b.KillGrace}, {"margin", b.Margin}} {
		if p.d > 0 {
			list = append(list, p.name+" "+p.d.String())
		}
	}
	return strings.Join(list, " + ")
}

func (ck *checker) noteUnknown(w *workload, c *container) {
	if c.hook.exists && !c.hook.known {
		ck.find(w.ignore, "hook-time-unknown", c.hookAt, fmt.Sprintf(
			"how long the %s of container %s runs cannot be seen, and it counts against the grace; it is taken for 0 s", c.hook.what, c.name),
			"annotation handoverd/hook, or --hook")
	}
	if !w.figures.drain.known {
		ck.find(w.ignore, "drain-time-unknown", w.graceAt, fmt.Sprintf(
			"how long the program of container %s may need to finish what it accepted is not known; the grace of %s leaves it %s", c.name, w.grace,
			max(0, w.grace-need(w.budget(c, ck.opt.Margin)))),
			"annotation handoverd/drain, or --drain; -c FILE for pods that run handoverd")
	}
}

// inSeconds is a duration as a manifest has it: whole seconds, rounded up.
func inSeconds(d time.Duration) string {
	return fmt.Sprintf("%d", int64((d+time.Second-1)/time.Second))
}
