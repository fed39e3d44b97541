//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// patience bounds every wait of the scripts. It is no measure of anything: a busy machine must not fail them.
const patience = 60 * time.Second

// scriptCommands are what the scripts may use beside testscript's own.
var scriptCommands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"daemon":   cmdDaemon,   // daemon ARG…: handoverd run ARG… in the background
	"await":    cmdAwait,    // await CONDITION ARG…, see conditions: polls the status
	"hup":      cmdHup,      // hup: reload by signal
	"slay":     cmdSlay,     // slay SERVICE: SIGKILL to what serves
	"exits":    cmdExits,    // exits CODE PROGRAM ARG…: runs it and wants this exit code
	"ended":    cmdEnded,    // ended CODE: waits until the daemon has ended, with this exit code
	"get":      cmdGet,      // get SERVICE SOCKET: stdout is the generation that answers
	"metrics":  cmdMetrics,  // metrics PORT [PATH]: stdout is what /metrics shows, or another page
	"addr":     cmdAddr,     // addr VARIABLE SERVICE SOCKET: where the socket is bound
	"closed":   cmdClosed,   // closed HOST:PORT: waits until a connection is refused
	"occupy":   cmdOccupy,   // occupy VARIABLE: a port of 127.0.0.1 that somebody else listens on
	"freeport": cmdFreePort, // freeport VARIABLE: a port of 127.0.0.1 that nobody listens on
	"expand":   cmdExpand,   // expand FILE: replaces $VARIABLEs
	"hold":     cmdHold,     // hold SERVICE SOCKET: a response that goes on until release
	"release":  cmdRelease,  // release: ends what hold began
	"flaky":    cmdFlaky,    // flaky VARIABLE N: a server whose every Nth answer is 503
	"modes":    cmdModes,    // modes: servers of all that drill speaks
	"each":     cmdEach,     // each MODE…: stdout is a drill's JSON of these modes, each of which had answers
	"report":   cmdReport,   // report FIELD=VALUE…: stdout is a drill's JSON with these fields, and adds up
	"failures": cmdFailures, // failures KIND: stdout is a drill's JSON with the flaky server's failures
	"stale":    cmdStale,    // stale PATH: a socket that nobody listens on any more
}

type daemonKey struct{}

// daemon is the handoverd of one script.
type daemon struct {
	dir  string // its runtime directory
	cmd  *exec.Cmd
	log  buffer
	done chan struct{} // closed when it has been waited for
	held []func()      // ends what hold began
}

// buffer may be written and read at the same time.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func theDaemon(ts *testscript.TestScript) *daemon { return ts.Value(daemonKey{}).(*daemon) }

func cmdDaemon(ts *testscript.TestScript, neg bool, args []string) {
	d := theDaemon(ts)
	if neg || d.cmd != nil && !d.ended() {
		ts.Fatalf("usage: daemon ARG…, again only after its end")
	}
	var program string
	for dir := range strings.SplitSeq(ts.Getenv("PATH"), ":") {
		if _, err := os.Stat(dir + "/handoverd"); err == nil {
			program = dir + "/handoverd"
			break
		}
	}
	d.cmd = exec.Command(program, append([]string{"run"}, args...)...)
	d.cmd.Dir = ts.Getenv("WORK")
	d.cmd.Env = []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME"), "WORK=" + ts.Getenv("WORK")}
	d.cmd.Stderr = &d.log
	ts.Check(d.cmd.Start())
	d.done = make(chan struct{})
	go d.wait() // kill waits for it
}

// ended reports whether the one that was started last has ended.
func (d *daemon) ended() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

func (d *daemon) wait() {
	defer close(d.done)
	_ = d.cmd.Wait() // ended looks at the state
}

// kill ends a daemon that the script has not ended, with all it started: QUIT kills them.
func (d *daemon) kill() {
	d.letGo()
	if d.cmd == nil {
		return
	}
	defer d.killNext()
	_ = d.cmd.Process.Signal(unix.SIGQUIT) // it may have ended
	select {
	case <-d.done:
	case <-time.After(patience):
		_ = d.cmd.Process.Kill()
		<-d.done
	}
}

