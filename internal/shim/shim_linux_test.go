package shim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/fdleak"
)

func TestListenPIDIsTheProgramsOwnAndThePIDStays(t *testing.T) {
	fdleak.Snapshot(t)
	s := held()
	s.ListenPID = true
	s.Env = append(s.Env, "LISTEN_PID=1", "LISTEN_PIDFDID=77", marker+"=1", "LISTEN_FDS=0")
	p := startProgram(t, s, nil)
	comm := p.proc("cmdline")
	for comm == "" { // the kernel closes what tells Start of the execve before it has set the arguments
		comm = p.proc("cmdline")
	}
	if !strings.HasPrefix(comm, programName+"\x00") {
		t.Errorf("before go the process is %q", comm)
	}
	before, err := startTime(p.PID)
	if err != nil || before != p.StartTime {
		t.Errorf("start time %d, %v; Start said %d", before, err, p.StartTime)
	}
	if err := p.Go(); err != nil {
		t.Fatal(err)
	}
	if err := p.Result(); err != nil {
		t.Fatal(err)
	}
	p.line()
	want := fmt.Sprintf("PATH=/usr/bin:/bin\x00LISTEN_FDS=0\x00LISTEN_PID=%d\x00", p.PID)
	if d := cmp.Diff(want, p.proc("environ")); d != "" {
		t.Error(d)
	}
	if after, err := startTime(p.PID); err != nil || after != p.StartTime {
		t.Errorf("start time after exec %d, %v; want %d", after, err, p.StartTime)
	}
	if sid, err := unix.Getsid(p.PID); err != nil || sid != p.PID {
		t.Errorf("session %d, %v, want its own, %d", sid, err, p.PID)
	}
	if p.Pidfd() < 0 {
		t.Error("no pidfd")
	} else if err := unix.PidfdSendSignal(p.Pidfd(), unix.SIGKILL, nil, 0); err != nil {
		t.Error(err)
	}
	if ws := p.exit(); ws.Signal() != unix.SIGKILL {
		t.Errorf("wait status %#x", ws)
	}
}

func TestDescriptorsLandAtTheirNumbersAndNoOtherLeaks(t *testing.T) {
	for _, n := range []int{0, 1, 3, 252, 253, 300, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			fdleak.Snapshot(t)
			fds, links := sockets(t, n)
			s := held()
			want := map[int]string{0: devNull}
			for i := range fds {
				s.Targets = append(s.Targets, 3+i)
				want[3+i] = links[i]
			}
			checkFiles(t, runHeld(t, s, fds), want)
		})
	}
}

// checkFiles compares all but the two outputs, which are a pipe.
func checkFiles(t *testing.T, p *program, want map[int]string) {
	t.Helper()
	got := p.files()
	want[1], want[2] = got[1], got[2]
	if !strings.HasPrefix(got[1], "pipe:") || got[1] != got[2] {
		t.Errorf("outputs %q %q", got[1], got[2])
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestAStrayInheritableDescriptorStaysOut(t *testing.T) {
	fds, links := sockets(t, 2)
	strays, _ := sockets(t, 3)
	for i, at := range []int{0, 40, 900} { // between the targets and above
		if at != 0 {
			if err := unix.Dup3(strays[i], at, 0); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Close(at) })
		} else if _, err := unix.FcntlInt(uintptr(strays[i]), unix.F_SETFD, 0); err != nil {
			t.Fatal(err)
		}
	}
	s := held()
	s.Targets = []int{3, 60}
	checkFiles(t, runHeld(t, s, fds), map[int]string{0: devNull, 3: links[0], 60: links[1]})
}

func TestTargetsMayBeAnyPermutation(t *testing.T) {
	const n = 12
	// In the child the received descriptors get the lowest free numbers, 5 and
	// up or so: each order makes chains and cycles among those and the targets.
	orders := map[string]func(i int) int{
		"reversed": func(i int) int { return 3 + n - 1 - i },
		"rotated":  func(i int) int { return 3 + (i+1)%n },
		"swapped":  func(i int) int { return 3 + (i ^ 1) },
		"spread":   func(i int) int { return 3 + 7*i },
		"standard": func(i int) int { return []int{0, 3, 4, 9, 8, 7, 5, 6, 20, 10, 11, 12}[i] },
	}
	for name, order := range orders {
		t.Run(name, func(t *testing.T) {
			fds, links := sockets(t, n)
			s := held()
			want := map[int]string{0: devNull}
			for i := range fds {
				s.Targets = append(s.Targets, order(i))
				want[order(i)] = links[i]
			}
			checkFiles(t, runHeld(t, s, fds), want)
		})
	}
}

