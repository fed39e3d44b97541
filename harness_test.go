//go:build linux

package handover_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// patience bounds every wait of these tests. It is no measure of anything: a machine that is busy with something else
// must not fail them.
const patience = 60 * time.Second

// markEnv is in the environment of each daemon and of all it starts, so that what a killed daemon leaves can be found.
const markEnv = "TEST_OF_DAEMON" // not HANDOVERD_: that is scrubbed from the environment of programs

// The programs that the tests run, by their packages.
const (
	handoverdProgram = "./cmd/handoverd"
	goserverProgram  = "./examples/goserver"
	testchildProgram = "./internal/testchild"
)

// TestMain removes the programs that were built.
func TestMain(m *testing.M) {
	code := m.Run()
	if programs.dir != "" {
		_ = os.RemoveAll(programs.dir)
	}
	os.Exit(code)
}

// programs holds what Program built, one build of each for the whole run.
var programs struct {
	mu    sync.Mutex
	dir   string
	built map[string]func() (string, error)
}

// Program builds the package as it is shipped, static and without the race detector, and returns the file's path.
func Program(t testing.TB, pkg string) string {
	t.Helper()
	programs.mu.Lock()
	if programs.built == nil {
		programs.built = map[string]func() (string, error){}
		dir, err := os.MkdirTemp("", "handoverd-test")
		if err != nil {
			programs.mu.Unlock()
			t.Fatal(err)
		}
		programs.dir = dir
	}
	build := programs.built[pkg]
	if build == nil {
		file := filepath.Join(programs.dir, filepath.Base(pkg))
		build = sync.OnceValues(func() (string, error) {
			cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", file, pkg)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
			}
			return file, nil
		})
		programs.built[pkg] = build
	}
	programs.mu.Unlock()
	file, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// eventually polls until ok, for what nothing tells by itself: that a socket's path is there, that a log line was
// written. It is the only place of these tests that looks at the clock to wait.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// limited is a context that ends with the test, or with patience.
func limited(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// FreePort is a TCP port of 127.0.0.1 that nobody has. It is taken from below the range of which the kernel gives ports
// to clients and to binds of port 0 (ip(7), ip_local_port_range), so that none of these gets it before it is bound.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := 20_000 + rand.IntN(12_000)
		ln, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = ln.Close()
		return port
	}
	t.Fatal("no free port from 20000 to 31999")
	return 0
}

// Daemon is a real handoverd under test. What it started ends with the test, also when it was killed.
type Daemon struct {
	Dir    string // its runtime directory, short and empty at first; the test may put files there
	PID    int    // 0 before Start
	Work   string // the directory that it is started in; empty: the test's
	t      testing.TB
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has been waited for
	client *http.Client
}

// NewDaemon makes the runtime directory; Start or Run starts the process.
func NewDaemon(t testing.TB) *Daemon {
	t.Helper()
	parent := "/dev/shm"
	if info, err := os.Stat(parent); err != nil || !info.IsDir() {
		parent = ""
	}
	dir, err := os.MkdirTemp(parent, "hd")
	if err != nil {
		t.Fatal(err)
	}
	// Programs that run as another user must reach their sockets below it.
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	d := &Daemon{Dir: dir, t: t}
	d.client = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", supervisor.ControlPath(d.Dir))
		},
		DisableKeepAlives: true,
	}}
	t.Cleanup(d.cleanup)
	return d
}

// StartDaemon starts handoverd with a configuration, without its runtime_dir, and waits until it is ready.
func StartDaemon(t testing.TB, config string) *Daemon {
	t.Helper()
	d := NewDaemon(t)
	d.Configure(config)
	d.Start()
	d.WaitReady()
	return d
}

// ConfigFile is the path of the configuration.
func (d *Daemon) ConfigFile() string { return filepath.Join(d.Dir, "handoverd.toml") }

