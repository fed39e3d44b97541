//go:build linux

package handover_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// The limits themselves, as the kernel has them: of descriptors, of descriptors in flight, of a file system's size.

// limitFiles sets how many descriptors a process may have and returns what lifts the limit again. Those that it has stay.
func limitFiles(t testing.TB, pid int, most uint64) (lift func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(os.NewSyscallError("prlimit", err))
	}
	set := func(soft uint64) {
		t.Helper()
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: soft, Max: before.Max}, nil); err != nil {
			t.Fatal(os.NewSyscallError("prlimit", err))
		}
	}
	set(most)
	return func() { t.Helper(); set(before.Cur) }
}

// outcome waits for the event with the report of the next reload.
func (s *scene) outcome(events <-chan supervisor.Event) *supervisor.ReloadReport {
	s.t.Helper()
	return s.WaitEvent(events, "the outcome of a reload", func(e supervisor.Event) bool { return e.Kind == "reload" }).Report
}

// TestLimitsFiles: at RLIMIT_NOFILE a reload is refused and what serves serves on; a program that dies is started again when
// the limit is lifted, and until then its clients wait; and a stop ends everything by its deadline.
func TestLimitsFiles(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{
		socket: fmt.Sprintf(`http = "tcp4://127.0.0.1:%d"`, FreePort(t)), mode: "double-fork",
		stop: "deadline = \"3s\"\nlame_duck = { until = \"timer\", for = \"0s\", max = \"100ms\" }", retire: "kill_grace = \"1s\"",
	})
	fresh := s.lightLoad()
	lift := limitFiles(t, s.PID, 3)
	s.HUP()
	if r := s.outcome(s.events); r.OK() || !strings.Contains(r.Results[0].Reason, "too many open files") {
		t.Errorf("the reload answers %+v", r)
	}
	fresh.more(20)
	lift()
	if generation, _ := s.Serving("web"); generation != 1 {
		t.Errorf("generation %d serves", generation)
	}
	s.MustReload()
	s.settle()
	fresh.end()

	address := s.address("web", "http")
	generation, pid := s.Serving("web")
	lift = limitFiles(t, s.PID, 3)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.WaitEvent(s.events, "a restart has failed", func(e supervisor.Event) bool {
		return e.Kind == "transition" && e.Generation > generation && e.To == "gone"
	})
	waits, err := net.Dial("tcp4", address) // nobody serves, and nobody is refused
	if err != nil {
		t.Fatal(err)
	}
	_ = waits.Close()
	lift()
	s.WaitStatus("it serves again", settledStatus)
	s.fresh(address).end()

	limitFiles(t, s.PID, 3)
	s.Signal(unix.SIGTERM)
	// That nothing is left cannot be seen, so it is not said.
	if code := s.WaitExit(); code != 0 && code != supervisor.ExitCut {
		t.Errorf("handoverd exited with %d", code)
	}
	for _, pid := range s.Left() {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if !strings.Contains(string(args), "sleep") { // it has a session of its own, and could not be looked for
			t.Errorf("process %d is left: %q", pid, args)
		}
	}
}

// TestLimitsSpace: where the file system of the state is full a reload is refused and the state file stays whole; a program
// that dies is started again all the same; and when there is room the state is written without anybody's doing.
func TestLimitsSpace(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	s := &scene{Daemon: NewDaemon(t), t: t}
	small := filepath.Join(s.Dir, "small")
	if err := os.Mkdir(small, 0o711); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("runtime_dir = %q\n", small) + childService{restart: "backoff_min = \"10ms\""}.toml(t, s.Daemon)
	if err := os.WriteFile(s.ConfigFile(), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.startUnder(t, nil, "unshare", "--mount", "--propagation", "private", "sh", "-c",
		`mount -t tmpfs -o size=256k,mode=0711 tmpfs "$1" && shift && exec "$@"`, "sh", small)
	inside := fmt.Sprintf("/proc/%d/root%s", s.PID, small) // what is mounted there
	s.client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", supervisor.ControlPath(inside))
	}}
	s.WaitReady()
	s.events = s.Follow()
	fresh := s.lightLoad()
	fill := filepath.Join(inside, "fill")
	f, err := os.Create(fill)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	_ = f.Close()
	r, err := s.Reload(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	if r.OK() || !strings.Contains(r.Results[0].Reason, "no space left on device") {
		t.Errorf("the reload answers %+v", r)
	}
	if st := s.Status(); !strings.Contains(st.StateError, "no space left on device") {
		t.Errorf("the status does not tell: %q", st.StateError)
	}
	s.Daemon.Dir = inside
	if n := func() int { state := s.stateFile(); return state.serving("web") }(); n != 1 {
		t.Errorf("the state file says that generation %d serves", n)
	}
	fresh.more(20)
	fresh.end()
	s.kill("web")
	s.WaitStatus("a restart serves", settledStatus)
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	s.WaitStatus("the state is written again", func(st *supervisor.Status) bool { return st.StateError == "" })
	serving, _ := s.Serving("web")
	if n := func() int { state := s.stateFile(); return state.serving("web") }(); n != serving {
		t.Errorf("generation %d serves, and the state file says %d", serving, n)
	}
	s.MustReload()
	s.Daemon.Dir = strings.TrimSuffix(small, "/small")
	s.Stop()
}

