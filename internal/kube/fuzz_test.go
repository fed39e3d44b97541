package kube_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/handoverd/handover/internal/kube"
)

// FuzzCheck: no text makes the reader or a rule panic or hang, and what is found has a line of the text.
func FuzzCheck(f *testing.F) {
	files, err := filepath.Glob("testdata/manifests/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("a: &a [*a]\nkind: Deployment\nmetadata: &m {<<: *m}\nspec: &s {<<: [*s, *s, *s], template: *s}\n"))
	f.Add([]byte("kind: List\nitems: &i [{kind: List, items: *i}, {kind: List, items: *i}]\n"))
	f.Add([]byte("kind: DaemonSet\nspec: {updateStrategy: {rollingUpdate: {maxSurge: 2147483647%}}, template: {spec: {containers: [{name: a}, 1, null, [x]]}}}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		second := time.Second
		objects, problems := kube.Read("f.yaml", text, "default")
		r := kube.Check(objects, kube.Options{
			Margin: second, Nodes: 1 << 30, Handoverd: &kube.Figures{Drain: &second, LameDuck: &second}, Default: kube.Figures{Startup: &second},
		})
		lines := strings.Count(string(text), "\n") + strings.Count(string(text), "\r") + strings.Count(string(text), "\u0085") + strings.Count(string(text), "\u2028") +
			strings.Count(string(text), "\u2029") + 2
		for _, finding := range r.Findings {
			if finding.Line < 1 || finding.Line > lines {
				t.Errorf("a finding in line %d of %d: %+v", finding.Line, lines, finding)
			}
		}
		for _, p := range append(problems, r.Problems...) {
			if p.Line < 0 || p.Line > lines || p.Problem == "" {
				t.Errorf("a problem in line %d of %d: %v", p.Line, lines, p)
			}
		}
		for _, w := range r.Workloads {
			if w.Rollout.Total < 0 || w.Rollout.Available < 0 || w.Rollout.Stop < 0 {
				t.Errorf("a time overflows: %+v", w.Rollout)
			}
		}
	})
}
