//go:build linux

package handover_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// again kills handoverd and starts it again.
func again(d *Daemon) {
	d.t.Helper()
	d.Kill()
	d.Start()
}

// TestTakenOver: a handoverd that is started after another was killed goes on with its generations and its keeper, and
// reloads.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{})
	s.MustReload()
	generation, pid := s.Serving("web")
	keeper := keeperOf(s.Daemon, 0)
	again(s.Daemon)
	st := s.WaitStatus("ready", func(st *supervisor.Status) bool { return st.Ready })
	if g, p := s.Serving("web"); g != generation || p != pid {
		t.Errorf("generation %d (pid %d) serves, want %d (pid %d)", g, p, generation, pid)
	}
	if st.Keeper.PID != keeper {
		t.Errorf("keeper %d, want the one that there was, %d", st.Keeper.PID, keeper)
	}
	if from := s.socket("web", "http").TakenFrom; from != "the keeper" {
		t.Errorf("the socket was taken from %q", from)
	}
	if r := s.MustReload(); r.Results[0].Generation != generation+1 || r.Results[0].Old != generation {
		t.Errorf("the reload after it: %+v", r)
	}
	s.only("web", generation+1)
	s.Stop()
}

// TestTakenFrom: without a keeper a socket comes from the program that has it, or from a helper that runs as its user.
func TestTakenFrom(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	tests := []struct {
		name, more, from string
		wrapper          []string
	}{
		{"the program", "", "pidfd_getfd", nil},
		{"another user's program", `user = "nobody"`, "pidfd_getfd", nil},
		{"another user's program, no CAP_SYS_PTRACE", `user = "nobody"`, "pidfd_getfd as user 65534", withoutPtrace},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := NewDaemon(t)
			publicProgram(t, handoverdProgram)
			d.Configure("keeper = \"none\"\n" + stepsConfig(tt.more, "serve 3")(t, d, ""))
			start := func() {
				if tt.wrapper == nil {
					d.Start()
				} else {
					d.startUnder(t, nil, tt.wrapper...)
				}
				d.WaitReady()
			}
			start()
			_, pid := d.Serving("web")
			d.Kill()
			start()
			if _, p := d.Serving("web"); p != pid {
				t.Errorf("process %d serves, want %d", p, pid)
			}
			if s := d.Service("web").Sockets; len(s) != 1 || s[0].TakenFrom != tt.from || !s[0].Listening {
				t.Fatalf("socket: %+v, want it taken from %q", s, tt.from)
			}
			d.MustReload()
			d.Stop()
		})
	}
}

// TestTakenOverInBackOff: the program has died and waits in its back-off, so that the keeper alone holds the socket.
// Nobody is refused, and the wait goes on.
func TestTakenOverInBackOff(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{restart: longBackOff})
	fresh := s.fresh(s.address("web", "http"))
	s.kill("web")
	s.WaitStatus("the restart waits", func(st *supervisor.Status) bool { return st.Services[0].RestartIn > 300 })
	inode := s.socket("web", "http").Inode
	again(s.Daemon)
	st := s.WaitStatus("it is there", func(*supervisor.Status) bool { return true })
	if svc := st.Services[0]; svc.RestartIn < 300 || svc.Failure == nil || svc.Failure.Generation != 1 {
		t.Errorf("the wait and its reason are lost: %+v", svc)
	}
	if got := s.socket("web", "http").Inode; got != inode {
		t.Errorf("socket %d, want the one that there was, %d", got, inode)
	}
	if got := s.MustReload().Results[0].Generation; got != 2 {
		t.Errorf("the reload is generation %d, want 2", got)
	}
	fresh.sees(2)
	fresh.more(50)
	fresh.end(dead{"web", 1})
	s.Stop()
}