func TestPassedSocketsKeepTheirFlags(t *testing.T) {
	fdleak.Snapshot(t)
	fds, _ := sockets(t, 2)
	if err := unix.SetNonblock(fds[1], false); err != nil {
		t.Fatal(err)
	}
	s := held()
	s.Targets = []int{3, 4}
	runHeld(t, s, fds)
	for i, want := range []int{unix.O_NONBLOCK, 0} {
		flags, err := unix.FcntlInt(uintptr(fds[i]), unix.F_GETFL, 0)
		if err != nil || flags&unix.O_NONBLOCK != want {
			t.Errorf("socket %d: flags %#x, %v", i, flags, err)
		}
	}
}

func TestIgnoredSignalsAreDefaultAndTheMaskIsEmpty(t *testing.T) {
	signal.Ignore(syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGWINCH, syscall.SIGPIPE)
	defer signal.Reset(syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGWINCH, syscall.SIGPIPE)
	p := runHeld(t, held(), nil)
	for _, field := range []string{"SigIgn", "SigBlk"} {
		if got := p.status(field); got != "0000000000000000" {
			t.Errorf("%s %s", field, got)
		}
	}
	if err := unix.Kill(p.PID, unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(p.PID, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if ws := p.exit(); ws.Signal() != unix.SIGHUP {
		t.Errorf("wait status %#x, want death by SIGHUP", ws)
	}
}

func TestSettingsOfTheProcess(t *testing.T) {
	dir := t.TempDir()
	s := held()
	s.Dir, s.Umask, s.Nice, s.OOMScoreAdj = dir, new(uint32(0o027)), new(7), new(321)
	s.NoNewPrivs = true
	s.Rlimits = []Rlimit{
		{Resource: unix.RLIMIT_NOFILE, Soft: 130, Hard: 140},
		{Resource: unix.RLIMIT_CORE, Soft: 0, Hard: Infinity},
		{Resource: unix.RLIMIT_AS, Soft: 64 << 20, Hard: 64 << 20}, // less than the shim's own
		{Resource: unix.RLIMIT_NPROC, Soft: 2000, Hard: 3000},
	}
	// The shim itself holds each descriptor twice, so more than the program may.
	fds, _ := sockets(t, 120)
	for i := range fds {
		s.Targets = append(s.Targets, 3+i)
	}
	p := runHeld(t, s, fds)
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.PID))
	if err != nil {
		t.Fatal(err)
	}
	after := p.proc("stat")
	nice := strings.Fields(after[strings.LastIndexByte(after, ')')+1:])[16] // field 19
	got := map[string]string{
		"cwd": cwd, "umask": p.status("Umask"), "nice": nice, "oom": strings.TrimSpace(p.proc("oom_score_adj")),
		"nnp": p.status("NoNewPrivs"), "files": p.limit("Max open files"), "core": p.limit("Max core file size"),
		"as": p.limit("Max address space"), "nproc": p.limit("Max processes"),
	}
	want := map[string]string{
		"cwd": dir, "umask": "0027", "nice": "7", "oom": "321", "nnp": "1", "files": "130 140 files",
		"core": "0 unlimited bytes", "as": "67108864 67108864 bytes", "nproc": "2000 3000 processes",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestTheFileLimitMakesRoomForTheSockets(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prlimit(0, unix.RLIMIT_NOFILE, &old, nil) }()
	fds, _ := sockets(t, 300)
	for _, c := range []struct {
		soft uint64
		n    int
		want string
	}{
		{1024, 300, "1324"},
		{1024, 0, "1024"},
		{4096, 300, "4096"}, // never lowered
	} {
		// A soft limit set behind the runtime's back is what a child inherits,
		// as from a login shell.
		now := unix.Rlimit{Cur: c.soft, Max: old.Max}
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &now, nil); err != nil {
			t.Fatal(err)
		}
		s := held()
		for i := range c.n {
			s.Targets = append(s.Targets, 3+i)
		}
		got := runHeld(t, s, fds[:c.n]).limit("Max open files")
		if want := fmt.Sprintf("%s %d files", c.want, old.Max); got != want {
			t.Errorf("soft %d, %d sockets: %q, want %q", c.soft, c.n, got, want)
		}
	}
}

func TestOneMebibyteOfArgumentsAndAnyByte(t *testing.T) {
	s := helper("echo")
	big := strings.Repeat("x", 100_000)
	want := len("helper") + len(helperEnv+"=echo") + 10*(len(big)+1)
	for i := range 5 {
		s.Argv = append(s.Argv, fmt.Sprintf("%d%s", i, big))
		s.Env = append(s.Env, fmt.Sprintf("%d=%s", i, big[1:]))
	}
	s.Argv, s.Env = append(s.Argv, strings.Repeat("y", 70_000)), append(s.Env, "BYTES=\xff\xfe\"\n\x01")
	want += 70_000 + len("BYTES=\xff\xfe\"\n\x01")
	if want < 1<<20 {
		t.Fatalf("only %d bytes", want)
	}
	got := run(t, s, nil).line()
	if exp := fmt.Sprint(7, 7, want, ` "\xff\xfe\"\n\x01"`); got != exp {
		t.Errorf("%q, want %q", got, exp)
	}
}

