package supervisor

import (
	"bytes"
	"encoding/json"
	"slices"
)

// Previous is what served before the spec that serves now, and was good: what a
// rollback goes to.
type Previous struct {
	Spec       *Spec       `json:"spec"`
	Executable *Executable `json:"executable,omitempty"`
	Gen        int         `json:"gen"` // that a reload had committed with it
	Job        int         `json:"job"` // the reload that replaced it
}

// backTo are the services that a rollback is of: those that are named and have
// something to go back to, or else those that the last reload changed. A service that
// it did not touch does not go back with the others to what may be months old.
func (m *machine) backTo(named []string) []string {
	last := 0
	for _, svc := range m.s.Services {
		if p := svc.Previous; p != nil && !svc.Removed {
			last = max(last, p.Job)
		}
	}
	var out []string
	for _, name := range m.s.Order {
		svc := m.s.Services[name]
		if svc.Previous == nil || svc.Removed {
			continue
		}
		if named == nil && svc.Previous.Job == last || slices.Contains(named, name) {
			out = append(out, name)
		}
	}
	if len(out) < len(named) {
		return nil // all of those that are named, or none
	}
	return out
}

// succeeds keeps what served before g, which is being committed, as what a rollback
// goes to: if that was another program or another spec, and was good. One that had
// crashed when it was replaced is not; then what was good before it stays.
func (m *machine) succeeds(svc *Service, g *Generation) {
	switch {
	case g.Why == WhyRollback:
		svc.Previous = nil // what it leaves is not what anybody wants back
	case g.Why == WhyReload && svc.Good && svc.worked() && svc.differs(g):
		p := &Previous{Spec: svc.Spec, Executable: svc.Executable, Gen: svc.SpecGen}
		if u := svc.Upgrade; u != nil && u.Gen == g.N {
			p.Job = slices.Max(u.Jobs)
		}
		svc.Previous = p
	}
	if !svc.Good || g.Why == WhyReload || g.Why == WhyRollback {
		svc.SpecGen = g.N
	}
	svc.Executable = g.Executable
}

// worked reports whether the last good spec was not crashing.
func (svc *Service) worked() bool { return svc.Failures == 0 }

// differs reports whether g is another program or another spec than the last good one.
func (svc *Service) differs(g *Generation) bool {
	a, b := *svc.Spec, *g.Spec
	a.Digest, b.Digest = "", "" // of the whole file: others may have changed in it
	if !bytes.Equal(a.text(), b.text()) {
		return true
	}
	was, is := svc.Executable, g.Executable
	return was != nil && is != nil && !is.Script && !was.same(is)
}

// text is the spec as it is written, by which two are compared: one may have come from
// the state file, and JSON does not tell an empty list from none.
func (s *Spec) text() []byte {
	b, err := json.Marshal(s)
	if err != nil { // it is written each turn
		return nil
	}
	return b
}

// What restart.keep_executable may say.
const (
	keepAuto = "auto"
	keepNone = "none"
)

// Executable is the file that a generation runs, so that a restart can run the same
// when the file has been replaced or overwritten.
type Executable struct {
	Dev  uint64 `json:"dev"`
	Ino  uint64 `json:"ino"`
	Size int64  `json:"size"`
	// Modified and Changed are its times of modification and of change (inode(7)), in
	// nanoseconds. Whatever is done to its content changes them.
	Modified int64 `json:"modified_ns"`
	Changed  int64 `json:"changed_ns"`
	// Script: it begins with #!, and what runs is its interpreter. It is not kept.
	Script bool `json:"script,omitempty"`
	// Digest is the SHA-256 of its content, in hex, once it was read after the commit.
	Digest string `json:"digest,omitempty"`
	// Copy is how its content is kept beside the file itself: "reflink", "memory", or ""
	// for not.
	Copy string `json:"copy,omitempty"`
}

// same reports whether it is the same file with, as far as its times tell, the same
// content, or one with the same content.
func (e *Executable) same(other *Executable) bool {
	if e.Digest != "" && e.Digest == other.Digest {
		return true
	}
	return e.Dev == other.Dev && e.Ino == other.Ino && e.Size == other.Size && e.Modified == other.Modified && e.Changed == other.Changed
}

// kept notes what was read of an executable, wherever it is the one.
func (m *machine) kept(e *Executable) {
	if e == nil || e.Digest == "" {
		return
	}
	update := func(p **Executable) {
		if *p != nil && (*p).same(e) && (*p).Digest == "" {
			*p = e
		}
	}
	for _, svc := range m.s.Services {
		update(&svc.Executable)
		if svc.Previous != nil {
			update(&svc.Previous.Executable)
		}
		for _, g := range svc.Generations {
			if g.PID != 0 {
				update(&g.Executable)
			}
		}
	}
}

// known are the specs, and executables, of a job that needs no configuration: what a
// rollback goes back to, and what serves.
func (s *State) known(j *Job) (specs map[string]*Spec, exes map[string]*Executable) {
	specs, exes = map[string]*Spec{}, map[string]*Executable{}
	for _, name := range j.Services {
		svc := s.Services[name]
		switch {
		case svc == nil || svc.Removed:
		case j.Why == WhyRollback && svc.Previous != nil:
			specs[name], exes[name] = svc.Previous.Spec, svc.Previous.Executable
		case j.Why == WhyRepair && svc.Good && svc.Serving() != nil:
			specs[name], exes[name] = svc.Spec, svc.Executable
		}
	}
	return specs, exes
}
