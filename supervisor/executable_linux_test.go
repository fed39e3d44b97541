package supervisor

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/shim"
)

// copyOf copies a program to a path of its own.
func copyOf(t *testing.T, program, path string) {
	t.Helper()
	found, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(found)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
}

// keptProgramAt keeps what is at a path, as after a commit.
func keptProgramAt(t *testing.T, path string) (*loop, *keptFile) {
	t.Helper()
	is, err := lookAtExecutable(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := openProgram(path, 0, is)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return &loop{log: slog.New(slog.DiscardHandler), programs: map[string]*keptFile{p.is.Digest: p}}, p
}

// A restart runs what served: from its path while that is the file, from the open file when the path has been given to
// another one, from the copy when the file has been overwritten in place.
func TestToRun(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(t *testing.T, path string)
		want   func(p *keptFile) int
		says   string
	}{
		"the same":   {func(*testing.T, string) {}, func(*keptFile) int { return -1 }, ""},
		"only moved": {func(t *testing.T, path string) { _ = os.Link(path, path+".link") }, func(p *keptFile) int { return p.file }, "its open file"},
		"replaced": {func(t *testing.T, path string) {
			copyOf(t, "false", path+".new")
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}, func(p *keptFile) int { return p.file }, "its open file"},
		"removed":     {func(t *testing.T, path string) { _ = os.Remove(path) }, func(p *keptFile) int { return p.file }, "its open file"},
		"overwritten": {func(t *testing.T, path string) { copyOf(t, "false", path) }, func(p *keptFile) int { return p.copy }, "its copy"},
		"overwritten by as many bytes, with its time": {func(t *testing.T, path string) {
			before, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, make([]byte, before.Size()), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, before.ModTime(), before.ModTime()); err != nil {
				t.Fatal(err)
			}
		}, func(p *keptFile) int { return p.copy }, "its copy"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "program")
			copyOf(t, "true", path)
			l, p := keptProgramAt(t, path)
			if p.copy < 0 || p.is.Copy == "" || len(p.is.Digest) != 64 {
				t.Fatalf("kept as %+v, copy %d", p.is, p.copy)
			}
			tt.change(t, path)
			r := l.toRun(&Generation{Spec: &Spec{Path: path}, Executable: p.is})
			if r.fd != tt.want(p) || !strings.Contains(r.note, tt.says) || (r.note == "") != (tt.says == "") {
				t.Errorf("it runs descriptor %d (%q), want %d, %q; file %d, copy %d", r.fd, r.note, tt.want(p), tt.says, p.file, p.copy)
			}
			if r.is == nil || r.is.Digest != p.is.Digest {
				t.Errorf("what runs is %+v, want %s", r.is, p.is.Digest)
			}
			if r.fd >= 0 { // it is what served, and can be run
				cmd := exec.Command("/proc/self/fd/3")
				dup, err := unix.FcntlInt(uintptr(r.fd), unix.F_DUPFD_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				f := os.NewFile(uintptr(dup), "program")
				cmd.ExtraFiles = []*os.File{f}
				if err := cmd.Run(); err != nil {
					t.Errorf("what is kept of true(1) ends with %v", err)
				}
				_ = f.Close()
			}
		})
	}
}

// What was not kept is run as it is, and that is said.
func TestToRunWhatWasNotKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	copyOf(t, "true", path)
	l, p := keptProgramAt(t, path)
	copyOf(t, "false", path)
	for digest, want := range map[string]string{"": "not kept", "another": "not kept"} {
		is := *p.is
		is.Digest = digest
		if r := l.toRun(&Generation{Spec: &Spec{Path: path}, Executable: &is}); r.fd != -1 || !strings.Contains(r.note, want) || r.is.Digest != "" {
			t.Errorf("digest %q: %+v", digest, r)
		}
	}
	// No copy: too large for the memory.
	without := *p
	without.copy = -1
	l.programs[p.is.Digest] = &without
	if r := l.toRun(&Generation{Spec: &Spec{Path: path}, Executable: p.is}); r.fd != -1 || !strings.Contains(r.note, "no copy") {
		t.Errorf("without a copy: %+v", r)
	}
	// A reload runs what is there, and says nothing.
	if r := l.toRun(&Generation{Spec: &Spec{Path: path}}); r.fd != -1 || r.note != "" || r.is == nil {
		t.Errorf("a reload: %+v", r)
	}
	if r := l.toRun(&Generation{Spec: &Spec{Path: path + ".none"}}); r.fd != -1 || r.is != nil {
		t.Errorf("nothing there: %+v", r)
	}
}

func TestScriptIsNotKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	is, err := lookAtExecutable(path)
	if err != nil || !is.Script {
		t.Fatalf("%+v, %v", is, err)
	}
	l := &loop{}
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if r := l.toRun(&Generation{Spec: &Spec{Path: path}, Executable: is}); r.fd != -1 || r.note != "" {
		t.Errorf("%+v", r)
	}
}

