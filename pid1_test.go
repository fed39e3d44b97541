//go:build linux

package handover_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// ownPIDs makes what follows process 1 of a pid namespace, as a container's command is, with a /proc of that namespace.
var ownPIDs = []string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"}

// first is a daemon that is process 1. Its PID is the number from outside.
type first struct {
	*Daemon
	t *testing.T
}

// startFirst starts it. What wraps it runs inside the namespace.
func startFirst(t *testing.T, d *Daemon, wrapper ...string) *first {
	t.Helper()
	d.startUnder(t, nil, append(slices.Clone(ownPIDs), wrapper...)...)
	f := &first{Daemon: d, t: t}
	f.find()
	return f
}

// find waits until the child of unshare(1) has become handoverd.
func (f *first) find() {
	f.t.Helper()
	outside := f.cmd.Process.Pid
	eventually(f.t, "handoverd runs as process 1", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", outside, outside))
		if err != nil {
			return f.ended()
		}
		for word := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				f.t.Fatal(err)
			}
			if exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); exe == Program(f.t, handoverdProgram) {
				f.PID = pid
				return true
			}
		}
		return f.ended()
	})
}

// signal sends a signal from outside the namespace, as docker stop does.
func (f *first) signal(sig syscall.Signal) {
	f.t.Helper()
	if err := unix.Kill(f.PID, sig); err != nil {
		f.t.Fatalf("signal %v: %v", sig, err)
	}
}

// inside runs a command in the namespaces of handoverd, as docker exec does, and returns what it prints.
func (f *first) inside(argv ...string) string {
	f.t.Helper()
	cmd := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(f.PID), "--pid", "--mount"}, argv...)...)
	cmd.Env = append(os.Environ(), markEnv+"="+f.Dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		f.t.Fatalf("%v: %v: %s", argv, err, out)
	}
	return string(out)
}

// kill sends a signal from inside, by the shell: a bare Debian has no kill(1).
func (f *first) kill(sig string, pid int) {
	f.t.Helper()
	f.inside("/bin/sh", "-c", fmt.Sprintf("kill -s %s %d", sig, pid))
}

// stubborn ignores what it is asked to end by.
func stubborn(deadline string) string {
	return plain("", "/bin/sh", "-c", `trap '' TERM; echo runs; while :; do sleep 1000; done`) + fmt.Sprintf(`
[service.web.stop]
deadline = %q
lame_duck = { until = "timer", for = "0s", max = "100ms" }
[service.web.retire]
kill_grace = "100ms"
`, deadline)
}

