package kube

import (
	"path"
	"slices"
	"strings"
	"time"
)

// defaultGrace is terminationGracePeriodSeconds where nothing says it (Kubernetes docs, Pod Lifecycle).
const defaultGrace = 30

// workload is a Deployment, StatefulSet or DaemonSet.
type workload struct {
	*Object
	notes
	labels     map[string]value
	grace      time.Duration
	graceAt    value
	containers []*container
	// gated is set where the template names a readiness gate of the AWS
	// controller itself, instead of leaving it to the Namespace's label.
	gated value
	// byDeadline is set where its figures are parts of a deadline of handoverd's.
	byDeadline bool
	// balancers send to it, as far as the files tell.
	balancers []*balancer
}

// container is a main container. Sidecars among the init containers get their SIGTERM
// after the main ones have ended (Kubernetes docs, Sidecar Containers), and are not looked at.
type container struct {
	name      string
	at        value
	hook      hook
	hookAt    value
	readiness probe
	startup   probe
	// serves is set where requests reach it.
	serves bool
}

// probe is a readiness or startup probe. Defaults: Kubernetes docs, Configure
// Liveness, Readiness and Startup Probes.
type probe struct {
	at           value
	exists       bool
	initialDelay time.Duration
	period       time.Duration
	failures     int
}

func readProbe(v value) probe {
	return probe{
		at: v, exists: v.exists(),
		initialDelay: v.get("initialDelaySeconds").seconds(0),
		period:       max(time.Second, v.get("periodSeconds").seconds(10)),
		failures:     max(1, v.get("failureThreshold").whole(3, maxSeconds)),
	}
}

// noticed is the longest time from the moment the program fails its probe to the moment
// the kubelet takes it for not ready.
func (p *probe) noticed() time.Duration { return times(p.period, p.failures) }

// times is d × n, at most as long as a duration can be.
func times(d time.Duration, n int) time.Duration {
	const longest = time.Duration(1<<62 - 1)
	if d > 0 && n > 0 && d > longest/time.Duration(n) {
		return longest
	}
	return d * time.Duration(n)
}

// isWorkload reports whether an object is one of those that are looked at.
func isWorkload(o *Object) bool {
	return o.is("Deployment") || o.is("StatefulSet") || o.is("DaemonSet")
}

// readWorkload reads an object for which isWorkload is true.
func readWorkload(o *Object, opt *Options) *workload {
	template := o.root.get("spec", "template")
	pod := template.get("spec")
	w := &workload{
		Object:  o,
		notes:   readNotes(template.get("metadata"), o.root.get("metadata")),
		labels:  template.get("metadata", "labels").pairs(),
		graceAt: pod.get("terminationGracePeriodSeconds"),
	}
	w.grace = w.graceAt.seconds(defaultGrace)
	containers := pod.get("containers")
	if !containers.exists() {
		containers.bad("a %s needs containers", o.Kind)
	}
	if opt.Handoverd != nil && w.runsHandoverd(containers) {
		own := w.figures.drain.known
		w.figures.fill(*opt.Handoverd)
		w.byDeadline = !own && opt.Handoverd.Drain != nil
	}
	w.figures.fill(opt.Default)
	for _, c := range containers.items() {
		w.containers = append(w.containers, readContainer(c, w))
	}
	for _, gate := range pod.get("readinessGates").items() {
		if strings.HasPrefix(gate.get("conditionType").text(), "target-health.elbv2.k8s.aws/") {
			w.gated = gate
		}
	}
	return w
}

// runsHandoverd reports whether handoverd is the main program of a container: by
// its command, by its arguments behind an entry point, by the image's name, or because
// the annotation says so.
func (w *workload) runsHandoverd(containers value) bool {
	if w.runs != "" {
		return w.runs == "true"
	}
	for _, c := range containers.items() {
		if command := c.get("command"); command.exists() {
			if words := command.items(); len(words) > 0 && path.Base(words[0].text()) == "handoverd" {
				return true
			}
			continue
		}
		if args := c.get("args").items(); len(args) > 0 && path.Base(args[0].text()) == "handoverd" {
			return true
		}
		image, _, _ := strings.Cut(path.Base(c.get("image").text()), "@")
		if image, _, _ = strings.Cut(image, ":"); image == "handoverd" {
			return true
		}
	}
	return false
}

func readContainer(v value, w *workload) *container {
	c := &container{
		name: v.get("name").text(), at: v,
		hookAt:    v.get("lifecycle", "preStop"),
		readiness: readProbe(v.get("readinessProbe")),
		startup:   readProbe(v.get("startupProbe")),
	}
	c.hook = readHook(c.hookAt, w.figures.hook)
	if c.hook.lameDuck && !c.hook.known && w.figures.lameDuck.known {
		c.hook.time, c.hook.known = w.figures.lameDuck.d, true
	}
	return c
}

// lameDuck is how long the program serves on after SIGTERM. A hook that is handoverd's lame duck
// has been that already.
func (w *workload) lameDuck(c *container) time.Duration {
	if c.hook.lameDuck {
		return 0
	}
	return w.figures.lameDuck.d
}

// wait is how long the container goes on accepting after its pod was told to go.
func (w *workload) wait(c *container) time.Duration { return c.hook.time + w.lameDuck(c) }

// waits reports whether it waits at all, be it for a time that is not known.
func (w *workload) waits(c *container) bool {
	return c.hook.exists && !c.hook.known || w.wait(c) > 0
}

// serving marks the containers that requests reach: those behind a port that a Service of the files
// sends to; without a Service, those that declare ports. Ports of a container need not be declared
// (Kubernetes docs, Pod v1), so with a Service but without a declared port it is the first container.
func (w *workload) serving(services []*service) {
	selected := false
	for _, s := range services {
		if !s.selects(w) {
			continue
		}
		selected = true
		for _, c := range w.containers {
			if slices.ContainsFunc(c.ports(), s.sendsTo) {
				c.serves = true
			}
		}
	}
	serves := func(c *container) bool { return c.serves }
	if slices.ContainsFunc(w.containers, serves) {
		return
	}
	for _, c := range w.containers {
		c.serves = len(c.ports()) > 0
	}
	if selected && len(w.containers) > 0 && !slices.ContainsFunc(w.containers, serves) {
		w.containers[0].serves = true
	}
}

// ports are the names and numbers under which a Service may send to the container.
func (c *container) ports() []string {
	var list []string
	for _, p := range c.at.get("ports").items() {
		for _, key := range []string{"name", "containerPort"} {
			if t := p.get(key).text(); t != "" {
				list = append(list, t)
			}
		}
	}
	return list
}