// TestTakenOverWithoutKeeper: the keeper is killed, or stopped by a signal, right before handoverd. What a program holds
// comes back from it, and there is a keeper again.
func TestTakenOverWithoutKeeper(t *testing.T) {
	for name, tt := range map[string]struct {
		sig  unix.Signal
		from string
	}{
		"killed":  {unix.SIGKILL, "pidfd_getfd"},
		"stopped": {unix.SIGSTOP, "the keeper, by pidfd_getfd"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, childService{mode: "accept-notify", when: "notify"})
			fresh := s.fresh(s.address("web", "http"))
			pid := keeperOf(s.Daemon, 0)
			if err := unix.Kill(pid, unix.SIGKILL); err != nil { // it is replaced …
				t.Fatal(err)
			}
			pid = keeperOf(s.Daemon, pid)
			holds := fmt.Sprintf("socket:[%d]", s.socket("web", "http").Inode)
			eventually(t, "the keeper has read what it was sent", func() bool {
				links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
				return slices.ContainsFunc(links, func(l string) bool { to, _ := os.Readlink(l); return to == holds })
			})
			s.Signal(unix.SIGSTOP) // … but not this time
			if err := unix.Kill(pid, tt.sig); err != nil {
				t.Fatal(err)
			}
			s.Kill()
			s.Start()
			s.WaitReady()
			if from := s.socket("web", "http").TakenFrom; from != tt.from {
				t.Errorf("the socket was taken from %q, want %q", from, tt.from)
			}
			s.WaitStatus("another keeper", func(st *supervisor.Status) bool {
				return st.Keeper.PID != 0 && st.Keeper.PID != pid && st.Keeper.Held >= 2
			})
			s.MustReload()
			fresh.sees(2)
			held := fmt.Sprintf("socket:[%d]", s.socket("web", "http").Inode)
			successor := keeperOf(s.Daemon, pid)
			eventually(t, "the other keeper has read what it was sent", func() bool {
				links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", successor))
				return slices.ContainsFunc(links, func(l string) bool { to, _ := os.Readlink(l); return to == held })
			})
			again(s.Daemon)
			s.WaitReady()
			if from := s.socket("web", "http").TakenFrom; from != "the keeper" {
				t.Errorf("the second time the socket was taken from %q", from)
			}
			fresh.more(50)
			fresh.end()
			s.Stop()
		})
	}
}

// TestTakenOverInAStop: handoverd is killed while the queue is emptied for a stop, with a filter on the socket. The next
// one serves: who came in between waits, and is answered.
func TestTakenOverInAStop(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{})
	fresh := s.fresh(s.address("web", "http"))
	s.Signal(unix.SIGTERM)
	s.reaches("web", 1, supervisor.PhaseDraining)
	s.Kill()
	s.Start()
	s.WaitReady()
	fresh.more(100)
	s.MustReload()
	fresh.more(50)
	fresh.end()
	s.Stop()
}

// TestTakenOverInADrain: handoverd is killed in a stop, when its sockets are closed and the program drains. The next one
// binds them anew and serves; the program that was told to drain finishes its work under the deadline that it had.
func TestTakenOverInADrain(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{socket: fmt.Sprintf(`http = "tcp4://127.0.0.1:%d"`, FreePort(t))})
	address := s.address("web", "http")
	slow := request(t, address, "/stream?n=1&ms=4000")
	s.Signal(unix.SIGTERM)
	s.WaitLog("socket closed")
	eventually(t, "the program is told to drain: until then the next handoverd calls the stop off", func() bool {
		g := s.stateFile().Services["web"].Generations
		return len(g) == 1 && g[0].Phase == supervisor.PhaseDraining && !g[0].Untold
	})
	s.Kill()
	s.Start()
	s.WaitReady()
	st := s.Service("web")
	if len(st.Generations) != 2 || st.Generations[0].Phase != supervisor.PhaseDraining || st.Generations[0].Ends > 25 ||
		st.Generations[1].Phase != supervisor.PhaseServing {
		t.Errorf("generations %+v, want the old one draining and a new one serving", st.Generations)
	}
	fresh := s.fresh(address)
	if answer := slow(); !strings.Contains(answer, "200") {
		t.Errorf("the request that drained: %q", answer)
	}
	s.only("web", 2)
	fresh.end()
	s.Stop()
}