// Configure writes the configuration, which must not have a runtime_dir: that of the daemon is put before it. It is
// replaced at once, so that a reload never reads half of it.
func (d *Daemon) Configure(config string) {
	d.t.Helper()
	text := fmt.Sprintf("runtime_dir = %q\n%s", d.Dir, config)
	temp := d.ConfigFile() + ".new"
	if err := os.WriteFile(temp, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Rename(temp, d.ConfigFile()); err != nil {
		d.t.Fatal(err)
	}
}

// Start runs `handoverd run -c` with what Configure wrote. It does not wait for anything.
func (d *Daemon) Start() {
	d.t.Helper()
	d.Run("run", "-c", d.ConfigFile())
}

// RunFlags runs `handoverd run --runtime-dir DIR` with the flags that follow.
func (d *Daemon) RunFlags(flags ...string) {
	d.t.Helper()
	d.Run(append([]string{"run", "--runtime-dir", d.Dir}, flags...)...)
}

// Run starts handoverd with these arguments. A daemon that has ended may be started again.
func (d *Daemon) Run(args ...string) {
	d.t.Helper()
	log, err := os.OpenFile(d.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	d.cmd = exec.Command(Program(d.t, handoverdProgram), args...)
	// A file and no pipe: programs that outlive the daemon may hold it.
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.Env, d.cmd.Dir = append(os.Environ(), markEnv+"="+d.Dir), d.Work
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.PID, d.exited = d.cmd.Process.Pid, make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) { // waited for through exited
		_ = cmd.Wait()
		close(exited)
	}(d.cmd, d.exited)
}

func (d *Daemon) logFile() string { return filepath.Join(d.Dir, "test.log") }

// Log is what handoverd and its programs have written so far.
func (d *Daemon) Log() string {
	text, _ := os.ReadFile(d.logFile())
	return string(text)
}

// WaitLog waits until the log has the text.
func (d *Daemon) WaitLog(text string) {
	d.t.Helper()
	eventually(d.t, fmt.Sprintf("%q in the log", text), func() bool { return strings.Contains(d.Log(), text) })
}

// WaitReady waits until every service serves.
func (d *Daemon) WaitReady() {
	d.t.Helper()
	d.WaitStatus("ready", func(s *supervisor.Status) bool { return s.Ready })
}

// WaitStatus waits for a status that is ok and returns it.
func (d *Daemon) WaitStatus(what string, ok func(*supervisor.Status) bool) *supervisor.Status {
	d.t.Helper()
	var last *supervisor.Status
	eventually(d.t, "status: "+what, func() bool {
		select {
		case <-d.exited:
			d.t.Fatalf("handoverd has ended (%v) instead of: %s", d.cmd.ProcessState, what)
		default:
		}
		s, err := d.status()
		last = s
		return err == nil && ok(s)
	})
	return last
}

// Status is the answer to GET /v1/status.
func (d *Daemon) Status() *supervisor.Status {
	d.t.Helper()
	s, err := d.status()
	if err != nil {
		d.t.Fatal(err)
	}
	return s
}

// Service is one service of the status.
func (d *Daemon) Service(name string) supervisor.ServiceStatus {
	d.t.Helper()
	s := d.Status()
	for _, svc := range s.Services {
		if svc.Name == name {
			return svc
		}
	}
	d.t.Fatalf("no service %s in %+v", name, s)
	return supervisor.ServiceStatus{}
}

// Serving is the number and pid of the generation that serves; 0 and 0: none does.
func (d *Daemon) Serving(service string) (generation, pid int) {
	d.t.Helper()
	for _, g := range d.Service(service).Generations {
		if g.Phase == supervisor.PhaseServing {
			return g.Generation, g.PID
		}
	}
	return 0, 0
}

func (d *Daemon) status() (*supervisor.Status, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	resp, err := d.do(ctx, http.MethodGet, "/v1/status", nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	s := new(supervisor.Status)
	if err := json.NewDecoder(resp.Body).Decode(s); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	return s, nil
}

// APIError is an answer of the control API that is not 200 or 202.
type APIError struct {
	Status int
	supervisor.ControlError
}

func (e *APIError) Error() string {
	return fmt.Sprintf("control API: %d %s: %s", e.Status, e.Code, e.ControlError.Error)
}

// do asks the control API. The caller closes the body of the answer.
func (d *Daemon) do(ctx context.Context, method, path string, query url.Values) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://handoverd"+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		defer func() { _ = resp.Body.Close() }()
		fail := &APIError{Status: resp.StatusCode}
		text, err := io.ReadAll(resp.Body)
		if err == nil {
			err = json.Unmarshal(text, &fail.ControlError)
		}
		if err != nil {
			fail.ControlError.Error = fmt.Sprintf("%s (%v)", text, err)
		}
		return nil, fail
	}
	return resp, nil
}

