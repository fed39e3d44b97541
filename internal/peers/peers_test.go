//go:build linux

package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/internal/drill"
)

// TestDocIsGenerated: nobody edits the table, and a change of it is made with all of it.
func TestDocIsGenerated(t *testing.T) {
	doc := filepath.Join(t.TempDir(), "doc.md")
	if err := renderFile("../../docs/benchmarks.json", doc); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("../../docs/BENCHMARKS.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("docs/BENCHMARKS.md is not what \"go run ./internal/peers -render\" writes (-have +generated):\n%s", diff)
	}
}

// TestEveryContenderHasATarget, and is compared with one of handoverd's that is there.
func TestEveryContenderHasATarget(t *testing.T) {
	for _, c := range contenders {
		if targets[c.name] == nil {
			t.Errorf("%s has no target", c.name)
		}
		if base, ok := contenderNamed(c.base); c.base != "" && (!ok || base.base != "") {
			t.Errorf("%s is compared with %q", c.name, c.base)
		}
		// The kernel cuts names to 15 bytes, proc_pid_comm(5).
		if len(c.replace) > 15 {
			t.Errorf("%s: no process can be named %q", c.name, c.replace)
		}
	}
	if len(targets) != len(contenders) {
		t.Errorf("%d targets, %d contenders", len(targets), len(contenders))
	}
}

// TestPlan: every reload that was asked for is in a block, no block is longer than allowed, and the pair alternates.
func TestPlan(t *testing.T) {
	counts := map[string]int{"a": 200, "b": 200, "c": 50, "d": 3}
	turns := plan(counts, []string{"a", "b", "c", "d"}, [2]string{"a", "b"}, 7)
	sums := map[string]int{}
	for i, turn := range turns {
		if turn.reloads < 1 || turn.reloads > blockSize {
			t.Errorf("turn %+v", turn)
		}
		sums[turn.contender] += turn.reloads
		if turn.contender == "a" && turns[max(0, i-1)].contender != "b" && turns[i+1].contender != "b" {
			t.Errorf("turn %d of a is beside none of b", i)
		}
	}
	if diff := cmp.Diff(counts, sums); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(turns, plan(counts, []string{"a", "b", "c", "d"}, [2]string{"a", "b"}, 7), cmp.AllowUnexported(turn{})); diff != "" {
		t.Errorf("the same seed gives another order: %s", diff)
	}
}

func TestLossBound(t *testing.T) {
	tests := []struct {
		failed     int
		lost       []float64
		mean, most float64
	}{
		{0, make([]float64, 200), 0, 0.015},
		{0, nil, 0, 0},
		{8, []float64{2, 2, 2, 2}, 2, 2},
		{2, []float64{0, 2}, 1, 2.645},
		{1, []float64{0, 0, 0, 0}, 0.25, 0.75}, // lost outside of the windows
	}
	for _, tt := range tests {
		if mean, most := lossBound(tt.failed, tt.lost); mean != tt.mean || most != tt.most {
			t.Errorf("%d lost, %v: %v, at most %v, want %v and %v", tt.failed, tt.lost, mean, most, tt.mean, tt.most)
		}
	}
}

// TestBetterIsSaid: a cell that beats handoverd's says in what, and only in what the printed figures show.
func TestBetterIsSaid(t *testing.T) {
	r := results{
		Contenders: []contenderFigures{{Name: ownGo}, {Name: "peer", Base: ownGo}},
		Cells: []cell{
			{Contender: ownGo, Mode: drill.ModeFresh, PerReload: 0, ReloadMS: 110, WindowP99: 2, Ratio: 1.2},
			{Contender: "peer", Mode: drill.ModeFresh, PerReload: 4, ReloadMS: 5, WindowP99: 1.999, Ratio: 1.3},
			{Contender: "peer", Mode: drill.ModePost},
		},
	}
	if got, want := r.better(r.Contenders[1], r.Cells[1]), "**reload**: 5.00 against 110.00 ms"; got != want {
		t.Errorf("better in %q, want %q", got, want)
	}
	if got := r.better(r.Contenders[1], r.Cells[2]); got != "(not compared)" {
		t.Errorf("without a cell of handoverd: %q", got)
	}
}