// TestConfigDiffers: a file that was edited meanwhile is not applied by a start that takes over.
func TestConfigDiffers(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{})
	digest := s.Status().Digest
	s.Kill()
	s.configure(childService{mode: "crash-init"})
	s.Start()
	s.WaitReady()
	s.WaitLog("config differs")
	if st := s.Status(); st.Digest != digest || !strings.Contains(st.ConfigNote, "edited while no handoverd ran") {
		t.Errorf("digest %s, want that of what runs, %s; and of the file: %q", st.Digest, digest, st.ConfigNote)
	}
	s.fails("exit status 3 before it was ready")
	s.configure(childService{})
	s.MustReload()
	if note := s.Status().ConfigNote; note != "" {
		t.Errorf("of the file that runs: %q", note)
	}
	s.Stop()
}

// TestAdoptedEnds: the end of a program that an earlier handoverd had started is seen, and what it started is ended with
// it. How it ended is said to be unknown.
func TestAdoptedEnds(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{mode: "double-fork", restart: "backoff_min = \"20ms\"\nbackoff_max = \"20ms\""})
	s.WaitLog("grandchild ")
	again(s.Daemon)
	s.WaitReady()
	before := s.Left()
	s.kill("web")
	s.WaitStatus("generation 2 serves alone", func(st *supervisor.Status) bool {
		return st.Ready && len(st.Services[0].Generations) == 1 && st.Services[0].Generations[0].Generation == 2
	})
	if f := s.service("web").Failure; f == nil || !strings.Contains(f.Reason, "its exit status went to nobody") {
		t.Errorf("failure: %+v", f)
	}
	for _, pid := range before {
		if slices.Contains(s.Left(), pid) {
			t.Errorf("process %d of generation 1 still runs", pid)
		}
	}
	s.Stop()
}

// TestStrangerIsNotSignalled: a process that has the number of a generation and began at another time is no generation.
func TestStrangerIsNotSignalled(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	d := StartDaemon(t, plain("", sleeper, "1000"))
	_, pid := d.Serving("web")
	d.Kill()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	stranger := exec.Command("/bin/sleep", "1000")
	stranger.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- stranger.Wait() }() // waited for below
	defer func() { _, _ = stranger.Process.Kill(), <-ended }()
	state := filepath.Join(d.Dir, "state.json")
	text, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.ReplaceAll(string(text), fmt.Sprintf(`"pid":%d,`, pid), fmt.Sprintf(`"pid":%d,`, stranger.Process.Pid))
	if edited == string(text) {
		t.Fatalf("pid %d is not in %s", pid, text)
	}
	if err := os.WriteFile(state, []byte(edited), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Start()
	d.WaitReady()
	if generation, _ := d.Serving("web"); generation != 2 {
		t.Errorf("generation %d serves, want 2", generation)
	}
	d.Stop()
	select {
	case err := <-ended:
		ended <- err
		t.Errorf("the stranger has ended: %v", err)
	default:
	}
}

