package kube

// Rule is one thing that is looked for.
type Rule struct {
	Name     string
	Severity Severity
	// Text says in a sentence what it finds.
	Text string
}

// Rules are all rules, in the order in which they are applied. Their names are
// stable: they are in reports, and in annotations that switch them off.
var Rules = []Rule{
	{"no-lame-duck", Fault, "no preStop hook that takes time, and no lame duck: SIGTERM comes while requests still do"},
	{"grace-for-start-gap", Fault, "a grace was raised, which cannot mend a gap at the begin of the stop"},
	{"hook-takes-grace", Fault, "the preStop hook is as long as the grace or longer"},
	{"grace-too-short", Fault, "hook, lame duck, drain, kill grace and margin do not fit into the grace"},
	{"probe-slower-than-wait", Fault, "period × threshold of the readiness probe is longer than hook and lame duck"},
	{"grace-far-above-need", Fault, "the grace is at least twice what is needed, and a minute more"},
	{"balancer-without-gate", Fault, "pods are targets of an AWS balancer and no readiness gate waits for it"},
	{"instance-target-with-gate", Fault, "nodes are the targets, and a readiness gate waits for pods to be"},
	{"deregistration-delay", Fault, "the deregistration delay is left at 300 s"},
	{"eviction-caps-grace", Note, "an eviction may give less than this grace"},
	{"no-readiness-probe", Note, "nothing says when a new pod can be sent requests"},
	{"hook-time-unknown", Note, "how long the hook runs cannot be seen"},
	{"drain-time-unknown", Note, "how long the drain takes is not known, so the grace is not checked against it"},
	{"progress-deadline", Note, "a pod takes longer to be available than the Deployment waits for progress"},
}

// severityOf is that of the rule with the name.
func severityOf(name string) Severity {
	for _, r := range Rules {
		if r.Name == name {
			return r.Severity
		}
	}
	return Fault
}
