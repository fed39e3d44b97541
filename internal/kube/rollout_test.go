package kube_test

import (
	"strings"
	"testing"
	"time"

	"github.com/handoverd/handover/internal/kube"
)

// rolloutManifest is ready after 10 s and stops for 20 s: hook 5 s, drain 15 s.
const rolloutManifest = `kind: KIND
metadata: {name: web, annotations: {handoverd/startup: 10s, handoverd/drain: 15s}}
spec:
SPEC
  template:
    spec:
      containers:
        - name: web
          lifecycle: {preStop: {sleep: {seconds: 5}}}
`

func TestRollout(t *testing.T) {
	const s = time.Second
	for _, tt := range []struct {
		kind, spec    string
		atOnce, waves int
		total         time.Duration
	}{
		// 25 % each by default, of 10: 3 more (rounded up), 2 missing (rounded down).
		{"Deployment", "  replicas: 10", 5, 2, 2*10*s + 20*s},
		{"Deployment", "  replicas: 1", 1, 1, 10*s + 20*s},
		{"Deployment", "  replicas: 0", 1, 0, 20 * s},
		{"Deployment", "  minReadySeconds: 30\n  replicas: 4", 2, 2, 2*40*s + 20*s},
		{"Deployment", "  replicas: 10\n  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}", 1, 10, 10*10*s + 20*s},
		{"Deployment", "  replicas: 10\n  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 30%}}", 3, 4, 4*10*s + 20*s},
		// Both come to 0: the controller takes one away all the same.
		{"Deployment", "  replicas: 3\n  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 10%}}", 1, 3, 3*10*s + 20*s},
		{"Deployment", "  replicas: 3\n  strategy: {rollingUpdate: {maxSurge: 100%, maxUnavailable: 0}}", 3, 1, 10*s + 20*s},
		{"Deployment", "  replicas: 10\n  strategy: {type: Recreate}", 10, 1, 20*s + 10*s},
		// Without replicas what the caller assumes.
		{"Deployment", "", 3, 2, 2*10*s + 20*s},
		{"StatefulSet", "  replicas: 4", 1, 4, 4 * 30 * s},
		{"StatefulSet", "  replicas: 4\n  podManagementPolicy: Parallel", 1, 4, 4 * 30 * s},
		{"StatefulSet", "  replicas: 4\n  updateStrategy: {rollingUpdate: {partition: 3}}", 1, 1, 30 * s},
		{"StatefulSet", "  replicas: 4\n  updateStrategy: {rollingUpdate: {maxUnavailable: 2}}", 2, 2, 2 * 30 * s},
		{"StatefulSet", "  replicas: 4\n  updateStrategy: {type: OnDelete}", 0, 0, 0},
		{"DaemonSet", "", 1, 7, 7 * 30 * s},
		{"DaemonSet", "  updateStrategy: {rollingUpdate: {maxUnavailable: 50%}}", 4, 2, 2 * 30 * s},
		{"DaemonSet", "  updateStrategy: {rollingUpdate: {maxSurge: 2, maxUnavailable: 0}}", 2, 4, 4*10*s + 20*s},
	} {
		text := strings.NewReplacer("KIND", tt.kind, "SPEC", tt.spec).Replace(rolloutManifest)
		r, _ := checkText(t, "r.yaml", text, kube.Options{Nodes: 7, Replicas: 5})
		if len(r.Problems) > 0 || len(r.Workloads) != 1 {
			t.Fatalf("%s: %+v", text, r)
		}
		got := r.Workloads[0].Rollout
		if got.AtOnce != tt.atOnce || got.Waves != tt.waves || got.Total != tt.total || got.Formula == "" {
			t.Errorf("%s\n%s: %d at once, %d waves, %s (%s); want %d, %d, %s", tt.kind, tt.spec, got.AtOnce, got.Waves, got.Total, got.Formula,
				tt.atOnce, tt.waves, tt.total)
		}
	}
}

// A balancer with a readiness gate makes a pod available later, by its own checks.
func TestRolloutBehindBalancer(t *testing.T) {
	const manifest = `kind: Namespace
metadata: {name: shop, labels: {elbv2.k8s.aws/pod-readiness-gate-inject: enabled}}
---
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 25
      containers:
        - name: web
          startupProbe: {initialDelaySeconds: 7, periodSeconds: 3}
          readinessProbe: {initialDelaySeconds: 5, periodSeconds: 4}
---
kind: Service
metadata:
  name: web
  namespace: shop
  annotations: {alb.ingress.kubernetes.io/healthcheck-interval-seconds: "5"}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
kind: Ingress
metadata:
  name: web
  namespace: shop
  annotations: {alb.ingress.kubernetes.io/target-type: ip, alb.ingress.kubernetes.io/healthy-threshold-count: "4"}
spec: {ingressClassName: alb, defaultBackend: {service: {name: web}}}
`
	r, _ := checkText(t, "b.yaml", manifest, kube.Options{})
	got := r.Workloads[0].Rollout
	// Started by its probes after 7 + 3 s, ready 4 s later, healthy after 4 × 5 s; the drain is not known, so the grace.
	if want := 34 * time.Second; got.Available != want || got.Stop != 25*time.Second || got.Total != want+25*time.Second {
		t.Errorf("available after %s (%s), stop %s (%s), total %s", got.Available, got.AvailableParts, got.Stop, got.StopParts, got.Total)
	}
}