// ReloadOptions are the parameters of a reload.
type ReloadOptions struct {
	Services []string               // nil: all
	NoQueue  bool                   // answer busy instead of waiting
	Event    func(supervisor.Event) // called for each line but the last; nil: none
}

// Reload reloads through the control API and waits for the outcome; no services means all.
func (d *Daemon) Reload(ctx context.Context, services ...string) (*supervisor.ReloadReport, error) {
	return d.ReloadWith(ctx, ReloadOptions{Services: services})
}

// ReloadWith is Reload with all parameters. An answer that is not a report is an *APIError.
func (d *Daemon) ReloadWith(ctx context.Context, o ReloadOptions) (*supervisor.ReloadReport, error) {
	query := url.Values{"service": o.Services}
	if o.NoQueue {
		query.Set("no_queue", "1")
	}
	resp, err := d.do(ctx, http.MethodPost, "/v1/reload", query)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			supervisor.Event
			supervisor.ControlError
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("reload: %w in %q", err, lines.Text())
		}
		switch {
		case line.Code != "":
			return nil, &APIError{Status: resp.StatusCode, ControlError: line.ControlError}
		case line.Report != nil:
			return line.Report, nil
		case o.Event != nil:
			o.Event(line.Event)
		}
	}
	return nil, fmt.Errorf("reload: no outcome: %w", errors.Join(lines.Err(), io.ErrUnexpectedEOF))
}

// MustReload reloads and fails the test unless everything serves anew and was released.
func (d *Daemon) MustReload(services ...string) *supervisor.ReloadReport {
	d.t.Helper()
	report, err := d.Reload(limited(d.t), services...)
	if err != nil {
		d.t.Fatal(err)
	}
	if !report.OK() || !report.Released() {
		d.t.Fatalf("reload: %+v", report)
	}
	return report
}

// Follow returns the events from now on; the channel ends with the daemon or the test. It has room for 4,096: a test
// that reads nothing for longer loses none before that.
func (d *Daemon) Follow() <-chan supervisor.Event {
	d.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	resp, err := d.do(ctx, http.MethodGet, "/v1/events", nil)
	if err != nil {
		cancel()
		d.t.Fatal(err)
	}
	events, over := make(chan supervisor.Event, 4096), make(chan struct{})
	go func() { // waited for by the cleanup
		defer close(over)
		defer close(events)
		dec := json.NewDecoder(resp.Body)
		for {
			var e supervisor.Event
			if dec.Decode(&e) != nil {
				return
			}
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	d.t.Cleanup(func() {
		cancel()
		<-over
		_ = resp.Body.Close()
	})
	return events
}

// WaitEvent reads events until one is ok and returns it.
func (d *Daemon) WaitEvent(events <-chan supervisor.Event, what string, ok func(supervisor.Event) bool) supervisor.Event {
	d.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e, open := <-events:
			if !open {
				d.t.Fatalf("the events have ended before: %s", what)
			}
			if ok(e) {
				return e
			}
		case <-deadline:
			d.t.Fatalf("no event within %v: %s", patience, what)
		}
	}
}

// HUP asks for a reload of everything.
func (d *Daemon) HUP() { d.t.Helper(); d.Signal(unix.SIGHUP) }

// Signal sends a signal to handoverd itself.
func (d *Daemon) Signal(sig syscall.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		d.t.Fatalf("signal %v: %v", sig, err)
	}
	if sig == unix.SIGSTOP {
		eventually(d.t, "handoverd is stopped", func() bool { return stopped(d.PID) })
	}
}