// TestSmoke plays one contender of each kind whose program make test installs, with two reloads each, and looks whether the cells are
// what they must be: handoverd loses nothing, and the restart, which must lose, is seen to.
func TestSmoke(t *testing.T) {
	if testing.Short() {
		t.Skip("load needs the machine to itself; it runs without -short")
	}
	installed := []string{ownGo, bareHolder, "tableflip-drain", "stop-start", ownHAProxy, "haproxy-sf", "nginx-hup"}
	const reloads = "2"
	dir := t.TempDir()
	program, figures, doc := filepath.Join(dir, "peers"), filepath.Join(dir, "figures.json"), filepath.Join(dir, "doc.md")
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", program, ".")
	build.Env = append(environment(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(ctx, program, "-only", strings.Join(installed, ","), "-reloads", reloads, "-peer-reloads", reloads, "-json", figures, "-doc", doc)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(figures)
	if err != nil {
		t.Fatal(err)
	}
	var r results
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	lossless := []string{ownGo, bareHolder, "tableflip-drain", ownHAProxy}
	for _, name := range installed {
		for _, l := range loads {
			c, ok := r.find(name, l.Mode)
			if !ok || c.Reloads != 2 || len(c.Windows) != 2 || c.Requests == 0 || c.SteadyP99 <= 0 {
				t.Errorf("%s, %s: %+v", name, l.Mode, c)
			}
			if slices.Contains(lossless, name) && c.Failed > 0 {
				t.Errorf("%s, %s lost %v", name, l.Mode, c.Failures)
			}
		}
	}
	if c, _ := r.find("stop-start", drill.ModeFresh); c.Failures[drill.KindRefused] == 0 {
		t.Errorf("stop and start refused nothing: %+v", c)
	}
	table, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(table), "(handoverd)"); n != 2*len(loads) {
		t.Errorf("%d cells of handoverd in the document, want %d:\n%s", n, 2*len(loads), table)
	}
}

// TestModeBlock: a reload's ratio is to the steady stretches, and what is found dead after its window is lost by it.
func TestModeBlock(t *testing.T) {
	ms := time.Millisecond
	r := drill.Report{
		Sent: 100, Failures: map[drill.Kind]int{drill.KindEOF: 6},
		Windows: []drill.WindowReport{
			{Name: steadyName, OK: 9, P99: 2 * ms},
			{Name: "2", OK: 9, Requests: 12, P99: 8 * ms, Max: 9 * ms, Blamed: map[drill.Kind]int{drill.KindEOF: 3}},
			{Name: steadyName, OK: 9, P99: 4 * ms, Blamed: map[drill.Kind]int{drill.KindEOF: 2}},
			{Name: "3", OK: 9, Requests: 9, P99: 2 * ms, Max: 2 * ms},
			{Name: steadyName, OK: 9, P99: 5 * ms},
			{Name: steadyName},
		},
	}
	got := newModeBlock(&r)
	if want := []window{{12, 5, 8, 9, 2}, {9, 0, 2, 2, 0.5}}; !slices.Equal(got.Windows, want) {
		t.Errorf("windows %+v, want %+v", got.Windows, want)
	}
	if got.SteadyP99 != 4 || got.Outside != 3 {
		t.Errorf("steady %v ms, %d failures outside of windows, want 4 and 3", got.SteadyP99, got.Outside)
	}
	c := newCell("c", drill.ModeFresh, []block{{ReloadMS: []float64{1, 3}, GoneMS: []float64{5, 7}, Modes: map[string]modeBlock{string(drill.ModeFresh): got}}})
	if c.Reloads != 2 || c.Failed != 6 || c.PerReload != 3 || c.ReloadMS != 2 || c.WindowP99 != 5 || c.Ratio != 1.25 || c.Longest != 9 {
		t.Errorf("cell %+v", c)
	}
	text, err := json.Marshal(c.Windows)
	if err != nil {
		t.Fatal(err)
	}
	var back []window
	if err := json.Unmarshal(text, &back); err != nil || !slices.Equal(back, c.Windows) {
		t.Errorf("%s becomes %+v (%v)", text, back, err)
	}
}
