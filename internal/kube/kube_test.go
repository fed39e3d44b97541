package kube_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/internal/kube"
)

// The manifests say themselves what is to be found in them: "# want RULE…" at the end of the line to which a finding, a
// note or a "problem" belongs, "# options …" for what the caller tells.
var (
	wantLine = regexp.MustCompile(`# want (.*)$`)
	options  = regexp.MustCompile(`(?m)^# options (.*)$`)
)

// wanted are the expectations of a manifest, as "line rule".
func wanted(t *testing.T, text string) []string {
	t.Helper()
	var list []string
	for i, line := range strings.Split(text, "\n") {
		m := wantLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		for word := range strings.FieldsSeq(m[1]) {
			list = append(list, fmt.Sprintf("%d %s", i+1, word))
		}
	}
	slices.Sort(list)
	return list
}

func seconds(n int) *time.Duration { return new(time.Duration(n) * time.Second) }

func optionsOf(t *testing.T, text string) kube.Options {
	t.Helper()
	opt := kube.Options{Margin: kube.DefaultMargin, Default: kube.Figures{From: "flags"}}
	for _, m := range options.FindAllStringSubmatch(text, -1) {
		switch m[1] {
		case "config": // lame duck 5 s, and a deadline that is 5 s short of the default grace, or not
			opt.Handoverd = &kube.Figures{LameDuck: seconds(5), Drain: seconds(15), KillGrace: seconds(5), From: "handoverd.toml"}
			if strings.Contains(text, "command: [/usr/bin/handoverd") {
				opt.Handoverd.Drain = seconds(20)
			}
		case "config-20s": // a deadline of 20 s
			opt.Handoverd = &kube.Figures{LameDuck: seconds(5), Drain: seconds(10), KillGrace: seconds(5), From: "handoverd.toml"}
		case "drain=10s":
			opt.Default.Drain = seconds(10)
		default:
			t.Fatalf("no such option: %q", m[1])
		}
	}
	return opt
}

func checkText(t *testing.T, file, text string, opt kube.Options) (*kube.Report, []string) {
	t.Helper()
	objects, problems := kube.Read(file, []byte(text), "default")
	r := kube.Check(objects, opt)
	r.Problems = append(r.Problems, problems...)
	var got []string
	for _, f := range slices.Concat(r.Findings, r.Notes) {
		got = append(got, fmt.Sprintf("%d %s", f.Line, f.Rule))
		if f.File != file || f.Document == 0 || f.Object == "" || f.Key == "" || f.Reason == "" || f.Remedy == "" {
			t.Errorf("a finding says where it is, why, and what to do: %+v", f)
		}
	}
	for _, p := range r.Problems {
		got = append(got, fmt.Sprintf("%d problem", p.Line))
	}
	slices.Sort(got)
	return r, got
}

func TestManifests(t *testing.T) {
	files, err := filepath.Glob("testdata/manifests/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	kinds, rules := map[string]int{}, map[string]bool{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		kind, _, _ := strings.Cut(name, "_")
		kinds[kind]++
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			r, got := checkText(t, file, string(text), optionsOf(t, string(text)))
			want := wanted(t, string(text))
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("line and rule (-want +got):\n%s", d)
			}
			fails := kind == "fault" || kind == "problem"
			if r.Failed() != fails {
				t.Errorf("Failed is %v for a manifest named %s: %+v", r.Failed(), name, r.Findings)
			}
			if kind == "good" && len(want) > 0 {
				t.Errorf("a good manifest wants %v", want)
			}
			for _, f := range slices.Concat(r.Findings, r.Notes) {
				rules[f.Rule] = true
			}
		})
	}
	if kinds["fault"] < 15 || kinds["good"] < 3 {
		t.Errorf("at least 15 manifests with a fault and 3 good ones: %v", kinds)
	}
	for _, r := range kube.Rules {
		if !rules[r.Name] {
			t.Errorf("no manifest is found by rule %s", r.Name)
		}
	}
}

// TestBrokenYAML is about the line of an error: the library counts it in more than one way.
func TestBrokenYAML(t *testing.T) {
	for _, tt := range []struct {
		text string
		line int
		says string
	}{
		{"a: {b: c\n", 2, "',' or '}'"}, // noticed at the end
		{"a: 1\nb: {c: d\ne: f\n", 2, "',' or '}'"},
		{"a: 1\n---\nb: [1\n", 3, "',' or ']'"},
		{"a: b: c\n", 1, "mapping values"},
		{"a: b\n  c: d\n", 2, "mapping values"},
		{"\tx: 1\n", 1, "cannot start any token"},
		{"a: b\n\tc: 1", 2, "tab"},
		{"a: 1\nb: @x\n", 2, "cannot start any token"},
		{"a: 1\nb:\n  - c\n d\n", 0, ""},
		{"a: 1\nb: *x\n", 2, "unknown anchor"},
		{"a: 1\nb: {{ .Values.x }}\nc: [\n", 4, "helm template"},
		{"a: \"x\n", 2, "end of stream"},
		{"a: \xff\n", 0, "UTF-8"},
	} {
		_, problems := kube.Read("x.yaml", []byte(tt.text), "default")
		if len(problems) == 0 {
			t.Errorf("%q: no problem", tt.text)
			continue
		}
		p := problems[len(problems)-1]
		if tt.line > 0 && p.Line != tt.line || !strings.Contains(p.Problem, tt.says) || p.File != "x.yaml" {
			t.Errorf("%q: got line %d: %v; want line %d and %q", tt.text, p.Line, p, tt.line, tt.says)
		}
	}
}

// TestDocs: every rule is in the manual, and so is what a manifest may say.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/KUBERNETES.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range kube.Rules {
		if !strings.Contains(string(text), "| `"+r.Name+"`") {
			t.Errorf("docs/KUBERNETES.md has no row for rule %s", r.Name)
		}
	}
	for _, key := range []string{"hook", "lame-duck", "drain", "kill-grace", "startup", "ignore", "runs"} {
		if !strings.Contains(string(text), "`handoverd/"+key+"`") {
			t.Errorf("docs/KUBERNETES.md does not explain the annotation handoverd/%s", key)
		}
	}
}