func TestAbortAndEOFRunNothing(t *testing.T) {
	fdleak.Snapshot(t)
	for name, end := range map[string]func(*Process) error{"abort": (*Process).Abort, "close": (*Process).Close} {
		t.Run(name, func(t *testing.T) {
			witness := t.TempDir() + "/ran"
			s := held()
			s.Argv[2] = "touch " + witness
			p := startProgram(t, s, nil)
			if err := end(p.Process); err != nil {
				t.Fatal(err)
			}
			if ws := p.exit(); ws.ExitStatus() != ExitAborted {
				t.Errorf("wait status %#x", ws)
			}
			if _, err := os.Stat(witness); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the program ran: %v", err)
			}
			if err := p.Go(); !errors.Is(err, ErrAborted) {
				t.Errorf("go: %v", err)
			}
			if err := p.Result(); !errors.Is(err, ErrAborted) {
				t.Errorf("result: %v", err)
			}
		})
	}
}

func TestTheShimEndsWhenItsParentDiesBeforeGo(t *testing.T) {
	p := run(t, helper("orphan"), nil)
	// The orphaned shim holds the output open: EOF says that it has ended.
	out, err := io.ReadAll(p.out)
	if err != nil || string(out) != "started <nil>\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestGoThenCloseStillRunsTheProgram(t *testing.T) {
	fdleak.Snapshot(t)
	p := startProgram(t, held(), nil)
	if err := errors.Join(p.Go(), p.Close(), p.Close()); err != nil {
		t.Fatal(err)
	}
	if line := p.line(); line != "ready" {
		t.Errorf("output %q", line)
	}
}

func TestAbortWakesResult(t *testing.T) {
	p := startProgram(t, held(), nil)
	done := make(chan error)
	go func() { done <- p.Result() }()
	for p.control.inUse() == 0 { // until the other goroutine is about to read
		runtime.Gosched()
	}
	if err := p.Abort(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrAborted) {
		t.Errorf("result %v", err)
	}
	if ws := p.exit(); ws.ExitStatus() != ExitAborted {
		t.Errorf("wait status %#x", ws)
	}
}

func (c *control) inUse() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.users
}