// TestPID1ExitCodes is the table of docs/CONTAINERS.md: the exit code of handoverd run, as process 1, for each way to end.
func TestPID1ExitCodes(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	t.Parallel()
	sleeps := plain("", sleeper, "1000")
	signals := func(sigs ...syscall.Signal) func(*first) {
		return func(f *first) {
			f.WaitReady()
			for _, sig := range sigs {
				f.signal(sig)
			}
		}
	}
	rows := []struct {
		name   string
		config string
		end    func(*first) // nil: it ends by itself
		code   int
		log    string
	}{
		{name: "SIGTERM", config: sleeps, end: signals(unix.SIGTERM), code: 0},
		{name: "SIGINT", config: sleeps, end: signals(unix.SIGINT), code: 0},
		{name: "SIGTERM from inside", config: sleeps, end: func(f *first) { f.WaitReady(); f.kill("TERM", 1) }, code: 0},
		{name: "SIGINT, as Ctrl-C, from inside", config: sleeps, end: func(f *first) { f.WaitReady(); f.kill("INT", 1) }, code: 0},
		{name: "SIGQUIT", config: sleeps, end: signals(unix.SIGQUIT), code: 3, log: "stop now"},
		{name: "SIGTERM twice", config: stubborn("50s"), end: func(f *first) {
			f.WaitReady()
			f.signal(unix.SIGTERM)
			f.WaitLog("to=draining")
			f.signal(unix.SIGTERM)
		}, code: 3, log: "stop now"},
		{name: "SIGTERM, and the deadline passes", config: stubborn("1s"), end: signals(unix.SIGTERM), code: 3, log: "deadline"},
		{name: "SIGHUP reloads, SIGUSR1 and SIGPIPE end nothing", config: sleeps, end: func(f *first) {
			f.WaitReady()
			for _, sig := range []syscall.Signal{unix.SIGUSR1, unix.SIGPIPE, unix.SIGHUP} {
				f.signal(sig)
			}
			f.WaitStatus("generation 2 serves alone", func(s *supervisor.Status) bool {
				return settledStatus(s) && s.Services[0].Generations[0].Generation == 2
			})
			f.kill("HUP", 1)
			f.kill("KILL", 1) // from inside the kernel does not let it through (pid_namespaces(7))
			f.WaitStatus("generation 3 serves alone", func(s *supervisor.Status) bool {
				return settledStatus(s) && s.Services[0].Generations[0].Generation == 3
			})
			f.signal(unix.SIGTERM)
		}, code: 0},
		{name: "SIGKILL from outside", config: sleeps, end: signals(unix.SIGKILL), code: someCode},
		{name: "a crash loop", config: plain("", "/bin/false") + `[service.web.restart]
on_crash_loop = "exit"
crash_loop_after = 2
backoff_min = "10ms"
`, code: supervisor.ExitCrashLoop},
		{name: "a configuration that is none", config: "[service.web]\ncomand = [\"x\"]\n", code: 1, log: "comand"},
		{name: "a socket that cannot be bound", config: sleeps + "[service.web.socket]\nhttp = \"tcp4://192.0.2.1:1\"\n", code: 1, log: "cannot assign requested address"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			d := NewDaemon(t)
			d.Configure(row.config)
			f := startFirst(t, d)
			if row.end != nil {
				row.end(f)
			}
			if code := f.exitCode(); code != row.code && row.code != someCode {
				t.Errorf("exit code %d, want %d", code, row.code)
			}
			if row.log != "" && !strings.Contains(d.Log(), row.log) {
				t.Errorf("the log does not say %q", row.log)
			}
			if left := d.Left(); len(left) > 0 {
				t.Errorf("processes are left: %v", left)
			}
		})
	}
	text, err := os.ReadFile("docs/CONTAINERS.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if row.code != someCode && !strings.Contains(string(text), fmt.Sprintf("\n| %d |", row.code)) {
			t.Errorf("docs/CONTAINERS.md does not tell exit code %d", row.code)
		}
	}
	for name, args := range map[string][]string{"no such flag": {"run", "--nothing"}, "no command": {"run", "-l", "http=127.0.0.1:0"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			argv := append(append(slices.Clone(ownPIDs), Program(t, handoverdProgram)), args...)
			cmd := exec.Command(argv[0], argv[1:]...)
			if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 2 {
				t.Errorf("%v, want exit code 2: %s", cmd.ProcessState, out)
			}
		})
	}
}

// someCode: the one who is the parent of process 1 says what comes of its death by SIGKILL, a container runtime 137. The
// kernel has ended everything else in the namespace (pid_namespaces(7)).
const someCode = -1

// exitCode is what a container runtime reports: 128 and the number for a death by signal.
func (f *first) exitCode() int {
	f.t.Helper()
	code := f.WaitExit()
	if ws, ok := f.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return code
}

// TestPID1Reaps: as process 1 handoverd is the parent of every orphan, also of those that are no program's of its own. A
// hundred of each are reaped, and their own children are still told how they ended.
func TestPID1Reaps(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	t.Parallel()
	const orphans = 100
	many := fmt.Sprintf(`i=0; while [ $i -lt %d ]; do (setsid sleep 0.1 &); i=$((i+1)); done; `, orphans)
	d := NewDaemon(t)
	d.Configure(plain("", "/bin/sh", "-c", many+"exec "+sleeper+" 1000"))
	f := startFirst(t, d)
	f.WaitReady()
	f.inside("/bin/sh", "-c", many)
	f.WaitStatus("200 orphans are reaped", func(s *supervisor.Status) bool { return s.Reaped >= 2*orphans })
	eventually(t, "no zombie is left", func() bool { return len(f.zombies()) == 0 })
	// The end of a program is still seen, and not taken for that of a stranger.
	_, pid := f.Serving("web")
	f.kill("KILL", pid)
	f.WaitStatus("generation 2 serves alone", func(s *supervisor.Status) bool {
		return settledStatus(s) && s.Services[0].Generations[0].Generation == 2
	})
	if how := f.Service("web").Failure; how == nil || !strings.Contains(how.Reason, "SIGKILL") {
		t.Errorf("how generation 1 ended: %+v", how)
	}
	f.signal(unix.SIGTERM)
	if code := f.exitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// zombies are the children of handoverd that are dead and not reaped.
func (f *first) zombies() []int {
	f.t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		f.t.Fatal(err)
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if fields[0] == "Z" && fields[1] == strconv.Itoa(f.PID) {
			found = append(found, pid)
		}
	}
	return found
}