// flyingArgument has this test binary put as many descriptors into a queue as it is told, and wait for its end.
const flyingArgument = "--in-flight"

func init() {
	if len(os.Args) == 3 && os.Args[1] == flyingArgument {
		n, err := strconv.Atoi(os.Args[2])
		if err == nil {
			err = fly(n)
		}
		fmt.Fprintln(os.Stderr, "in flight:", err)
		os.Exit(1)
	}
}

func fly(n int) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err != nil {
		return err
	}
	for ; n > 0; n-- {
		if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(0), nil, 0); err != nil {
			return err
		}
	}
	fmt.Println("flying")
	_, err = unix.Poll(nil, -1)
	return err
}

// TestLimitsInFlight: where descriptors of the user fill queues, more than RLIMIT_NOFILE of them, none can be sent (unix(7),
// ETOOMANYREFS). A reload is refused, the keeper keeps what it has, and when they are gone all goes on.
func TestLimitsInFlight(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	const user = 64998 // of nobody else: the kernel counts by user
	s := &scene{Daemon: NewDaemon(t), t: t}
	publicProgram(t, handoverdProgram)
	s.Configure(rewrite(t, childService{}.toml(t, s.Daemon), Program(t, testchildProgram), publicProgram(t, testchildProgram)))
	for _, path := range []string{s.Dir, s.ConfigFile()} {
		if err := os.Chown(path, user, user); err != nil {
			t.Fatal(err)
		}
	}
	// The hard limit as well: Go's runtime raises the soft one to it.
	s.startUnder(t, nil, "prlimit", "--nofile=100:100", "setpriv", fmt.Sprintf("--reuid=%d", user), fmt.Sprintf("--regid=%d", user), "--clear-groups")
	s.WaitReady()
	keeper := s.Status().Keeper
	fresh := s.lightLoad()
	cmd := exec.Command("/proc/self/exe", flyingArgument, "200") // by a link that leads through no folder of root's
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	r, err := s.Reload(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	if r.OK() || !strings.Contains(r.Results[0].Reason, "too many references") {
		t.Errorf("the reload answers %+v", r)
	}
	fresh.more(20)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	s.WaitStatus("the keeper is the one of before and holds everything", func(st *supervisor.Status) bool {
		return st.Keeper.PID == keeper.PID && st.Keeper.Fault == ""
	})
	s.MustReload()
	s.settle()
	fresh.end()
	s.Stop()
}

// TestLimitsKeeper: a keeper that can hold no more says so, and what it holds it holds; no reload waits for it. One that
// cannot even be spoken to is replaced by the next handoverd, which takes the sockets from it all the same.
func TestLimitsKeeper(t *testing.T) {
	t.Parallel()
	// One that is drained by a signal: of a channel that the keeper could not hold nothing is left when handoverd is killed.
	s := newScene(t, childService{mode: "accept-notify", when: "notify"})
	fresh := s.lightLoad()
	keeper := s.Status().Keeper
	lift := limitFiles(t, keeper.PID, 3)
	s.MustReload()
	s.settle()
	s.WaitStatus("the keeper's trouble is told", func(st *supervisor.Status) bool { return st.Keeper.Fault != "" })
	inode := s.socket("web", "http").Inode
	if !full() {
		lift() // else the next one waits for its answer, for seconds
	}
	again(s.Daemon)
	s.WaitReady()
	s.settle()
	if got := s.socket("web", "http").Inode; got != inode {
		t.Errorf("socket %d, want %d", got, inode)
	}
	s.MustReload()
	s.settle()
	s.WaitStatus("a keeper holds everything", func(st *supervisor.Status) bool { return st.Keeper.PID != 0 && st.Keeper.Fault == "" })
	fresh.end()
	s.Stop()
}