// A shim that ends before it was told to go, or before it has read that, has not executed anything, and that is told:
// it is not taken for the program. Somebody kills it before it has read anything, or when it waits.
func TestAShimThatDiedIsNotTheProgram(t *testing.T) {
	for _, tt := range []struct {
		name       string
		waits, go1 bool // before it is killed
	}{
		{"at once", false, false},
		{"while it waits", true, false},
		{"with go unread", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fds, links := sockets(t, 1)
			s := held()
			s.Targets = []int{300}
			p := startProgram(t, s, fds)
			if tt.waits {
				waitFor(t, func() bool { return p.filesNow()[300] == links[0] })
			} else if err := unix.Kill(p.PID, unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			if tt.go1 {
				if err := p.Go(); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Kill(p.PID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if ws := p.exit(); ws.Signal() != unix.SIGKILL {
				t.Errorf("wait status %#x", ws)
			}
			if err := p.Result(); !errors.Is(err, ErrDied) {
				t.Errorf("result: %v, want that it has died", err)
			}
			if err := p.Go(); !tt.go1 && !errors.Is(err, ErrDied) && !errors.Is(err, ErrAborted) {
				t.Errorf("go: %v", err)
			}
		})
	}
}

// The same, found out by Go: what its send takes off the socket the result does not see any more.
func TestGoFindsThatTheShimDied(t *testing.T) {
	p := startProgram(t, held(), nil)
	if err := unix.Kill(p.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.exit()
	if err := p.Go(); !errors.Is(err, ErrDied) {
		t.Errorf("go: %v", err)
	}
	if err := p.Result(); !errors.Is(err, ErrDied) {
		t.Errorf("result: %v", err)
	}
}

func TestFailuresNameStepPathAndErrno(t *testing.T) {
	fdleak.Snapshot(t)
	missing := t.TempDir() + "/missing"
	locked := t.TempDir()
	if err := os.Chmod(locked, 0o700); err != nil {
		t.Fatal(err)
	}
	script, garbage := locked+"/script", locked+"/garbage"
	for path, text := range map[string]string{script: "#!/nowhere/sh\n", garbage: "neither\n"} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		edit func(*Spec)
		want ExecError
	}{
		{"interpreter", func(s *Spec) { s.Path = script }, ExecError{
			Step: "execve", Path: script, Detail: "the file is there, but not its interpreter (after #!, or of an ELF file)", Errno: unix.ENOENT,
		}},
		{"no program", func(s *Spec) { s.Path = garbage }, ExecError{
			Step: "execve", Path: garbage, Detail: "neither a program for this machine nor a script with #!", Errno: unix.ENOEXEC,
		}},
		{"path", func(s *Spec) { s.Path = missing }, ExecError{Step: "execve", Path: missing, Errno: unix.ENOENT}},
		{"not executable", func(s *Spec) { s.Path = "/etc/passwd" }, ExecError{Step: "execve", Path: "/etc/passwd", Errno: unix.EACCES}},
		{"too long", func(s *Spec) { s.Argv = []string{strings.Repeat("x", 1<<18)} }, ExecError{Step: "execve", Path: "/bin/sh", Errno: unix.E2BIG}},
		{"directory", func(s *Spec) { s.Dir = missing }, ExecError{Step: "chdir", Path: missing, Errno: unix.ENOENT}},
		{
			"directory of another user", func(s *Spec) { s.Dir, s.UID, s.GID = locked, new(uint32(65534)), new(uint32(65534)) },
			ExecError{Step: "chdir", Path: locked, Errno: unix.EACCES},
		},
		{
			"user without group", func(s *Spec) { s.UID = new(uint32(65534)) },
			ExecError{Step: "setresgid", Detail: "a user without a group would keep handoverd's", Errno: unix.EINVAL},
		},
		{
			"oom", func(s *Spec) { s.OOMScoreAdj = new(5000) },
			ExecError{Step: "oom_score_adj", Path: "/proc/self/oom_score_adj", Detail: "5000", Errno: unix.EINVAL},
		},
		{
			"capability", func(s *Spec) { s.AmbientCaps = []uintptr{63} },
			ExecError{Step: "ambient", Detail: "capability 63", Errno: unix.EINVAL},
		},
		{
			"rlimit", func(s *Spec) { s.Rlimits = []Rlimit{{Resource: 99}} },
			ExecError{Step: "rlimit", Detail: "resource 99", Errno: unix.EINVAL},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := held()
			c.edit(s)
			p := startProgram(t, s, nil)
			err := p.Result0(p.Go())
			got, ok := errors.AsType[*ExecError](err)
			if !ok {
				t.Fatalf("%v", err)
			}
			if d := cmp.Diff(&c.want, got); d != "" {
				t.Error(d)
			}
			if !errors.Is(err, c.want.Errno) || !strings.Contains(err.Error(), c.want.Step) {
				t.Errorf("%v", err)
			}
			if ws := p.exit(); ws.ExitStatus() != ExitFailed {
				t.Errorf("wait status %#x", ws)
			}
		})
	}
}

// A report sent while our "go" lies unread arrives behind an ECONNRESET; and
// one that is there before Go is what Go returns.
func TestAReportIsSeenBesideAnUnreadGo(t *testing.T) {
	s := held()
	s.Dir = "/nowhere"
	for _, early := range []bool{true, false} {
		p := startProgram(t, s, nil)
		if early {
			if err := p.Go(); err != nil && !errors.Is(err, unix.ENOENT) {
				t.Fatal(err)
			}
		}
		p.exit()
		if !early {
			if err := p.Go(); !errors.Is(err, unix.ENOENT) {
				t.Errorf("go after the failure: %v", err)
			}
		}
		if err := p.Result(); !errors.Is(err, unix.ENOENT) {
			t.Errorf("early %v: %v", early, err)
		}
	}
}

func TestBadSpecsStartNothing(t *testing.T) {
	fdleak.Snapshot(t)
	for name, edit := range map[string]func(*Spec){
		"path":       func(s *Spec) { s.Path = "" },
		"argv":       func(s *Spec) { s.Argv = nil },
		"NUL":        func(s *Spec) { s.Env = []string{"A=b\x00c"} },
		"targets":    func(s *Spec) { s.Targets = []int{3} },
		"uid -1":     func(s *Spec) { s.UID = new(^uint32(0)) },
		"gid -1":     func(s *Spec) { s.GID = new(^uint32(0)) },
		"capability": func(s *Spec) { s.AmbientCaps = []uintptr{64} },
		"rlimit":     func(s *Spec) { s.Rlimits = []Rlimit{{Soft: 2, Hard: 1}} },
	} {
		s := held()
		edit(s)
		if _, err := Start(s, nil, -1, -1); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := held()
	s.Targets = []int{3, 3}
	if _, err := Start(s, []int{0, 1}, -1, -1); !errors.Is(err, unix.EINVAL) {
		t.Errorf("same target twice: %v", err)
	}
	s.Targets = []int{3}
	if _, err := Start(s, []int{1 << 19}, -1, -1); !errors.Is(err, unix.EBADF) {
		t.Errorf("a descriptor that is not open: %v", err)
	}
}