// killNext ends the one that a script had started after it killed the first.
func (d *daemon) killNext() {
	st, err := d.status()
	if err != nil {
		return // there is none
	}
	l, err := listenerOf(context.Background(), supervisor.ControlPath(d.dir))
	if err != nil {
		return
	}
	defer l.close()
	_ = unix.Kill(st.PID, unix.SIGQUIT)
	_ = l.wait()
}

func (d *daemon) letGo() {
	for _, end := range d.held {
		end()
	}
	d.held = nil
}

func (d *daemon) status() (*supervisor.Status, error) {
	c, err := (&where{dir: d.dir}).client()
	if err != nil {
		return nil, err
	}
	defer c.http.CloseIdleConnections()
	return c.status(context.Background())
}

// poll tries again until it works or the script has waited too long. What the daemon has written is then the best hint.
func poll(ts *testscript.TestScript, what string, try func() error) {
	d := theDaemon(ts)
	limit := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
			continue
		case <-limit:
		case <-d.done: // nil, so never, without a daemon
			if err = try(); err == nil {
				return
			}
		}
		ts.Fatalf("%s: %v\nthe daemon's log:\n%s", what, err, d.log.String())
	}
}

// conditions are what await waits for. A condition is an error that says what is the case instead.
var conditions = map[string]func(d *daemon, st *supervisor.Status, args []string) error{
	// phase SERVICE GENERATION PHASE, gone being the phase of one that there is no more
	"phase": func(_ *daemon, st *supervisor.Status, args []string) error {
		if len(args) != 3 {
			return errors.New("usage: await phase SERVICE GENERATION PHASE")
		}
		phase := string(supervisor.PhaseGone)
		for _, g := range service(st, args[0]).Generations {
			if strconv.Itoa(g.Generation) == args[1] {
				phase = string(g.Phase)
			}
		}
		if phase != args[2] {
			return fmt.Errorf("%s.%s is %s", args[0], args[1], phase)
		}
		return nil
	},
	// waiting SERVICE: its new generation waits
	"waiting": func(_ *daemon, st *supervisor.Status, args []string) error {
		if service(st, args[0]).Waiting == "" {
			return errors.New("nothing waits")
		}
		return nil
	},
	// followers N: so many follow the events, one of them being the daemon's own metrics
	"followers": func(_ *daemon, st *supervisor.Status, args []string) error {
		if strconv.Itoa(st.Followers) != args[0] {
			return fmt.Errorf("%d follow", st.Followers)
		}
		return nil
	},
	// stopping
	"stopping": func(_ *daemon, st *supervisor.Status, _ []string) error {
		if !st.Stopping {
			return errors.New("no stop is under way")
		}
		return nil
	},
}

func service(st *supervisor.Status, name string) *supervisor.ServiceStatus {
	i := slices.IndexFunc(st.Services, func(s supervisor.ServiceStatus) bool { return s.Name == name })
	if i < 0 {
		return &supervisor.ServiceStatus{}
	}
	return &st.Services[i]
}

func cmdAwait(ts *testscript.TestScript, neg bool, args []string) {
	d := theDaemon(ts)
	if neg || len(args) == 0 {
		ts.Fatalf("usage: await CONDITION ARG…")
	}
	what := "await " + strings.Join(args, " ")
	switch args[0] {
	case "metric":
		poll(ts, what, func() error {
			text, err := page(args[1], "/metrics")
			if err == nil && !strings.Contains(text, "\n"+args[2]+"\n") {
				err = errors.New("another value, or none")
			}
			return err
		})
		return
	case "log":
		poll(ts, what, func() error {
			if !strings.Contains(d.log.String(), args[1]) {
				return errors.New("not in the log")
			}
			return nil
		})
		return
	}
	holds := conditions[args[0]]
	if holds == nil {
		ts.Fatalf("no such condition: %s", args[0])
	}
	poll(ts, what, func() error {
		st, err := d.status()
		if err != nil {
			return err
		}
		return holds(d, st, args[1:])
	})
}

func cmdHup(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Check(theDaemon(ts).cmd.Process.Signal(unix.SIGHUP))
}