// TestStateSetAside: a state file that is damaged, or newer, is kept under another name and not obeyed. The port stays
// open: its socket comes from the keeper.
func TestStateSetAside(t *testing.T) {
	for _, tt := range []struct{ name, aside, want string }{
		{"damaged", "state.json.damaged", "set aside"},
		{"newer", "state.json.newer", "written by a newer handoverd"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := childService{socket: fmt.Sprintf(`http = "tcp4://127.0.0.1:%d"`, FreePort(t))}
			s := newScene(t, p)
			fresh := s.fresh(s.address("web", "http"))
			inode := s.socket("web", "http").Inode
			_, pid := s.Serving("web")
			s.Kill()
			path := filepath.Join(s.Dir, "state.json")
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if tt.name == "damaged" {
				text = text[:len(text)/2]
			} else {
				text = []byte(strings.Replace(string(text), `"version":2`, `"version":99`, 1))
			}
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			s.Start()
			s.WaitReady()
			s.WaitLog(tt.want)
			if aside, err := os.ReadFile(filepath.Join(s.Dir, tt.aside)); err != nil || string(aside) != string(text) {
				t.Errorf("set aside: %q, %v", aside, err)
			}
			if got := s.socket("web", "http").Inode; got != inode {
				t.Errorf("socket %d, want the keeper's, %d", got, inode)
			}
			fresh.more(100)
			fresh.end()
			s.WaitLog(fmt.Sprintf("pids=[%d]", pid))
			if err := unix.Kill(pid, unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it has ended", func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) })
			s.Stop()
		})
	}
}

// TestOutputGoesOn: what a program writes while no handoverd runs is passed on by the next one, and no line is lost; what
// was on its way when handoverd was killed may come twice.
func TestOutputGoesOn(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	d := StartDaemon(t, plain("", "/bin/sh", "-c", `i=0; while :; do i=$((i+1)); echo line $i >&2; sleep 0.01; done`))
	lines := func() []string {
		return regexp.MustCompile(`(?m)^web\.1 \| line (\d+)$`).FindAllString(d.Log(), -1)
	}
	for range 3 {
		n := len(lines())
		eventually(t, "lines", func() bool { return len(lines()) > n+20 })
		d.Kill()
		<-time.After(100 * time.Millisecond) // lines that nobody reads
		d.Start()
		d.WaitReady()
	}
	n := len(lines())
	eventually(t, "lines", func() bool { return len(lines()) > n+20 })
	d.Stop()
	next, twice := 1, 0
	for _, l := range lines() {
		number, err := strconv.Atoi(l[strings.LastIndexByte(l, ' ')+1:])
		switch {
		case err != nil || number > next:
			t.Fatalf("line %d is missing before %q", next, l)
		case number < next:
			twice++
		default:
			next++
		}
	}
	t.Logf("%d lines, %d twice", next-1, twice)
	if twice > 3*20 {
		t.Errorf("%d lines came twice", twice)
	}
}

