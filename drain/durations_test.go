package drain_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/handoverd/handover/drain"
)

// options are the structs that a user fills in.
var options = []any{
	drain.Acknowledged{}, drain.Age{}, drain.Budget{}, drain.ProbesSeen{}, drain.Sequence{}, drain.Server{}, drain.Streams{}, drain.Workers{},
}

// results are structs that this package fills in.
var results = []string{"Line", "Report", "Seen", "Step", "Straggler", "WaitResult"}

// durationCases names for each duration key the test that shows what it does to
// the clock. Those of Budget are data and meet no clock.
var durationCases = map[string]string{
	"Acknowledged.Max":  "TestLoops",
	"Age.Grace":         "TestStreamAge",
	"Age.Max":           "TestConnectionAge",
	"Budget.Drain":      "TestBudget",
	"Budget.Hook":       "TestBudget",
	"Budget.KillGrace":  "TestBudget",
	"Budget.LameDuck":   "TestBudget",
	"Budget.Limit":      "TestBudget",
	"Budget.Margin":     "TestBudget",
	"ProbesSeen.Max":    "TestLoops",
	"ProbesSeen.Then":   "TestLoops",
	"ProbesSeen.Within": "TestProbesWithin",
	"Sequence.Closing":  "TestSequenceDeadline",
	"Sequence.Deadline": "TestSequenceDeadline",
	"Sequence.Drain":    "TestSequenceDrain",
	"Server.Answer":     "TestRequestContextsEndBeforeTheDeadline",
	"Server.Window":     "TestWindow",
	"Streams.Window":    "TestStreamsRotateOverTheWindow",
	"Workers.Answer":    "TestWorkersGiveBackInTime",
	"Workers.Idle":      "TestWorkersIdle",
}

// TestEveryDurationHasItsCase walks the options by reflection, and the package's
// source for structs that the list of options lacks.
func TestEveryDurationHasItsCase(t *testing.T) {
	tests := testSources(t)
	walked := map[string]bool{}
	for _, o := range options {
		typ := reflect.TypeOf(o)
		for field := range typ.Fields() {
			if !field.IsExported() || field.Type != reflect.TypeFor[time.Duration]() {
				continue
			}
			key := typ.Name() + "." + field.Name
			walked[key] = true
			source, ok := tests[durationCases[key]]
			switch {
			case !ok:
				t.Errorf("%s: no test says what it does (durationCases)", key)
			case !strings.Contains(source, field.Name):
				t.Errorf("%s: %s does not use it", key, durationCases[key])
			case typ.Name() != "Budget" && !strings.Contains(source, "synctest.Test"):
				t.Errorf("%s: %s does not run on a fake clock", key, durationCases[key])
			}
		}
	}
	for key := range durationCases {
		if !walked[key] {
			t.Errorf("%s has a case and is no duration", key)
		}
	}
	for _, name := range durationStructs(t) {
		known := slices.Contains(results, name) || slices.ContainsFunc(options, func(o any) bool { return reflect.TypeOf(o).Name() == name })
		if !known {
			t.Errorf("%s has durations and is neither among the options nor the results", name)
		}
	}
}

// testSources is the text of each test function of the package.
func testSources(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	walkFiles(t, true, func(text string, file *ast.File, fset *token.FileSet) {
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok {
				out[fn.Name.Name] = text[fset.Position(fn.Pos()).Offset:fset.Position(fn.End()).Offset]
			}
		}
	})
	return out
}

// durationStructs is the exported structs of the package with an exported
// duration.
func durationStructs(t *testing.T) []string {
	t.Helper()
	var out []string
	walkFiles(t, false, func(_ string, file *ast.File, _ *token.FileSet) {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || !spec.Name.IsExported() {
				return true
			}
			st, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			for _, f := range st.Fields.List {
				sel, ok := f.Type.(*ast.SelectorExpr)
				if ok && sel.Sel.Name == "Duration" && len(f.Names) > 0 && f.Names[0].IsExported() {
					out = append(out, spec.Name.Name)
					break
				}
			}
			return true
		})
	})
	return out
}

// walkFiles parses the package's files, those of tests or the others.
func walkFiles(t *testing.T, tests bool, f func(text string, file *ast.File, fset *token.FileSet)) {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") != tests {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		f(string(text), file, fset)
	}
}
