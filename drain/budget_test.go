package drain_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/handoverd/handover/drain"
)

func TestBudget(t *testing.T) {
	const s = time.Second
	tests := []struct {
		budget drain.Budget
		want   string // "" is fine
	}{
		{drain.Budget{Key: "parent_shutdown", Limit: 900 * s, KillGrace: 5 * s}, ""},
		{drain.Budget{Key: "deadline", Limit: 25 * s, LameDuck: 10 * s, KillGrace: 5 * s}, ""},
		{drain.Budget{Key: "parent_shutdown", Limit: s}, ""},
		{drain.Budget{Key: "grace", Limit: 30 * s, Hook: 5 * s, LameDuck: 5 * s, Drain: 13 * s, KillGrace: 5 * s, Margin: 2 * s}, ""},
		{drain.Budget{Key: "grace", Limit: 30 * s, Hook: 5 * s, LameDuck: 5 * s, Drain: 14 * s, KillGrace: 5 * s, Margin: 2 * s}, "hook = 5s, lame_duck.max = 5s, drain = 14s, kill_grace = 5s and margin = 2s take 31s, which is 1s too long"},
		{drain.Budget{Key: "grace", Limit: 30 * s, Hook: 30 * s}, "hook = 30s leaves no time to drain"},
		{drain.Budget{Key: "grace", Limit: 30 * s, Hook: 15 * s, Margin: 15 * s}, "hook = 15s and margin = 15s leave no time to drain"},
		{drain.Budget{Key: "grace", Limit: 30 * s, Drain: 31 * s}, "1s too long"},
		{drain.Budget{Key: "grace", Limit: 30 * s, Margin: -s}, "margin = -1s must not be negative"},
		{drain.Budget{Key: "grace", Limit: 30 * s, Hook: -s}, "hook = -1s must not be negative"},
		{drain.Budget{Key: "grace", Limit: 30 * s, Drain: -s}, "drain = -1s must not be negative"},
		{drain.Budget{Key: "parent_shutdown", Limit: 5 * s, KillGrace: 5 * s}, "kill_grace = 5s leaves no time to drain"},
		{drain.Budget{Key: "parent_shutdown", Limit: 0}, "must be longer than 0s"},
		{drain.Budget{Key: "parent_shutdown", Limit: s, KillGrace: -1}, "kill_grace = -1ns must not be negative"},
		{drain.Budget{Key: "deadline", Limit: s, LameDuck: -1}, "lame_duck.max = -1ns must not be negative"},
		{drain.Budget{Key: "deadline", Limit: 25 * s, LameDuck: 20 * s, KillGrace: 5 * s}, "lame_duck.max = 20s and kill_grace = 5s leave no time to drain"},
		{drain.Budget{Key: "deadline", Limit: 2, LameDuck: 1<<63 - 1, KillGrace: 1}, "leave no time"},
	}
	for _, tt := range tests {
		err := tt.budget.Check()
		if tt.want == "" {
			if err != nil {
				t.Errorf("%+v: %v", tt.budget, err)
			}
			continue
		}
		if _, ok := errors.AsType[*drain.BudgetError](err); !ok || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.budget.Key) {
			t.Errorf("%+v: got %v, want a *BudgetError with %q", tt.budget, err, tt.want)
		}
	}
}

func TestBudgetLines(t *testing.T) {
	const s = time.Second
	b := drain.Budget{Key: "terminationGracePeriodSeconds", Limit: 30 * s, Hook: 5 * s, LameDuck: 4 * s, Drain: 10 * s, KillGrace: 5 * s, Margin: 2 * s}
	want := "" +
		"0s   5s   pre-stop hook  counts against the limit; SIGTERM at its end\n" +
		"5s   9s   lame duck      at most; serves on\n" +
		"9s   19s  drain          accepts nothing new\n" +
		"19s  24s  kill grace     told a last time at its begin\n" +
		"24s  28s  not used\n" +
		"28s  30s  margin\n" +
		"30s       SIGKILL  terminationGracePeriodSeconds\n"
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("time line (-want +got):\n%s", d)
	}
	b.Drain = 0
	for _, l := range b.Lines() {
		if l.Name == "drain" && l.To-l.From != 14*s || l.Name == "not used" {
			t.Errorf("without Drain: %+v", l)
		}
	}
	b.Hook = 30 * s
	if got := b.Lines()[0].Note; !strings.Contains(got, "SIGKILL 2s later") {
		t.Errorf("a hook as long as the grace: %q", got)
	}
}

// What Check accepts is a time line without a gap or an overlap that ends with
// the limit and has a drain.
func TestBudgetLinesFillTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := func(name string) time.Duration {
			return time.Duration(rapid.Int64Range(0, 40).Draw(t, name)) * time.Second
		}
		b := drain.Budget{Key: "k", Limit: d("limit"), Hook: d("hook"), LameDuck: d("duck"), Drain: d("drain"), KillGrace: d("kill"), Margin: d("margin")}
		if b.Check() != nil {
			return
		}
		var at time.Duration
		drained := false
		for _, l := range b.Lines() {
			if l.From != at || l.To <= l.From {
				t.Fatalf("%+v: line %+v after %v", b, l, at)
			}
			at, drained = l.To, drained || l.Name == "drain"
		}
		if at != b.Limit || !drained {
			t.Fatalf("%+v: ends at %v, drain %v", b, at, drained)
		}
	})
}
