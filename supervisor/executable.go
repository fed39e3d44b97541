package supervisor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/shim"
)

// maxCopy is the largest executable of which a copy is kept in memory, in bytes. A
// reflink shares the blocks of the file and has no limit.
const maxCopy = 128 << 20

// How the content of an executable is kept.
const (
	copyReflink = "reflink"
	copyMemory  = "memory"
)

// keptFile is an executable that is kept for a restart or a rollback: the file itself,
// which is enough when its path is given to another one, and a copy, since a descriptor
// and a hard link of a file that is overwritten in place run what is written. It owns
// its descriptors.
type keptFile struct {
	is     *Executable // with its digest
	file   int
	copy   int   // -1: none
	noCopy error // why
}

// outOfFiles reports whether an error is of RLIMIT_NOFILE or fs.file-max.
func outOfFiles(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }

var errTooLarge = fmt.Errorf("it is larger than %d MiB", maxCopy>>20)

func (p *keptFile) close() {
	for _, fd := range []int{p.file, p.copy} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// running is what a generation is about to run.
type running struct {
	is   *Executable // nil: not known
	fd   int         // borrowed; -1: what is at the path
	note string      // for the log; "": nothing is to be said
}

// toRun decides what a generation runs. A restart, a rollback and a repair run what the
// generation before them ran, and not what has taken the place of that file.
func (l *loop) toRun(g *Generation) running {
	now, err := lookAtExecutable(g.Spec.Path)
	want := g.Executable
	switch {
	case want == nil, want.Script, now != nil && now.same(want):
		if want != nil && now != nil && now.same(want) {
			now = want // with its digest
		}
		return running{is: now, fd: -1}
	}
	was := fmt.Sprintf("%s is not the file that served (%s)", g.Spec.Path, why(now, err))
	p := l.programs[want.Digest]
	switch {
	case want.Digest == "" || p == nil:
		return running{now, -1, was + ", which was not kept: it is run as it is now"}
	case p.intact():
		return running{p.is, p.file, was + ": that one is run, from its open file"}
	case p.copy >= 0:
		return running{p.is, p.copy, was + ": that one is run, from its copy"}
	}
	if now != nil && now.Size == want.Size && now.Size <= maxCopy { // the loop waits while it is read
		if digestOf, err := digestFile(g.Spec.Path); err == nil && digestOf == want.Digest {
			return running{want, -1, ""} // only touched
		}
	}
	return running{now, -1, was + ", of which no copy could be made: it is run as it is now"}
}

func why(now *Executable, err error) string {
	if now == nil {
		return err.Error()
	}
	return "it was replaced or overwritten since"
}

// intact reports whether the open file still has its content: all of it is read, as
// times can be set, unless it is too long for that.
func (p *keptFile) intact() bool {
	now, err := statExecutable(p.file)
	if err != nil || now.Size != p.is.Size || now.Modified != p.is.Modified {
		return false
	}
	if now.Changed == p.is.Changed || now.Size > maxCopy {
		return true
	}
	d, err := digestFD(p.file)
	return err == nil && d == p.is.Digest
}

// keepProgram keeps what a generation runs that has just been committed, unless it is
// kept already.
func (l *loop) keepProgram(a at) {
	_, g := l.generation(a)
	if g == nil || g.Executable == nil || g.Executable.Script || g.Executable.Digest != "" || g.Spec.Config.Restart.KeepExecutable == keepNone {
		return
	}
	for _, p := range l.programs {
		if p.is.same(g.Executable) {
			l.queue(evKept{p.is})
			return
		}
	}
	l.readers.Add(1) // Run waits for it
	go l.readProgram(a, g.Spec.Path, g.PID, g.Executable)
}

// readProgram opens, reads and copies an executable beside the loop: it may be large.
func (l *loop) readProgram(a at, path string, pid int, want *Executable) {
	defer l.readers.Done()
	p, err := openProgram(path, pid, want)
	l.call(func() {
		if err != nil {
			if outOfFiles(err) { // until there are some; by then it may have been replaced
				time.AfterFunc(tryAgain, func() { l.call(func() { l.keepProgram(a) }) })
			}
			if !l.unkept[a] {
				l.log.Warn("the program is not kept: a restart runs what is at its path then", "service", a.Service, "gen", a.Gen, "err", err)
			}
			l.unkept[a] = true
			return
		}
		delete(l.unkept, a)
		if l.programs[p.is.Digest] != nil {
			p.close()
		} else {
			l.programs[p.is.Digest] = p
		}
		if p.is.Copy == "" {
			l.log.Warn("of the program no copy is kept: if its file is overwritten in place a restart runs what was written",
				"service", a.Service, "gen", a.Gen, "bytes", p.is.Size, "err", p.noCopy)
		}
		l.queue(evKept{p.is})
	})
}

// usedPrograms are the digests that something in the state may still be run by.
func usedPrograms(s *State) map[string]bool {
	used := map[string]bool{}
	add := func(e *Executable) {
		if e != nil && e.Digest != "" {
			used[e.Digest] = true
		}
	}
	for _, svc := range s.Services {
		add(svc.Executable)
		if svc.Previous != nil {
			add(svc.Previous.Executable)
		}
		if svc.Upgrade != nil {
			add(svc.Upgrade.Executable)
		}
		for _, g := range svc.Generations {
			if g.Phase == PhaseStarting {
				add(g.Executable)
			}
		}
	}
	return used
}

// dropPrograms closes what nothing refers to any more. One whose event is on its way
// is not in the state yet.
func (l *loop) dropPrograms() {
	if len(l.programs) == 0 {
		return
	}
	used := usedPrograms(&l.state)
	for _, e := range l.pending {
		if e, ok := e.(evKept); ok {
			used[e.Executable.Digest] = true
		}
	}
	for digest, p := range l.programs {
		if !used[digest] {
			delete(l.programs, digest)
			p.close()
		}
	}
}

// takePrograms takes back what an earlier handoverd had kept. Of what it had not given to
// anybody the file is opened again, if it is still the same.
func (l *loop) takePrograms(taken map[string]int) {
	for _, svc := range l.state.Services {
		exes := map[*Executable]string{}
		if svc.Executable != nil && svc.Spec != nil {
			exes[svc.Executable] = svc.Spec.Path
		}
		if p := svc.Previous; p != nil && p.Executable != nil {
			exes[p.Executable] = p.Spec.Path
		}
		for is, path := range exes {
			if is.Digest == "" || l.programs[is.Digest] != nil {
				continue
			}
			p := &keptFile{is: is, file: takeNamed(taken, keptProgram+is.Digest), copy: takeNamed(taken, keptCopy+is.Digest)}
			if p.file < 0 && p.copy < 0 && l.up.dry {
				continue
			}
			if p.file < 0 && p.copy < 0 {
				l.readers.Add(1) // Run waits for it
				go l.readProgram(at{svc.Name, svc.SpecGen}, path, 0, is)
				continue
			}
			l.programs[is.Digest] = p
		}
		if !l.up.dry {
			l.keepProgram(at{svc.Name, svc.SpecGen}) // if the earlier one had no time for it
		}
	}
}

// takeNamed takes a descriptor out of those by name; -1 if it is not there.
func takeNamed(taken map[string]int, name string) int {
	fd, ok := taken[name]
	if !ok {
		return -1
	}
	delete(taken, name)
	return fd
}

// keepablePrograms adds the programs to what is to be kept for the next handoverd.
func (l *loop) keepablePrograms(add func(name string, fd int, id uint64)) {
	for _, digest := range slices.Sorted(maps.Keys(l.programs)) {
		p := l.programs[digest]
		if p.file >= 0 {
			add(keptProgram+digest, p.file, 1)
		}
		if p.copy >= 0 {
			add(keptCopy+digest, p.copy, 1)
		}
	}
}

// closePrograms is the end.
func (l *loop) closePrograms() {
	for digest, p := range l.programs {
		delete(l.programs, digest)
		p.close()
	}
}

// choose decides what the generation runs. A kept file goes to the shim as one more
// descriptor, which the program does not find open; and it gets a name in the runtime
// directory, since the kernel calls a process after the last part of what execve(2) was
// given. The caller owns nothing of it.
func (l *loop) choose(c *child, g *Generation, spec *shim.Spec, pass []int) []int {
	r := l.toRun(g)
	c.runs = r.is
	if r.note != "" {
		l.log.Warn(r.note, "service", c.Service, "gen", c.Gen)
		l.s.hub.send(Event{Kind: "note", Service: c.Service, Generation: c.Gen, Level: "warn", Text: r.note})
	}
	if r.fd < 0 {
		return pass
	}
	n := slices.Max(append([]int{firstFD}, spec.Targets...)) + 1
	name, folder := fmt.Sprintf("/proc/self/fd/%d", n), l.dir.file("exe", c.String())
	err := os.MkdirAll(folder, 0o711)
	if err == nil {
		c.run = folder
		spec.Path = filepath.Join(folder, filepath.Base(g.Spec.Path))
		err = os.Symlink(name, spec.Path)
	}
	if err != nil { // for want of space: it runs all the same, by the name of its descriptor
		spec.Path = name
		l.log.Warn("no name for the kept program: ps shows its number", "service", c.Service, "gen", c.Gen, "err", err)
	}
	spec.Targets, spec.ExecTarget = append(spec.Targets, n), n
	return append(pass, r.fd)
}