// TestSocketNotTakenBack: a socket that nobody may be asked for stays with its program, which serves on. A reload that
// would need it is refused; once the program has ended it is bound anew.
func TestSocketNotTakenBack(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := NewDaemon(t)
	publicProgram(t, handoverdProgram)
	port := FreePort(t)
	d.Configure("keeper = \"none\"\n" + strings.Replace(stepsConfig("", "undumpable", "serve 3")(t, d, ""), "127.0.0.1:0", fmt.Sprintf("127.0.0.1:%d", port), 1))
	d.startUnder(t, nil, withoutPtrace...)
	d.WaitReady()
	_, pid := d.Serving("web")
	d.Kill()
	d.startUnder(t, nil, withoutPtrace...)
	d.WaitReady()
	d.WaitLog("socket not taken back")
	if _, p := d.Serving("web"); p != pid {
		t.Errorf("process %d serves, want %d", p, pid)
	}
	if r, err := d.Reload(limited(t)); err != nil || r.OK() || !strings.Contains(r.Results[0].Reason, "address already in use") {
		t.Errorf("reload: %+v, %v, want it refused", r, err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.WaitStatus("another one serves", func(s *supervisor.Status) bool {
		g := s.Services[0].Generations
		return s.Ready && len(g) == 1 && g[0].PID != pid
	})
	d.MustReload()
	d.Stop()
}

// TestTakenOverKinds: sockets of every kind come back as the same sockets, and so does one that is a generation's alone.
// The path of a UNIX socket that a program has removed meanwhile is there again.
func TestTakenOverKinds(t *testing.T) {
	for _, keeper := range []string{"auto", "none"} {
		t.Run(keeper, func(t *testing.T) {
			t.Parallel()
			if testing.Short() {
				t.Skip("builds and runs real programs; it runs without -short")
			}
			d := NewDaemon(t)
			p := childService{mode: "accept-raw", when: "accepting", socket: strings.Join([]string{
				`http = "tcp4://127.0.0.1:0"`, `dual = "tcp://:0"`, `udp = "udp4://127.0.0.1:0"`,
				fmt.Sprintf(`path = "unix://%s/a.sock?mode=0666"`, d.Dir), fmt.Sprintf(`name = "unix:@%s"`, filepath.Base(d.Dir)),
				fmt.Sprintf(`gram = "unixgram://%s/g.sock"`, d.Dir),
				fmt.Sprintf(`own = { listen = "unix://%s/own.${HANDOVER_GENERATION}", per_generation = true }`, d.Dir),
			}, "\n")}
			d.Configure("keeper = \"" + keeper + "\"\n" + p.toml(t, d))
			d.Start()
			d.WaitReady()
			before := append(d.Service("web").Sockets, d.Service("web").Generations[0].Sockets...)
			if keeper == "auto" {
				keeperOf(d, 0)
			}
			d.Kill()
			if err := os.Remove(filepath.Join(d.Dir, "a.sock")); err != nil {
				t.Fatal(err)
			}
			d.Start()
			d.WaitReady()
			after := append(d.Service("web").Sockets, d.Service("web").Generations[0].Sockets...)
			if len(before) != 7 || len(after) != len(before) {
				t.Fatalf("before %+v, after %+v", before, after)
			}
			for i, s := range after {
				from := s.TakenFrom
				if s.TakenFrom, s.Queued = "", before[i].Queued; s != before[i] || from == "" {
					t.Errorf("%+v from %q, want %+v", s, from, before[i])
				}
			}
			if _, err := os.Lstat(filepath.Join(d.Dir, "a.sock")); err != nil {
				t.Error(err)
			}
			d.MustReload()
			d.WaitStatus("the old one is gone", func(s *supervisor.Status) bool { return len(s.Services[0].Generations) == 1 })
			if _, err := os.Lstat(filepath.Join(d.Dir, "own.1")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the socket of generation 1 alone: %v", err)
			}
			d.Stop()
			if left, err := filepath.Glob(filepath.Join(d.Dir, "*.sock")); err != nil || len(left) > 0 {
				t.Errorf("left after the stop: %v, %v", left, err)
			}
		})
	}
}

// TestLeftoversAreEnded: handoverd and the main process are killed, there is no keeper, and another process of the
// generation still has the socket. It is ended, and the start is a fresh one; numbers go on.
func TestLeftoversAreEnded(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := NewDaemon(t)
	port := FreePort(t)
	config := stepsConfig("", "serve 3")(t, d, "")
	config = strings.Replace(config, "127.0.0.1:0", fmt.Sprintf("127.0.0.1:%d", port), 1)
	script := sleeper + " 1000 & exec " + publicProgram(t, stepsProgram) + " 'serve 3'"
	config = regexp.MustCompile(`command = .*`).ReplaceAllLiteralString(config, "command = "+quoted("/bin/sh", "-c", script))
	d.Configure("keeper = \"none\"\n" + config)
	d.Start()
	d.WaitReady()
	_, pid := d.Serving("web")
	d.Kill()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has ended", func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) })
	left := slices.DeleteFunc(d.Left(), func(p int) bool { return p == pid })
	if len(left) != 1 {
		t.Fatalf("left: %v, want the sleeper", left)
	}
	d.Start()
	d.WaitReady()
	if generation, _ := d.Serving("web"); generation != 2 {
		t.Errorf("generation %d serves, want 2", generation)
	}
	if now := d.Left(); slices.Contains(now, left[0]) {
		t.Errorf("process %d of generation 1 still runs", left[0])
	}
	d.Stop()
}
