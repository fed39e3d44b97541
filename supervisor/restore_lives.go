package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/handoverd/handover/internal/proc"
)

// Terminations are how the lives of handoverd in one runtime directory have ended,
// as far as that remembers: a file system in memory forgets at a reboot. They are
// one's own share of the terminations that come without notice.
type Terminations struct {
	// Whole ended by a stop in which nothing was cut off.
	Whole int `json:"whole"`
	// Cut ended by a stop that had to cut something off, or in the middle of one.
	Cut int `json:"cut"`
	// NoNotice ended by SIGKILL, by the kernel for want of memory, by a crash of
	// handoverd or of the machine.
	NoNotice int `json:"no_notice"`
	// Last is how the one before this one ended: "whole", "cut", "no notice"; "" if
	// there was none.
	Last string `json:"last,omitempty"`
}

const (
	endWhole    = "whole"
	endCut      = "cut"
	endNoNotice = "no notice"
)

// lives is the file that remembers.
type lives struct {
	Terminations
	// Open is set while a handoverd lives: who finds it set comes after one that was
	// ended without notice.
	Open bool `json:"open"`
}

const livesFile = "terminations.json"

// beginLife judges how the last life ended, and marks that another one has begun. A
// file that cannot be read counts from nothing.
func (l *loop) beginLife() {
	stopping := l.found != nil && l.found.Stop != nil
	ends, err := l.dir.judge(stopping, l.up.handed != nil)
	l.ends = ends
	if !proc.Starved(err) { // else the file may be whole
		err = errors.Join(err, l.dir.writeLives(lives{Terminations: ends, Open: true}))
	}
	if err != nil {
		l.log.Warn("how handoverd's lives end is not counted in full", "err", err)
	}
}

// judge counts the last life, if it has not been counted at its end. stopping: its
// state says that it was killed in a stop, after a notice. goesOn: it is this one, after an upgrade.
func (d *runtimeDir) judge(stopping, goesOn bool) (Terminations, error) {
	b, err := readRegular(d.file(livesFile), 1<<20)
	if errors.Is(err, os.ErrNotExist) {
		return Terminations{}, nil
	}
	var f lives
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil || f.Whole < 0 || f.Cut < 0 || f.NoNotice < 0 {
		return Terminations{}, fmt.Errorf("%s: counted from nothing: %w", d.file(livesFile), errors.Join(err, errState))
	}
	switch {
	case goesOn:
	case f.Open && stopping:
		f.Cut++
		f.Last = endCut
	case f.Open:
		f.NoNotice++
		f.Last = endNoNotice
	}
	return f.Terminations, nil
}

// endLife marks that this life has ended in order. One that could not start does
// not count.
func (l *loop) endLife(startErr error) {
	t := l.ends
	switch {
	case startErr != nil:
	case l.code == 0:
		t.Whole++
		t.Last = endWhole
	default:
		t.Cut++
		t.Last = endCut
	}
	if err := l.dir.writeLives(lives{Terminations: t}); err != nil {
		l.log.Warn("how handoverd's life has ended is not counted", "err", err)
	}
}

func (d *runtimeDir) writeLives(f lives) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return d.replace(livesFile, b)
}
