package kube_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/handoverd/handover/internal/kube"
)

// TestAliasesMultiply: lists of aliases of lists of aliases, of what is no object, end as well.
func TestAliasesMultiply(t *testing.T) {
	var b strings.Builder
	b.WriteString("a0: &a0 {x: 1}\n")
	for level := 1; level < 8; level++ {
		alias := fmt.Sprintf("*a%d", level-1)
		fmt.Fprintf(&b, "a%d: &a%d {kind: List, items: [%s]}\n", level, level, strings.Repeat(alias+", ", 99)+alias)
	}
	fmt.Fprintf(&b, "kind: List\nitems: [%s]\n", strings.Repeat("*a7, ", 99)+"*a7")
	objects, problems := kube.Read("f.yaml", []byte(b.String()), "default")
	if len(objects) != 0 || len(problems) == 0 || !strings.Contains(problems[0].Problem, "too many objects") {
		t.Errorf("%d objects, %d problems", len(objects), len(problems))
	}
}

// TestMergesMultiply: mappings of 20,000 keys, merged eightfold in three steps and by each of many containers, and labels
// of as many keys, are looked through in no more than linear time. Without that it is hours.
func TestMergesMultiply(t *testing.T) {
	var keys strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&keys, "k%d: x, ", i)
	}
	eight := func(alias string) string { return "[" + strings.Repeat(alias+", ", 7) + alias + "]" }
	text := "d: &d {" + keys.String() + "name: deep}\n" +
		"c: &c {<<: " + eight("*d") + "}\nb: &b {<<: " + eight("*c") + "}\n" +
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  template:\n    metadata: {labels: {" + keys.String() + "<<: *b}}\n    spec:\n      containers:\n" +
		strings.Repeat("      - {<<: "+eight("*b")+", ports: [{containerPort: 80}]}\n", 200)
	objects, problems := kube.Read("f.yaml", []byte(text), "default")
	r := kube.Check(objects, kube.Options{})
	if len(problems) != 0 || len(r.Problems) != 0 || len(r.Workloads) != 1 || len(r.Workloads[0].Stops) != 200 || r.Workloads[0].Stops[199].Container != "deep" {
		t.Errorf("%v, %v, %d workloads", problems, r.Problems, len(r.Workloads))
	}
}

// TestListsMultiply: a list of aliases of one list, which are walked each time, ends.
func TestListsMultiply(t *testing.T) {
	aliases := func(name string) string { return strings.Repeat(name+", ", 9999) + name }
	text := "p: &p [" + strings.Repeat("{}, ", 9999) + "{}]\nr: &r {http: {paths: *p}}\n" +
		"apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web}\nspec: {ingressClassName: alb, rules: [" + aliases("*r") + "]}\n"
	objects, problems := kube.Read("f.yaml", []byte(text), "default")
	r := kube.Check(objects, kube.Options{})
	if len(problems) != 0 || len(r.Problems) == 0 || !strings.Contains(r.Problems[0].Problem, "too many elements") {
		t.Errorf("%v, %v", problems, r.Problems)
	}
}

// TestForeignKinds: other groups have a Service, an Ingress and a Deployment of their own, which are none of Kubernetes'.
func TestForeignKinds(t *testing.T) {
	const text = `
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello}
spec: {ports: 8080, selector: none}
---
apiVersion: config.example.com/v1
kind: Ingress
metadata: {name: cluster}
spec: {rules: 5}
---
apiVersion: apps.example.com/v1
kind: Deployment
metadata: {name: own}
spec: {image: x}
`
	objects, problems := kube.Read("f.yaml", []byte(text), "default")
	r := kube.Check(objects, kube.Options{})
	if len(problems) != 0 || r.Failed() || r.Objects != 3 || r.Checked != 0 || len(r.Workloads) != 0 {
		t.Errorf("%v, %+v", problems, r)
	}
	objects, _ = kube.Read("f.yaml", []byte(strings.ReplaceAll(text, ".example.com", "")), "default")
	if r := kube.Check(objects, kube.Options{}); r.Checked != 1 || !r.Failed() {
		t.Errorf("a Deployment of apps/v1 without containers is looked at: %+v", r)
	}
}

// TestUnrendered: a template may be YAML by chance; then its names are mappings.
func TestUnrendered(t *testing.T) {
	objects, problems := kube.Read("f.yaml", []byte("apiVersion: v1\nkind: Service\nmetadata:\n  name: {{ .Release.Name }}\n"), "default")
	r := kube.Check(objects, kube.Options{})
	if len(problems) != 0 || len(r.Problems) != 1 || r.Problems[0].Line != 4 || !strings.Contains(r.Problems[0].Problem, "must be text") ||
		!strings.Contains(r.Problems[0].Problem, "has to be rendered first") {
		t.Errorf("%v, %v", problems, r.Problems)
	}
}
