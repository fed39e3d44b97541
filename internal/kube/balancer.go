package kube

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Annotations, labels and defaults of the AWS Load Balancer Controller: its docs, Ingress annotations, Service
// annotations, Pod readiness gate. The deregistration delay's default is that of a target group (Elastic Load
// Balancing docs).
const (
	albPrefix = "alb.ingress.kubernetes.io/"
	nlbPrefix = "service.beta.kubernetes.io/aws-load-balancer-"
	gateLabel = "elbv2.k8s.aws/pod-readiness-gate-inject"
	delayName = "deregistration_delay.timeout_seconds"
	awsDelay  = 300 * time.Second
)

// service is a Service.
type service struct {
	*Object
	notes
	selector map[string]string
	targets  []string
}

func readService(o *Object) *service {
	s := &service{Object: o, notes: readNotes(o.root.get("metadata")), selector: map[string]string{}}
	for key, v := range o.root.get("spec", "selector").pairs() {
		s.selector[key] = v.text()
	}
	for _, p := range o.root.get("spec", "ports").items() {
		target := p.get("targetPort")
		if !target.exists() {
			target = p.get("port") // the default of targetPort
		}
		if t := target.text(); t != "" {
			s.targets = append(s.targets, t)
		}
	}
	return s
}

func (s *service) sendsTo(port string) bool { return slices.Contains(s.targets, port) }

// selects reports whether the pods of a workload are behind the Service.
func (s *service) selects(w *workload) bool {
	if s.Namespace != w.Namespace || len(s.selector) == 0 {
		return false
	}
	for key, want := range s.selector {
		if v, ok := w.labels[key]; !ok || v.text() != want {
			return false
		}
	}
	return true
}

// balancer is one target group of an AWS load balancer: an Ingress or a Service and one Service behind it.
type balancer struct {
	kind    string // "ALB", "NLB"
	owner   *Object
	backend *service // nil where it is not among the files
	ignore  map[string]bool

	target   setting
	delay    time.Duration
	delayAt  value
	delayed  bool // the delay was set
	interval time.Duration
	healthy  int
}

// setting is an annotation with its default.
type setting struct {
	text string
	at   value
}

// healthyAfter is how long a new target takes at least until it is sent requests.
func (b *balancer) healthyAfter() time.Duration { return times(b.interval, b.healthy) }

// byIP reports whether pods are targets, not nodes.
func (b *balancer) byIP() bool { return b.target.text == "ip" }

// readBalancers finds the ALB target groups of an Ingress, or that of a Service which is an NLB.
func readBalancers(o *Object, services []*service) []*balancer {
	meta := o.root.get("metadata")
	annotations := meta.get("annotations").pairs()
	switch {
	case o.Kind == "Ingress" && isALB(o, annotations):
		var list []*balancer
		for _, name := range backends(o) {
			var backend *service
			if i := slices.IndexFunc(services, func(s *service) bool { return s.Name == name && s.Namespace == o.Namespace }); i >= 0 {
				backend = services[i]
			}
			list = append(list, readALB(o, backend))
		}
		return list
	case o.Kind == "Service" && isNLB(o, annotations):
		if i := slices.IndexFunc(services, func(s *service) bool { return s.Object == o }); i >= 0 {
			return []*balancer{readNLB(services[i])}
		}
	}
	return nil
}

func isALB(o *Object, annotations map[string]value) bool {
	class := o.root.get("spec", "ingressClassName").text()
	if class == "" {
		class = annotations["kubernetes.io/ingress.class"].text()
	}
	if class == "alb" {
		return true
	}
	for key := range annotations {
		if strings.HasPrefix(key, albPrefix) {
			return true
		}
	}
	return false
}

func isNLB(o *Object, annotations map[string]value) bool {
	if o.root.get("spec", "type").text() != "LoadBalancer" {
		return false
	}
	if class := o.root.get("spec", "loadBalancerClass").text(); class != "" {
		return class == "service.k8s.aws/nlb"
	}
	t := annotations[nlbPrefix+"type"].text()
	return t == "external" || t == "nlb-ip" || t == "nlb"
}

// backends are the names of the Services of an Ingress, each once, sorted.
func backends(o *Object) []string {
	spec := o.root.get("spec")
	found := map[string]bool{}
	add := func(v value) {
		// Then the name is that of an action in an annotation, a redirect perhaps.
		if v.get("service", "port", "name").text() == "use-annotation" || v.get("servicePort").text() == "use-annotation" {
			return
		}
		for _, name := range []string{v.get("service", "name").text(), v.get("serviceName").text()} {
			if name != "" {
				found[name] = true
			}
		}
	}
	add(spec.get("defaultBackend"))
	add(spec.get("backend"))
	for _, rule := range spec.get("rules").items() {
		for _, p := range rule.get("http", "paths").items() {
			add(p.get("backend"))
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// readALB reads one target group. Annotations of the Service go before those of the Ingress.
func readALB(o *Object, backend *service) *balancer {
	b := &balancer{kind: "ALB", owner: o, backend: backend, ignore: readNotes(o.root.get("metadata")).ignore}
	from := []value{o.root.get("metadata", "annotations")}
	if backend != nil {
		from = []value{backend.root.get("metadata", "annotations"), from[0]}
	}
	b.target = first(from, albPrefix+"target-type", "instance")
	b.setDelay(first(from, albPrefix+"target-group-attributes", ""))
	b.interval = first(from, albPrefix+"healthcheck-interval-seconds", "15").seconds(15)
	b.healthy = int(first(from, albPrefix+"healthy-threshold-count", "2").seconds(2) / time.Second)
	return b
}

func readNLB(s *service) *balancer {
	b := &balancer{kind: "NLB", owner: s.Object, backend: s, ignore: s.ignore}
	from := []value{s.root.get("metadata", "annotations")}
	b.target = first(from, nlbPrefix+"nlb-target-type", "instance")
	if s.root.get("metadata", "annotations").get(nlbPrefix+"type").text() == "nlb-ip" || b.target.text == "nlb-ip" {
		b.target.text = "ip"
	}
	b.setDelay(first(from, nlbPrefix+"target-group-attributes", ""))
	b.interval = first(from, nlbPrefix+"healthcheck-interval", "10").seconds(10)
	b.healthy = int(first(from, nlbPrefix+"healthcheck-healthy-threshold", "3").seconds(3) / time.Second)
	return b
}

// first is the first of several annotations, or def, at the place where it would be.
func first(from []value, key, def string) setting {
	for _, a := range from {
		if v := a.get(key); v.exists() {
			return setting{strings.TrimSpace(v.text()), v}
		}
	}
	return setting{def, from[len(from)-1].get(key)}
}

func (s setting) seconds(def int) time.Duration {
	n, err := strconv.Atoi(s.text)
	if err != nil || n < 0 || n > maxSeconds {
		s.at.bad("must be a number of seconds, in quotes, not %q", s.text)
		n = def
	}
	return time.Duration(n) * time.Second
}

// setDelay reads the deregistration delay out of "a=1,b=2".
func (b *balancer) setDelay(attributes setting) {
	b.delay, b.delayAt = awsDelay, attributes.at
	for attribute := range strings.SplitSeq(attributes.text, ",") {
		name, text, _ := strings.Cut(strings.TrimSpace(attribute), "=")
		if strings.TrimSpace(name) == delayName {
			b.delayed = true
			b.delay = setting{strings.TrimSpace(text), attributes.at}.seconds(300)
		}
	}
}