// slowly reads what handoverd writes through a pipe, so much at a time with a pause after it, to the end.
type slowly struct {
	text bytes.Buffer
	done chan struct{}
}

func readSlowly(r io.ReadCloser, step int, pause time.Duration) *slowly {
	s := &slowly{done: make(chan struct{})}
	go func() { // waited for through done
		defer close(s.done)
		defer func() { _ = r.Close() }()
		buf := make([]byte, step)
		for {
			n, err := r.Read(buf)
			s.text.Write(buf[:n])
			if err != nil {
				return
			}
			<-time.After(pause) // how slowly is what is tested
		}
	}()
	return s
}

// TestPID1LastWords: the last event of a stop, and the last output of programs that are killed in it, are out before
// handoverd ends, also where standard error is a pipe that is read slowly, and the events too.
func TestPID1LastWords(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	t.Parallel()
	const lines = 3000
	d := NewDaemon(t)
	go1 := filepath.Join(d.Dir, "go")
	if err := unix.Mkfifo(go1, 0o600); err != nil {
		t.Fatal(err)
	}
	// It writes much at the very end: when it is about to be killed.
	d.Configure(plain("", "/bin/sh", "-c", fmt.Sprintf(`trap '' TERM; echo runs; read x <%s; `+
		`i=0; pad=$(printf %%0100d 0); while [ $i -lt %d ]; do echo line $i of the end $pad; i=$((i+1)); done; echo written >%s; while :; do sleep 1000; done`,
		go1, lines, go1+".done")) + "[service.web.stop]\ndeadline = \"20s\"\n")
	if err := unix.Mkfifo(go1+".done", 0o600); err != nil {
		t.Fatal(err)
	}
	argv := append(slices.Clone(ownPIDs), Program(t, handoverdProgram), "run", "-c", d.ConfigFile())
	d.cmd = exec.Command(argv[0], argv[1:]...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d.cmd.Stderr, d.cmd.Env = w, append(os.Environ(), markEnv+"="+d.Dir)
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	d.PID, d.exited = d.cmd.Process.Pid, make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) { // waited for through exited
		_ = cmd.Wait()
		close(exited)
	}(d.cmd, d.exited)
	f := &first{Daemon: d, t: t}
	f.find()
	out := readSlowly(r, 4<<10, 20*time.Millisecond) // about 200 kB/s, and the lines are 400 kB
	f.WaitReady()
	events := f.Follow()
	touch(t, go1)
	written, err := os.Open(go1 + ".done")
	if err == nil {
		_, err = io.ReadAll(written)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = written.Close()
	f.signal(unix.SIGQUIT)
	if code := f.exitCode(); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	<-out.done
	text := out.text.String()
	for n := range lines {
		if want := fmt.Sprintf("web.1 | line %d of the end ", n); !strings.Contains(text, want) {
			t.Fatalf("%q was not passed on; the last is %q", want, text[max(0, len(text)-200):])
		}
	}
	if !strings.Contains(text, "to=gone") {
		t.Errorf("the log does not tell the end: %q", text[max(0, len(text)-500):])
	}
	var last supervisor.Event
	for e := range events {
		last = e
	}
	if last.Generation != 1 || last.To != "gone" {
		t.Errorf("the last event is %+v", last)
	}
}
