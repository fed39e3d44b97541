package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// results is docs/drain.json. All that docs/DRAIN.md says of figures comes from it.
type results struct {
	Date    string   `json:"date"`
	Minutes float64  `json:"minutes"`
	Machine machine  `json:"machine"`
	Columns []column `json:"columns"`
	Cells   []cell   `json:"cells"`
	Pace    paceJSON `json:"pace"`
	Lines   []line   `json:"lines"`
}

type machine struct {
	CPU     string `json:"cpu"`
	Cores   int    `json:"cores"`
	Kernel  string `json:"kernel"`
	Go      string `json:"go"`
	HAProxy string `json:"haproxy"`
	Nginx   string `json:"nginx"`
}

// paceJSON is what the second table's text says of its balancers.
type paceJSON struct {
	Rate  float64 `json:"rate"`
	Stops int     `json:"stops"`
	Inter float64 `json:"inter_seconds"`
	Fall  int     `json:"fall"`
	Drain float64 `json:"longest_drain_seconds"`
}

func newResults(s size, p pace) *results {
	return &results{
		Date: time.Now().UTC().Format(time.DateOnly), Machine: thisMachine(), Columns: s.columns(),
		Pace: paceJSON{Rate: p.rate, Stops: p.stops, Inter: p.inter.Seconds(), Fall: p.fall, Drain: p.drain.Seconds()},
	}
}

func thisMachine() machine {
	m := machine{Cores: runtime.NumCPU(), Go: runtime.Version(), HAProxy: version("haproxy"), Nginx: version("nginx")}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	text, _ := os.ReadFile("/proc/cpuinfo") // proc_cpuinfo(5); without it the name stays empty
	for l := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(l, ":"); strings.TrimSpace(key) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	return m
}

// version is the first line of what the program says of itself.
func version(name string) string {
	path, err := systemProgram(name)
	if err != nil {
		return "not installed"
	}
	text, err := exec.Command(path, "-v").CombinedOutput()
	first, _, _ := bytes.Cut(text, []byte("\n"))
	if err != nil {
		return err.Error()
	}
	said, _, _ := strings.Cut(string(first), " 20") // without the date
	return strings.TrimPrefix(strings.TrimPrefix(said, "HAProxy version "), "nginx version: nginx/")
}

// check returns an error for each cell of package drain that lost something, and each of the three loops.
func (r *results) check() error {
	var err error
	for _, c := range r.Cells {
		if c.Way == wayDrain && c.Lost > 0 {
			err = errors.Join(err, fmt.Errorf("%s: package drain lost %d of %d: %v", c.Column, c.Lost, c.Total, c.Kinds))
		}
	}
	sweep, best := 0, false
	for _, l := range r.Lines {
		if l.Sweep {
			sweep++
			best = best || l.Lost == 0
		}
		if l.lossless() && l.Lost > 0 {
			err = errors.Join(err, fmt.Errorf("%s: lost %d of %d: %v", l.Name, l.Lost, l.Total, l.Kinds))
		}
	}
	if sweep > 0 && !best {
		err = errors.Join(err, errors.New("no timer of the sweep lost nothing"))
	}
	return err
}

// lossless says whether a row is one that has to lose nothing. Of the timers it is one of them.
func (r row) lossless() bool { return r.Name == "probes-then" || r.Name == "acknowledged" }

func (r *results) write(file string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// renderFile writes the tables from the figures.
func renderFile(figures, doc string) error {
	text, err := os.ReadFile(figures)
	if err != nil {
		return err
	}
	var r results
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("%s: %w", figures, err)
	}
	return os.WriteFile(doc, []byte(r.render()), 0o644)
}
