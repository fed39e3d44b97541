package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestMain is the server under test where it is started as such.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == serverVerb {
		os.Exit(runServer(os.Args[2:]))
	}
	os.Exit(m.Run())
}

func executable(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// limited is a context that ends a test which hangs.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// TestWaysToLeave is a short form of the first table: package drain loses nothing with any kind of client, and the same
// clients see what a program loses that exits at once.
func TestWaysToLeave(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs servers under load")
	}
	for _, c := range brief.columns() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			cells, err := runColumn(limited(t), programs{own: executable(t)}, c, brief, []way{wayExit, wayDrain})
			if err != nil {
				t.Fatal(err)
			}
			exit, drained := cells[0], cells[1]
			// Short requests are in flight at a given moment only now and then.
			for range 10 {
				if exit.Lost > 0 {
					break
				}
				if cells, err = runColumn(limited(t), programs{own: executable(t)}, c, brief, []way{wayExit}); err != nil {
					t.Fatal(err)
				}
				exit = cells[0]
			}
			if exit.Lost == 0 {
				t.Errorf("exit at once: lost nothing of %d %s in %d stops: would a loss be seen?", exit.Total, c.Unit, exit.Stops)
			}
			if drained.Lost != 0 || drained.Total < c.Target {
				t.Errorf("package drain: lost %d of %d %s (%v), want 0 of at least %d", drained.Lost, drained.Total, c.Unit, drained.Kinds, c.Target)
			}
			if n := drained.Exits["exit 0"]; n != drained.Stops+1 {
				t.Errorf("package drain: generations ended by %v, want all %d by exit 0", drained.Exits, drained.Stops+1)
			}
			t.Logf("exit at once: %d of %d lost; package drain: %d of %d, %v", exit.Lost, exit.Total, drained.Lost, drained.Total, drained.Notes)
		})
	}
}

// TestBehindABalancer is a short form of the second table, with a balancer that learns half a second late: the three loops
// lose nothing, and a program that leaves before the balancer knows is seen to lose.
func TestBehindABalancer(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs balancers under load")
	}
	wants := map[string]struct{ loses bool }{
		"timer-800ms": {}, "probes-then": {}, "acknowledged": {}, "probes-3": {loses: true}, "nginx": {loses: true},
	}
	var rows []row
	for _, r := range briefPace.rows() {
		if _, ok := wants[r.Name]; ok {
			rows = append(rows, r)
		}
	}
	if len(rows) != len(wants) {
		t.Fatalf("rows: %v, want those of %v", rows, wants)
	}
	lines, err := runRows(limited(t), executable(t), briefPace, rows)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		if lost := l.Lost > 0; lost != wants[l.Name].loses || len(l.Stops) != briefPace.stops {
			t.Errorf("%s: lost %d of %d in %d stops (%v), want a loss: %v", l.Name, l.Lost, l.Total, len(l.Stops), l.Kinds, wants[l.Name].loses)
		}
		t.Logf("%s: %d of %d lost, %+v", l.Name, l.Lost, l.Total, l.Stops)
	}
}

// TestCheckSeesLosses: the command must not end well when package drain lost something.
func TestCheckSeesLosses(t *testing.T) {
	good := tally{Total: 10}
	bad := tally{Total: 10, Lost: 1}
	tests := map[string]struct {
		r    results
		fine bool
	}{
		"nothing lost":          {results{Cells: []cell{{Way: wayExit, tally: bad}, {Way: wayDrain, tally: good}}}, true},
		"drain lost":            {results{Cells: []cell{{Way: wayDrain, tally: bad}}}, false},
		"one timer is enough":   {results{Lines: []line{{row: row{Sweep: true}, tally: bad}, {row: row{Sweep: true}, tally: good}}}, true},
		"no timer":              {results{Lines: []line{{row: row{Sweep: true}, tally: bad}}}, false},
		"acknowledged lost":     {results{Lines: []line{{row: row{Name: "acknowledged"}, tally: bad}}}, false},
		"probes alone may lose": {results{Lines: []line{{row: row{Name: "probes"}, tally: bad}}}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if err := tt.r.check(); (err == nil) != tt.fine {
				t.Errorf("check() = %v, want no error: %v", err, tt.fine)
			}
		})
	}
}

// TestTablesAreThoseOfTheFigures: docs/DRAIN.md is written by the command alone.
func TestTablesAreThoseOfTheFigures(t *testing.T) {
	want, err := os.ReadFile("../../docs/DRAIN.md")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "DRAIN.md")
	if err := renderFile("../../docs/drain.json", file); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("docs/DRAIN.md is not what drain.json says, run go run ./internal/drainbench -render (-is +should be):\n%s", diff)
	}
}
