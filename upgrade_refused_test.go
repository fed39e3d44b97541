//go:build linux

package handover_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// Binaries that cannot take over. They are builds of this tree with a mistake in them, which the compiler is shown in
// place of the file that is there (go build -overlay): the product has no switch for it. One build makes all of them; each
// does what its name says.

// mistakes replaces text in files of the tree, each exactly once.
var mistakes = []struct{ file, old, new string }{
	{"supervisor/state_version.go", "const (\n\tStateVersion = 2\n\tOldestState  = StateVersion - 1\n)", `var (
	StateVersion = map[bool]int{false: 2, true: 1}[called("older")]
	OldestState  = StateVersion - 1
)

func called(name string) bool { return strings.HasSuffix(os.Args[0], "/"+name) }

func init() {
	if called("panics") {
		panic("a mistake of its init")
	}
	if called("leaves") {
		attr := &syscall.ProcAttr{Env: os.Environ(), Sys: &syscall.SysProcAttr{Setsid: true}, Files: []uintptr{0, 1, 2, 5, 6, 7, 8}}
		_, _ = syscall.ForkExec("/bin/sleep", []string{"sleep", "1000"}, attr)
		os.Exit(0)
	}
	for called("hangs") {
		time.Sleep(time.Hour)
	}
}

func slow() {
	_, _ = os.Stderr.WriteString("it takes its time\n")
	time.Sleep(4 * time.Second)
}
`},
	{"supervisor/state_version.go", "package supervisor\n", "package supervisor\n\nimport (\n\t\"os\"\n\t\"strings\"\n\t\"syscall\"\n\t\"time\"\n)\n"},
	{"supervisor/upgrade_take.go", "	taken, err := h.takeKept()\n", `	taken, err := h.takeKept()
	switch {
	case h.rehearsal:
	case called("late-panic"):
		panic("a mistake of its restore")
	case called("late-error"):
		return back, errors.New("a fault of its restore")
	case called("late-exit"):
		os.Exit(7)
	case called("late-slow"):
		slow()
		return back, errors.New("a fault of its restore, in the end")
	}
`},
	{"supervisor/upgrade_take.go", "	h := l.up.handed\n	if h == nil {\n		return\n	}\n	l.up.handed = nil\n", `	h := l.up.handed
	if h == nil {
		return
	}
	if called("turn-panic") {
		panic("a mistake of its first turn")
	}
	l.up.handed = nil
`},
}

// wrongBinaries builds them, once for the whole run, and returns where they are.
var wrongBinaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp(programs.dir, "wrong")
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	texts := map[string]string{}
	for _, m := range mistakes {
		if texts[m.file] == "" {
			text, err := os.ReadFile(m.file)
			if err != nil {
				return "", err
			}
			texts[m.file] = string(text)
		}
		if strings.Count(texts[m.file], m.old) != 1 {
			return "", fmt.Errorf("%s does not have once: %s", m.file, m.old)
		}
		texts[m.file] = strings.Replace(texts[m.file], m.old, m.new, 1)
	}
	for file, text := range texts {
		path, err := filepath.Abs(file)
		if err != nil {
			return "", err
		}
		replace[path] = filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(replace[path], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-X main.version=wrong",
		"-overlay", filepath.Join(dir, "overlay.json"), "-o", filepath.Join(dir, "wrong"), handoverdProgram)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return dir, nil
})

// wrong is a binary of wrongBinaries.
func wrong(t *testing.T, name string) string {
	t.Helper()
	Program(t, handoverdProgram) // makes the directory
	dir, err := wrongBinaries()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.Link(filepath.Join(dir, "wrong"), path); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	return path
}

