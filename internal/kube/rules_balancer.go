package kube

import (
	"fmt"
	"slices"
)

// behind are the workloads that a balancer sends to, as far as the files tell.
func (ck *checker) behind(b *balancer) []*workload {
	if b.backend == nil {
		return nil
	}
	var list []*workload
	for _, w := range ck.workloads {
		if b.backend.selects(w) {
			list = append(list, w)
		}
	}
	return list
}

// labelled reports whether the Namespace asks the AWS controller to add readiness gates, and where the Namespace is.
func (ck *checker) labelled(name string) (yes bool, at *Object) {
	for _, o := range ck.objects {
		if o.Kind == "Namespace" && o.Name == name {
			return o.root.get("metadata", "labels").get(gateLabel).text() == "enabled", o
		}
	}
	return false, nil
}

// gatedPods reports whether a readiness gate holds back every pod behind the balancer: by the Namespace's
// label, or by their templates.
func (ck *checker) gatedPods(b *balancer) bool {
	if yes, _ := ck.labelled(b.owner.Namespace); yes {
		return true
	}
	behind := ck.behind(b)
	return len(behind) > 0 && !slices.ContainsFunc(behind, func(w *workload) bool { return !w.gated.exists() })
}

// checkBalancer applies the rules for one target group.
func (ck *checker) checkBalancer(b *balancer) {
	yes, namespace := ck.labelled(b.owner.Namespace)
	switch {
	case b.byIP() && !ck.gatedPods(b):
		where := "which is not among the files"
		if namespace != nil {
			where = fmt.Sprintf("%s:%d", namespace.File, namespace.root.line)
		}
		ck.find(b.ignore, "balancer-without-gate", b.target.at, fmt.Sprintf(
			"pods are targets of this %s, and Namespace %s (%s) has no label %s: enabled. A rollout ends old pods when new ones are ready for Kubernetes, "+
				"which may be long before the %s has registered them and found them healthy (at least %s): for that time it has no healthy target",
			b.kind, b.owner.Namespace, where, gateLabel, b.kind, b.healthyAfter()),
			fmt.Sprintf("kubectl label namespace %s %s=enabled, and so in its manifest; give that file to this check as well", b.owner.Namespace, gateLabel))
	case !b.byIP() && yes && !ck.targetsPods(b.owner.Namespace):
		ck.find(b.ignore, "instance-target-with-gate", b.target.at, fmt.Sprintf(
			"the targets of this %s are nodes, so it knows nothing of pods and no readiness gate is added, though Namespace %s asks for them: "+
				"a rollout does not wait for the %s", b.kind, b.owner.Namespace, b.kind),
			"target-type ip; or no label, where node targets are meant")
	}
	for _, w := range ck.behind(b) {
		if !b.byIP() && w.gated.exists() && !ck.targetsPodsOf(w) {
			ck.find(w.ignore, "instance-target-with-gate", w.gated, fmt.Sprintf(
				"the pods wait for a condition that nobody sets: the targets of %s are nodes, not pods. No new pod becomes ready", b.owner),
				"target-type ip, or no such readinessGate")
		}
	}
	ck.checkDelay(b)
}

// targetsPods reports whether any balancer of the namespace has pods as its targets.
func (ck *checker) targetsPods(namespace string) bool {
	return slices.ContainsFunc(ck.balancers, func(b *balancer) bool { return b.byIP() && b.owner.Namespace == namespace })
}

// targetsPodsOf reports whether any balancer has the pods of w as its targets.
func (ck *checker) targetsPodsOf(w *workload) bool {
	return slices.ContainsFunc(w.balancers, (*balancer).byIP)
}

func (ck *checker) checkDelay(b *balancer) {
	if b.delay != awsDelay {
		return
	}
	explicit := "is not set, so it is"
	if b.delayed {
		// Meant, if a pod behind it lives that long.
		if slices.ContainsFunc(ck.behind(b), func(w *workload) bool { return w.grace >= awsDelay }) {
			return
		}
		explicit = "is"
	}
	ends := "the pod's grace, 30 s by default"
	for _, w := range ck.behind(b) {
		ends = fmt.Sprintf("the grace of %s, %s", w, w.grace)
	}
	ck.find(b.ignore, "deregistration-delay", b.delayAt, fmt.Sprintf(
		"%s %s 300 s: the %s keeps connections to a target that leaves for 5 minutes, while the target is gone after %s. Connections end by the pod's "+
			"SIGKILL instead of by the balancer, and whatever waits for the target group waits 5 minutes", delayName, explicit, b.kind, ends),
		delayName+"=N in the annotation target-group-attributes, N at most as long as the pod accepts and drains")
}