func cmdSlay(ts *testscript.TestScript, _ bool, args []string) {
	st, err := theDaemon(ts).status()
	ts.Check(err)
	for _, g := range service(st, args[0]).Generations {
		if g.Phase == supervisor.PhaseServing {
			ts.Check(unix.Kill(g.PID, unix.SIGKILL))
			return
		}
	}
	ts.Fatalf("nothing serves")
}

func page(port, path string) (string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	res, err := client.Get("http://127.0.0.1:" + port + path)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.New(res.Status)
	}
	return string(text), err
}

func cmdMetrics(ts *testscript.TestScript, _ bool, args []string) {
	path := "/metrics"
	if len(args) > 1 {
		path = args[1]
	}
	text, err := page(args[0], path)
	ts.Check(err)
	_, err = io.WriteString(ts.Stdout(), text)
	ts.Check(err)
}

func cmdFreePort(ts *testscript.TestScript, neg bool, args []string) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	ts.Check(err)
	ts.Check(l.Close())
	ts.Setenv(args[0], strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
}

func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG…")
	}
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s\nthe daemon's log:\n%s", code, args[0], theDaemon(ts).log.String())
	}
}

func cmdEnded(ts *testscript.TestScript, neg bool, args []string) {
	d := theDaemon(ts)
	if neg || len(args) != 1 || d.cmd == nil {
		ts.Fatalf("usage: ended CODE, after daemon")
	}
	select {
	case <-d.done:
	case <-time.After(patience):
		ts.Fatalf("the daemon has not ended; its log:\n%s", d.log.String())
	}
	if code := d.cmd.ProcessState.ExitCode(); strconv.Itoa(code) != args[0] {
		ts.Fatalf("the daemon's exit code is %d, want %s; its log:\n%s", code, args[0], d.log.String())
	}
}

// address is where a socket is bound.
func address(ts *testscript.TestScript, args []string) string {
	if len(args) != 2 {
		ts.Fatalf("want SERVICE SOCKET, not %q", args)
	}
	st, err := theDaemon(ts).status()
	ts.Check(err)
	for _, s := range service(st, args[0]).Sockets {
		if s.Name == args[1] {
			return strings.TrimPrefix(s.Address, "tcp://")
		}
	}
	ts.Fatalf("%s has no socket %s", args[0], args[1])
	return ""
}

func cmdAddr(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: addr VARIABLE SERVICE SOCKET")
	}
	ts.Setenv(args[0], address(ts, args[1:]))
}

func cmdGet(ts *testscript.TestScript, _ bool, args []string) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	res, err := client.Get("http://" + address(ts, args) + "/fast?n=1")
	ts.Check(err)
	ts.Check(res.Body.Close())
	_, err = fmt.Fprintf(ts.Stdout(), "generation %s\n", res.Header.Get("X-Generation"))
	ts.Check(err)
}

func cmdClosed(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: closed HOST:PORT")
	}
	poll(ts, "closed "+args[0], func() error {
		c, err := net.Dial("tcp", args[0])
		if err == nil {
			_ = c.Close()
			return errors.New("it takes connections")
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return err
		}
		return nil
	})
}

func cmdOccupy(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: occupy VARIABLE")
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = l.Close() })
	ts.Setenv(args[0], strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
}

func cmdExpand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: expand FILE")
	}
	text := os.Expand(ts.ReadFile(args[0]), ts.Getenv)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

// hold begins a response that is not finished before release: its first byte has come when the command returns.
func cmdHold(ts *testscript.TestScript, neg bool, args []string) {
	d := theDaemon(ts)
	ctx, cancel := context.WithCancel(context.Background())
	d.held = append(d.held, cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address(ts, args)+"/stream?n=1&ms=600000", nil)
	ts.Check(err)
	res, err := (&http.Transport{}).RoundTrip(req)
	ts.Check(err)
	if neg || res.StatusCode != http.StatusOK {
		ts.Fatalf("hold: %s", res.Status)
	}
	d.held = append(d.held, func() { _ = res.Body.Close() })
}

func cmdRelease(ts *testscript.TestScript, _ bool, _ []string) { theDaemon(ts).letGo() }

func cmdStale(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: stale PATH")
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: args[0], Net: "unix"})
	ts.Check(err)
	l.SetUnlinkOnClose(false)
	ts.Check(l.Close())
}