// TestUpgradeRefused: a binary that cannot take over is refused, with the reason, and nothing else happens. One that
// fails only when it has taken the process over gives it back, and nothing is lost. After all of them a good one takes over.
func TestUpgradeRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	s := newScene(t, childService{})
	s.MustReload()
	fresh := s.fresh(s.address("web", "http"))
	generation, pid := s.Serving("web")
	keeper := keeperOf(s.Daemon, 0)
	children := len(childrenOf(t, s.PID, ""))
	asks := 0
	for _, tt := range []struct {
		name, why string
		more      []string
	}{
		{name: "panics", why: "a mistake of its init"},
		{name: "hangs", why: "it has not answered within 500ms, and was killed", more: []string{"--within", "500ms"}},
		{name: "older", why: "written by a newer handoverd: version 2, this build reads 0 and 1"},
		{name: "late-panic", why: "panic: a mistake of its restore"},
		{name: "late-error", why: "a fault of its restore"},
		{name: "turn-panic", why: "panic: a mistake of its first turn"},
		{name: "leaves", why: "it exited with status 0 without an answer"},
		{name: "/bin/false", why: "it has not answered: exit status 1"},
		{name: "/bin/true", why: "it exited with status 0 without an answer: it is no handoverd, or one that is older than upgrades"},
		{name: script(t, "handoverd"), why: "it is a script"},
		{name: "/nowhere/handoverd", why: "no such file or directory"},
		{name: s.ConfigFile(), why: "permission denied"},
	} {
		path := tt.name
		if !filepath.IsAbs(path) {
			path = wrong(t, path)
		}
		before := s.Log()
		code, out, text := s.upgradeTo(path, tt.more...)
		if code != 1 || out != "" || !strings.Contains(text, "handoverd: not upgraded: ") || !strings.Contains(text, tt.why) {
			t.Errorf("%s: exit code %d, want 1 with %q:\n%s%s", tt.name, code, tt.why, out, text)
		}
		asks++
		st := s.WaitStatus("it has ended", func(st *supervisor.Status) bool {
			return st.Ready && st.Upgrade != nil && st.Upgrade.ID == asks && st.Upgrade.Stage == ""
		})
		if st.PID != s.PID || st.Upgrade.Done || !strings.Contains(st.Upgrade.Fault, tt.why) || st.Version == "wrong" {
			t.Errorf("%s: status: pid %d (was %d), version %s, %+v", tt.name, st.PID, s.PID, st.Version, st.Upgrade)
		}
		if !strings.Contains(s.Log()[len(before):], "was not upgraded") {
			t.Errorf("%s: the log does not say it: %s", tt.name, s.Log()[len(before):])
		}
		if g, p := s.Serving("web"); g != generation || p != pid || keeperOf(s.Daemon, 0) != keeper {
			t.Errorf("%s: generation %d (pid %d) serves, was %d (pid %d)", tt.name, g, p, generation, pid)
		}
		if left := childrenOf(t, s.PID, ""); len(left) != children {
			t.Errorf("%s: left: %v", tt.name, left)
		}
		fresh.more(5)
	}
	s.upgrades("")
	s.MustReload()
	fresh.sees(generation + 1)
	fresh.end()
	eventually(t, "no zombie", func() bool { return len(zombiesOf(t, s.PID)) == 0 })
	s.Stop()
}