// stopped reports whether no thread of the process runs any more: each stops when it comes to it.
func stopped(pid int) bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if _, after, ok := strings.Cut(string(b), ") "); err != nil || !ok || after[0] != 'T' {
			return false
		}
	}
	return err == nil && len(stats) > 0
}

// WaitExit waits until handoverd has ended and returns its exit code, -1 for a death by signal.
func (d *Daemon) WaitExit() int {
	d.t.Helper()
	select {
	case <-d.exited:
	case <-time.After(patience):
		d.t.Fatalf("handoverd has not ended within %v", patience)
	}
	return d.cmd.ProcessState.ExitCode()
}

// Stop sends SIGTERM, waits, and fails the test unless handoverd exits with 0 and leaves nothing.
func (d *Daemon) Stop() {
	d.t.Helper()
	d.Signal(unix.SIGTERM)
	if code := d.WaitExit(); code != 0 {
		d.t.Errorf("handoverd exited with %d (%v), want 0", code, d.cmd.ProcessState)
	}
	if left := d.Left(); len(left) > 0 {
		d.t.Errorf("processes are left after the stop: %v", left)
	}
}

// Kill sends SIGKILL to handoverd alone and waits for its end. What it started goes on.
func (d *Daemon) Kill() {
	d.t.Helper()
	d.Signal(unix.SIGKILL)
	d.WaitExit()
}

// Left lists the living processes that were started under this daemon, by pid, without itself.
func (d *Daemon) Left() []int {
	d.t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		d.t.Fatal(err)
	}
	mark := []byte(markEnv + "=" + d.Dir)
	var left []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == d.PID || pid == os.Getpid() {
			continue
		}
		// A keeper has an empty environment, and its directory as its argument.
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if bytes.Equal(args, []byte("handoverd-keeper\x00"+d.Dir+"\x00")) && d.ended() {
			left = append(left, pid)
			continue
		}
		// A process that has ended meanwhile, or a zombie, has no environment.
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		for kv := range bytes.SplitSeq(env, []byte{0}) {
			if bytes.Equal(kv, mark) {
				left = append(left, pid)
				break
			}
		}
	}
	return left
}

// ended reports whether handoverd itself has ended.
func (d *Daemon) ended() bool {
	select {
	case <-d.exited:
		return true
	default:
		return false
	}
}

// endStray ends a process that is no child of the test, and waits until it has ended, at most 10 s.
func endStray(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has ended by itself
	}
	defer func() { _ = unix.Close(fd) }()
	if unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) != nil {
		return
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// cleanup ends the daemon and all it started, and tells the log of a failed test.
func (d *Daemon) cleanup() {
	if d.cmd != nil {
		select {
		case <-d.exited:
		default:
			_ = d.cmd.Process.Signal(unix.SIGQUIT) // stop now: it ends its programs
			select {
			case <-d.exited:
			case <-time.After(10 * time.Second):
				d.t.Errorf("handoverd did not obey SIGQUIT within 10 s")
				_ = d.cmd.Process.Kill()
				<-d.exited
			}
		}
		for range 10 { // one that is killed may have just started another
			left := d.Left()
			if len(left) == 0 {
				break
			}
			for _, pid := range left {
				endStray(pid)
			}
		}
	}
	if d.t.Failed() {
		text := d.Log()
		const most = 16 << 10
		if len(text) > most {
			text = "…" + text[len(text)-most:]
		}
		d.t.Logf("handoverd's log:\n%s", text)
	}
	d.client.CloseIdleConnections()
	_ = os.RemoveAll(d.Dir)
}

// TestDaemonLeavesNothing is the harness's own test: what a killed daemon leaves is found, and ended with its test.
func TestDaemonLeavesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	var d *Daemon
	t.Run("killed", func(t *testing.T) {
		d = StartDaemon(t, goserver(t, FreePort(t)))
		_, pid := d.Serving("web")
		d.Kill()
		if left := d.Left(); !slices.Contains(left, pid) {
			t.Errorf("left by the killed daemon: %v, want %d among them", left, pid)
		}
	})
	if left := d.Left(); len(left) > 0 {
		t.Errorf("left by the test: %v", left)
	}
}