// A copy in memory cannot be changed, and what replaced the file before it was read is not taken for it.
func TestOpenProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	copyOf(t, "true", path)
	is, err := lookAtExecutable(path)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := openSame(path, is)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	m, err := inMemory("program", fd, is.Size)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(m) }()
	if _, err := unix.Pwrite(m, []byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("written to the copy: %v", err)
	}
	a, err := digestFD(fd)
	b, err2 := digestFD(m)
	if err := errors.Join(err, err2); err != nil || a != b {
		t.Errorf("the copy has %s and the file %s (%v)", b, a, err)
	}
	copyOf(t, "false", path+".new")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if p, err := openProgram(path, 0, is); err == nil {
		t.Errorf("another file is kept: %+v", p.is)
	}
	// The one that runs is found by its process.
	sleep := filepath.Join(t.TempDir(), "sleep")
	copyOf(t, "sleep", sleep)
	if is, err = lookAtExecutable(sleep); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(sleep, "1000")
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	if err := os.Remove(sleep); err != nil {
		t.Fatal(err)
	}
	p, err := openProgram(sleep, cmd.Process.Pid, is)
	if err != nil {
		t.Fatal(err)
	}
	p.close()
}

// What nothing refers to is closed; what is on its way into the state is not.
func TestDropPrograms(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	copyOf(t, "true", path)
	l, p := keptProgramAt(t, path)
	l.queue(evKept{p.is})
	l.dropPrograms()
	l.pending = nil
	svc := &Service{Name: "web", Previous: &Previous{Executable: p.is}}
	l.state = State{Services: map[string]*Service{"web": svc}}
	l.dropPrograms()
	if len(l.programs) != 1 {
		t.Fatal("it was dropped")
	}
	svc.Previous = nil
	l.dropPrograms()
	if len(l.programs) != 0 {
		t.Error("it is kept for nothing")
	}
	if _, err := statExecutable(p.file); !errors.Is(err, unix.EBADF) {
		t.Errorf("its file is open: %v", err)
	}
	p.file, p.copy = -1, -1 // closed
}

// Where its name cannot be made, for want of space, what is kept runs all the same.
func TestChooseWithoutAName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	copyOf(t, "true", path)
	l, p := keptProgramAt(t, path)
	copyOf(t, "false", path+".new")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	l.s, l.dir = &Supervisor{}, &runtimeDir{path: t.TempDir()}
	c, spec := &child{at: at{"web", 2}}, &shim.Spec{Path: path, Targets: []int{3, 4}}
	g := &Generation{Spec: &Spec{Path: path}, Executable: p.is}
	pass := l.choose(c, g, spec, []int{10, 11})
	if named, err := os.Readlink(spec.Path); err != nil || named != "/proc/self/fd/5" || filepath.Base(spec.Path) != "program" {
		t.Errorf("it is executed as %s, %q (%v)", spec.Path, named, err)
	}
	if len(pass) != 3 || pass[2] != p.file || spec.ExecTarget != 5 {
		t.Errorf("given %v at %v, to be executed %d", pass, spec.Targets, spec.ExecTarget)
	}
	l.dir = &runtimeDir{path: path} // no directory: nothing can be made in it
	spec = &shim.Spec{Path: path, Targets: []int{3, 4}}
	if pass := l.choose(c, g, spec, []int{10, 11}); spec.Path != "/proc/self/fd/5" || len(pass) != 3 {
		t.Errorf("without a name: %s, given %v", spec.Path, pass)
	}
}

// Where a program cannot be opened for want of descriptors it is kept as soon as there are some.
func TestKeptWhenThereAreDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	copyOf(t, "true", path)
	is, err := lookAtExecutable(path)
	if err != nil {
		t.Fatal(err)
	}
	a := at{"web", 1}
	gen := &Generation{N: 1, PID: 1, Spec: &Spec{Path: path}, Executable: is, Phase: PhaseServing}
	l := &loop{
		log: slog.New(slog.DiscardHandler), programs: map[string]*keptFile{}, unkept: map[at]bool{},
		calls: make(chan func(), 4), ended: make(chan struct{}),
		state: State{Services: map[string]*Service{"web": {Name: "web", Generations: []*Generation{gen}}}},
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Cur: 3, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	l.keepProgram(a)
	l.readers.Wait()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	(<-l.calls)()
	if len(l.programs) != 0 || !l.unkept[a] {
		t.Fatalf("without descriptors it is kept: %v", l.programs)
	}
	(<-l.calls)() // it is tried again
	(<-l.calls)()
	l.readers.Wait()
	if len(l.programs) != 1 || len(l.pending) != 1 || l.unkept[a] {
		t.Errorf("kept %v, events %v", l.programs, l.pending)
	}
	l.closePrograms()
}