// script is one that would execute handoverd, as a wrapper does.
func script(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, fmt.Appendf(nil, "#!/bin/sh\nexec %s \"$@\"\n", Program(t, handoverdProgram)), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestUpgradeLate: an end of the process that nothing can catch, as os.Exit or a crash of the runtime before the first turn,
// is an end of handoverd: the next start takes over what runs.
func TestUpgradeLate(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	s := newScene(t, childService{})
	generation, pid := s.Serving("web")
	fresh := s.fresh(s.address("web", "http"))
	if code, _, text := s.upgradeTo(wrong(t, "late-exit")); code != 5 {
		t.Errorf("exit code %d, want 5: %s", code, text)
	}
	if code := s.WaitExit(); code != 7 {
		t.Errorf("handoverd exited with %d", code)
	}
	s.Start()
	s.WaitReady()
	if g, p := s.Serving("web"); g != generation || p != pid {
		t.Errorf("generation %d (pid %d) serves, was %d (pid %d)", g, p, generation, pid)
	}
	fresh.more(50)
	fresh.end()
	s.Stop()
}

// TestUpgradeStopped: a SIGTERM that comes while a new image restores, and which it cannot obey since it goes back, is obeyed
// by the image before it.
func TestUpgradeStopped(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	s := newScene(t, childService{})
	upgrade := s.commanding("upgrade", "--binary", wrong(t, "late-slow"))
	s.WaitLog("it takes its time")
	s.Signal(unix.SIGTERM)
	if code := s.WaitExit(); code != 0 {
		t.Errorf("handoverd exited with %d", code)
	}
	<-upgrade.done
	if left := s.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if !strings.Contains(s.Log(), "a fault of its restore, in the end") {
		t.Error("the log does not say that the new image has gone back")
	}
}

// TestUpgradeSlow: a new image that does not come to its first turn is gone back from before systemd's watchdog would end
// handoverd.
func TestUpgradeSlow(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := NewDaemon(t)
	d.Configure(childService{}.toml(t, d))
	d.startUnder(t, []string{"WATCHDOG_USEC=3000000"})
	d.WaitReady()
	s := &scene{Daemon: d, t: t}
	if code, _, text := s.upgradeTo(wrong(t, "late-slow")); code != 1 || !strings.Contains(text, "it has not come to its first turn within 1s") {
		t.Errorf("exit code %d: %s", code, text)
	}
	if st := s.Status(); st.PID != d.PID || !st.Ready {
		t.Errorf("pid %d (was %d), ready %v", st.PID, d.PID, st.Ready)
	}
	d.Stop()
}

// TestUpgradeExecFails: an execve that fails, after all, changes nothing: neither the limit of open files, which package
// syscall lowers for it, its own and that of its programs, nor a descriptor.
func TestUpgradeExecFails(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	const ofPrograms = "1500 15000 files"
	d := NewDaemon(t)
	// A program in Go raises its limit by itself.
	sleeps := strings.ReplaceAll(plain("", sleeper, "1000"), "service.web", "service.sleeps")
	d.Configure(childService{}.toml(t, d) + sleeps)
	d.startUnder(t, nil, "prlimit", "--nofile=1500:15000")
	d.WaitReady()
	s := &scene{Daemon: d, t: t}
	s.events = s.Follow()
	fresh := s.fresh(s.address("web", "http"))
	text, err := os.ReadFile(Program(t, handoverdProgram))
	if err != nil {
		t.Fatal(err)
	}
	limit, open := openFilesLimit(t, s.PID), openFDs(t, s.PID)
	programs := func(when string) {
		t.Helper()
		if _, pid := s.Serving("sleeps"); openFilesLimit(t, pid) != ofPrograms {
			t.Errorf("%s: limit of open files of the program %q, want %q", when, openFilesLimit(t, pid), ofPrograms)
		}
	}
	programs("at the start")
	var binary, digest string
	var writer *os.File
	for n := 0; writer == nil; n++ {
		digest = s.Status().Digest
		s.edit(fmt.Sprintf("# round %d\n", n))
		binary = filepath.Join(t.TempDir(), fmt.Sprint("handoverd", n))
		if err := os.WriteFile(binary, text, 0o755); err != nil {
			t.Fatal(err)
		}
		writer = s.heldAtExec(binary)
		if n == 20 {
			t.Fatalf("the execve was never met")
		}
	}
	if got := openFilesLimit(t, s.PID); got != limit {
		t.Errorf("limit of open files %q, was %q", got, limit)
	}
	s.WaitStatus("the edited configuration serves, as a SIGHUP may have been lost", func(st *supervisor.Status) bool {
		return st.Digest != digest && st.Ready && len(st.Reloads) == 0 && len(st.Services[0].Generations) == 1
	})
	eventually(t, "no more descriptors than before", func() bool { return openFDs(t, s.PID) <= open })
	s.MustReload()
	programs("after the execve that failed")
	_ = writer.Close()
	s.upgrades(binary)
	if got := openFilesLimit(t, s.PID); got != limit {
		t.Errorf("limit of open files %q in the new image, was %q", got, limit)
	}
	s.MustReload()
	programs("after the upgrade")
	fresh.more(20)
	fresh.end()
	s.Stop()
}

// heldAtExec upgrades to the binary, and opens it for writing between the pre-flight and the execve: nobody can write to
// a program that runs, and nobody can run what somebody may write to (open(2), execve(2), ETXTBSY). It returns nil if it has
// not met that moment.
func (s *scene) heldAtExec(binary string) *os.File {
	upgrade := s.commanding("upgrade", "--binary", binary)
	var writer *os.File
	for ran := false; writer == nil; {
		f, err := os.OpenFile(binary, os.O_WRONLY, 0)
		switch {
		case err != nil:
			ran = true
		case ran:
			writer = f
		default: // it does not run yet, and must not meet this
			_ = f.Close()
			<-time.After(2 * time.Millisecond)
		}
		select {
		case <-upgrade.done: // too early or too late
			if writer != nil {
				_ = writer.Close()
			}
			return nil
		default:
		}
	}
	<-upgrade.done
	if upgrade.code == 1 && strings.Contains(upgrade.stderr, "execve: text file busy") {
		return writer
	}
	_ = writer.Close()
	return nil
}

func openFilesLimit(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "Max open files")
	line, _, _ := strings.Cut(after, "\n")
	return strings.Join(strings.Fields(line), " ")
}

// TestUpgradeBusy: an upgrade beside a reload is busy, one in a stop is refused, and a stop ends a pre-flight.
func TestUpgradeBusy(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	s := newScene(t, childService{ready: `bake = "60s"`})
	events := s.Follow()
	s.HUP()
	s.WaitEvent(events, "it bakes", func(e supervisor.Event) bool { return e.To == supervisor.PhaseBaking })
	if code, _, text := s.upgradeTo(""); code != 3 || !strings.Contains(text, "busy: a reload is under way") {
		t.Errorf("beside a reload: exit code %d, want 3: %s", code, text)
	}
	if code, _, text := s.command("reload", "--abort"); code != 0 {
		t.Fatalf("abort: exit code %d: %s", code, text)
	}
	s.WaitStatus("rolled back", func(st *supervisor.Status) bool { return len(st.Reloads) == 0 && len(st.Services[0].Generations) == 1 })
	hangs := s.commanding("upgrade", "--binary", wrong(t, "hangs"))
	s.WaitEvent(events, "the pre-flight", func(e supervisor.Event) bool { return e.Upgrade != nil })
	if code, _, text := s.upgradeTo(""); code != 3 || !strings.Contains(text, "another upgrade") {
		t.Errorf("beside an upgrade: exit code %d, want 3: %s", code, text)
	}
	begin := time.Now()
	s.Signal(unix.SIGTERM)
	s.ends(hangs, 1, "stopping")
	if code := s.WaitExit(); code != 0 || time.Since(begin) > supervisor.PreflightLimit {
		t.Errorf("handoverd exited with %d after %v", code, time.Since(begin))
	}
	if left := s.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
