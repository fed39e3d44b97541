package drain

import (
	"fmt"
	"math"
	"strings"
	"text/tabwriter"
	"time"
)

// PlatformExtension is what Kubernetes gives once, and only to a container
// whose preStop hook has used up the grace: SIGTERM comes when the grace is
// over and SIGKILL 2 s later (kubelet, minimumGracePeriodInSeconds; "Pod
// Lifecycle", Termination of Pods). It is a rescue and no part of a plan, so no
// Budget counts on it.
const PlatformExtension = 2 * time.Second

// A Budget is the times of one stop or retirement, to be checked before they
// are used. They follow one another in the order of the fields. A zero part
// takes no time; all are 0 or positive.
type Budget struct {
	// Key names Limit in errors: "parent_shutdown", "deadline",
	// "terminationGracePeriodSeconds".
	Key string

	// Limit contains everything: SIGKILL comes when it is used up.
	Limit time.Duration

	// Hook is how long a pre-stop hook runs before SIGTERM. A platform's grace
	// counts from the begin of the hook, not from its end.
	Hook time.Duration

	// LameDuck is the longest the lame duck phase may take. 0 for a reload.
	LameDuck time.Duration

	// Drain is what the drain must have. 0 is whatever the others leave, which
	// must be more than nothing.
	Drain time.Duration

	// KillGrace is what SIGTERM comes before SIGKILL; inside a program it is
	// the share of the closers.
	KillGrace time.Duration

	// Margin is what must be left at the end, for a clock that is off, a busy
	// machine, the time from the last byte to the exit.
	Margin time.Duration
}

// A BudgetError is times that cannot work.
type BudgetError struct {
	Budget
	// Reason says which rule is broken and what would mend it.
	Reason string
}

// Error names the key, the times and the remedy.
func (e *BudgetError) Error() string {
	return fmt.Sprintf("drain: %s = %v: %s", e.Key, e.Limit, e.Reason)
}

// A part is one field of a Budget by the name that a configuration has for it.
type part struct {
	key  string
	name string
	time time.Duration
}

func (b Budget) parts() []part {
	return []part{
		{"hook", "pre-stop hook", b.Hook},
		{"lame_duck.max", "lame duck", b.LameDuck},
		{"drain", "drain", b.Drain},
		{"kill_grace", "kill grace", b.KillGrace},
		{"margin", "margin", b.Margin},
	}
}

// Check returns a *BudgetError when the parts do not fit into the limit: their
// sum may be the limit if Drain is given, and must be shorter if Drain is what
// is left. No part may be negative. A kill grace of 0 is allowed: SIGTERM is
// then sent just before SIGKILL.
func (b Budget) Check() error {
	if b.Limit <= 0 {
		return &BudgetError{b, "must be longer than 0s"}
	}
	var fixed []string
	for _, p := range b.parts() {
		if p.time < 0 {
			return &BudgetError{b, fmt.Sprintf("%s = %v must not be negative", p.key, p.time)}
		}
		if p.time > 0 {
			fixed = append(fixed, fmt.Sprintf("%s = %v", p.key, p.time))
		}
	}
	sum := b.sum()
	switch {
	case b.Drain == 0 && sum >= b.Limit && len(fixed) == 1:
		return &BudgetError{b, fixed[0] + " leaves no time to drain: it must be shorter"}
	case b.Drain == 0 && sum >= b.Limit:
		return &BudgetError{b, list(fixed) + " leave no time to drain: together they must be shorter"}
	case sum > b.Limit:
		return &BudgetError{b, fmt.Sprintf("%s take %v, which is %v too long", list(fixed), sum, sum-b.Limit)}
	}
	return nil
}

// sum adds the parts, none of them negative, and stops at the longest duration
// there is.
func (b Budget) sum() time.Duration {
	var sum time.Duration
	for _, p := range b.parts() {
		if p.time > math.MaxInt64-sum {
			return math.MaxInt64
		}
		sum += p.time
	}
	return sum
}

// list joins by comma, the last by "and".
func list(s []string) string {
	if len(s) < 2 {
		return strings.Join(s, "")
	}
	return strings.Join(s[:len(s)-1], ", ") + " and " + s[len(s)-1]
}

// A Line is one part of a Budget's time line.
type Line struct {
	// Name is what happens: "pre-stop hook", "lame duck", "drain", "kill
	// grace", "margin", and for what nobody has claimed "not used".
	Name string `json:"name"`

	// From and To are when, counted from the begin of the stop.
	From time.Duration `json:"from_ns"`
	To   time.Duration `json:"to_ns"`

	// Note says what happens at From, or what to know. May be empty.
	Note string `json:"note,omitempty"`
}

// Lines returns the time line in order, without the parts that take no time;
// the drain is always in it. A line may end after the limit, which Check
// refuses.
func (b Budget) Lines() []Line {
	var lines []Line
	var at time.Duration
	rest := max(b.Limit-b.sum(), 0)
	for _, p := range b.parts() {
		if p.name == "drain" && p.time == 0 {
			p.time, rest = rest, 0
		}
		if p.time <= 0 && p.name != "drain" {
			continue
		}
		end := at + max(p.time, 0)
		if end < at {
			end = math.MaxInt64
		}
		if p.name == "margin" && rest > 0 { // what nobody uses is at the end of the work
			lines = append(lines, Line{Name: "not used", From: at, To: at + rest})
			at, end, rest = at+rest, end+rest, 0
		}
		lines = append(lines, Line{Name: p.name, From: at, To: end, Note: b.note(p.name)})
		at = end
	}
	if rest > 0 {
		lines = append(lines, Line{Name: "not used", From: at, To: at + rest})
	}
	return lines
}

// note explains a line.
func (b Budget) note(name string) string {
	switch name {
	case "pre-stop hook":
		if b.Hook >= b.Limit {
			return "uses up the limit: SIGTERM at its end, SIGKILL " + PlatformExtension.String() + " later, once"
		}
		return "counts against the limit; SIGTERM at its end"
	case "lame duck":
		return "at most; serves on"
	case "drain":
		return "accepts nothing new"
	case "kill grace":
		return "told a last time at its begin"
	}
	return ""
}

// String is the time line as a table, one line each, the limit last.
func (b Budget) String() string {
	var s strings.Builder
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	row := func(from, to, name, note string) {
		line := from + "\t" + to + "\t" + name
		if note != "" {
			line += "\t" + note
		}
		// A strings.Builder takes everything.
		_, _ = fmt.Fprintln(w, line)
	}
	for _, l := range b.Lines() {
		row(l.From.String(), l.To.String(), l.Name, l.Note)
	}
	row(b.Limit.String(), "", "SIGKILL", b.Key)
	_ = w.Flush()
	return s.String()
}
