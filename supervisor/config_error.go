package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ConfigError is one thing wrong with a configuration. Parse, Load and
// FromFlags return all they find, in the order of lines, joined by
// errors.Join; each is found by errors.As, and all by AllConfigErrors.
type ConfigError struct {
	// File is the name the configuration was read under, "" for flags.
	File string
	// Line counts from 1; 0 for flags.
	Line int
	// Key is the dotted key ("service.web.retire.signal") or the flag
	// ("--signal"), "" when the error belongs to none.
	Key string
	// Err says what is wrong; errNotYet (by errors.Is) when the key is known
	// and this version cannot do what it asks.
	Err error
}

func (e *ConfigError) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
		}
		b.WriteString(": ")
	}
	if e.Key != "" {
		b.WriteString(e.Key)
		b.WriteString(": ")
	}
	fmt.Fprint(&b, e.Err)
	return b.String()
}

// Unwrap returns Err.
func (e *ConfigError) Unwrap() error { return e.Err }

// errNotYet is what a ConfigError wraps when a key of a later version is
// set: refusing it is the only honest answer, since ignoring it would leave
// the operator believing in a policy that nobody applies.
var errNotYet = errors.New("not supported yet in this version")

// What tables lack that have no key of their own to blame.
var (
	errNoTarget = errors.New("socket or address is missing: whom to ask")
	errNoGate   = errors.New(`exec or http is missing: who has to agree`)
)

// AllConfigErrors returns every ConfigError in err, in order.
func AllConfigErrors(err error) []*ConfigError {
	// The tree is walked by hand, since errors.As finds only the first.
	switch u := any(err).(type) {
	case *ConfigError:
		return []*ConfigError{u}
	case interface{ Unwrap() []error }:
		var all []*ConfigError
		for _, e := range u.Unwrap() {
			all = append(all, AllConfigErrors(e)...)
		}
		return all
	case interface{ Unwrap() error }:
		return AllConfigErrors(u.Unwrap())
	}
	return nil
}

// joinConfigErrors returns nil for none.
func joinConfigErrors(list []*ConfigError) error {
	slices.SortStableFunc(list, func(a, b *ConfigError) int { return a.Line - b.Line })
	errs := make([]error, len(list))
	for i, e := range list {
		errs[i] = e
	}
	return errors.Join(errs...)
}

// nearest returns the candidate closest to s, or "" when none is close
// enough that s may be a slip of it.
func nearest(s string, candidates []string) string {
	best, bestDistance := "", 1+max(1, len(s)/3)
	for _, c := range candidates {
		if d := editDistance(s, c, bestDistance); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// editDistance is the number of bytes to insert, delete, replace or swap
// with a neighbour to turn a into b; limit stands for anything of at least
// limit.
func editDistance(a, b string, limit int) int {
	if d := len(a) - len(b); d >= limit || -d >= limit {
		return limit
	}
	var before []int
	prev := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev = prev, row
	}
	return min(prev[len(b)], limit)
}

// didYouMean is "" or a clause that names the nearest candidate.
func didYouMean(s string, candidates []string) string {
	if c := nearest(s, candidates); c != "" {
		return fmt.Sprintf("; did you mean %q?", c)
	}
	return ""
}
