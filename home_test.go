//go:build linux

package handover_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/drill"
)

// The example server in its homes beside handoverd, which TestLoad has: alone, and under socket activation.

// alone is a program that upgrades itself.
type alone struct {
	t       testing.TB
	pidFile string
	exe     string
	log     lockedBuffer
	reaped  chan struct{}
}

// lockedBuffer is written by exec's goroutine and read by a test that fails.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// startAlone runs a copy of the program, which a test may replace.
func startAlone(t testing.TB, program string, args ...string) *alone {
	t.Helper()
	dir := t.TempDir()
	a := &alone{t: t, pidFile: filepath.Join(dir, "pid"), exe: filepath.Join(dir, "program"), reaped: make(chan struct{})}
	a.install(program)
	cmd := exec.Command(a.exe, append([]string{"-pid-file", a.pidFile}, args...)...)
	cmd.Stdout, cmd.Stderr = &a.log, &a.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // waited for by the cleanup: the later processes have the same standard error
		defer close(a.reaped)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		if pid := a.serving(); pid > 0 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		_ = cmd.Process.Kill()
		<-a.reaped
		if t.Failed() {
			t.Logf("the program's output:\n%s", a.log.String())
		}
	})
	eventually(t, "the first process is ready", func() bool { return a.serving() > 0 })
	return a
}

// install puts another program in the place of this one, as a deploy does.
func (a *alone) install(program string) {
	a.t.Helper()
	text, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(a.exe+".new", text, 0o755)
	}
	if err == nil {
		err = os.Rename(a.exe+".new", a.exe)
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

// serving is the process that was ready last.
func (a *alone) serving() int {
	b, _ := os.ReadFile(a.pidFile) // replaced by rename: empty only before the first
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return pid
}

func (a *alone) signal(pid int, sig unix.Signal) {
	a.t.Helper()
	if err := unix.Kill(pid, sig); err != nil {
		a.t.Fatal(err)
	}
}

// waitEnd waits until the process has ended.
func (a *alone) waitEnd(pid int) {
	a.t.Helper()
	eventually(a.t, fmt.Sprintf("process %d has ended", pid), func() bool { return unix.Kill(pid, 0) != nil || zombie(pid) })
}

// TestStandalone: without a supervisor the same program upgrades itself, in all modes of the load test, and loses nothing.
func TestStandalone(t *testing.T) {
	if testing.Short() {
		t.Skip("load needs the machine to itself; it runs without -short")
	}
	reloads, rows := 3, []loadRow{loadRows[0], loadRows[3], loadRows[5]}
	if full() {
		reloads, rows = 50, loadRows
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			if row.least == 0 {
				row.least = 500
			}
			row.name = "standalone-" + row.name
			untilDriven(t, func() error {
				report := driveAlone(t, row, reloads)
				driven := checkRow(t, row, &report, reloads)
				figures := figuresOf(row, &report, reloads)
				t.Log(figures)
				if full() {
					writeFigures(t, figures)
				}
				return driven
			})
		})
	}
}

func driveAlone(t *testing.T, row loadRow, reloads int) drill.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(reloads)*10*time.Second)
	defer cancel()
	address := fmt.Sprintf("127.0.0.1:%d", FreePort(t))
	a := startAlone(t, Program(t, goserverProgram), "-addr", address)
	run := startRow(ctx, t, row, address)
	defer run.Stop()
	if err := run.WaitOK(ctx, row.least); err != nil {
		t.Fatal(err)
	}
	for generation := 2; generation <= reloads+1; generation++ {
		old := a.serving()
		w := run.Mark(fmt.Sprint(generation))
		a.signal(old, unix.SIGHUP)
		if err := run.WaitGeneration(ctx, generation); err != nil {
			t.Fatal(err)
		}
		if err := w.Wait(ctx, row.least); err != nil {
			t.Fatal(err)
		}
		w.End()
		a.waitEnd(old) // under load too
	}
	report := run.Stop()
	last := a.serving()
	a.signal(last, unix.SIGTERM)
	a.waitEnd(last)
	return report
}

// startRow starts the load of a row.
func startRow(ctx context.Context, t *testing.T, row loadRow, address string) *drill.Run {
	t.Helper()
	load := row.load
	load.Network, load.Address, load.Duration = "tcp", address, time.Hour
	if row.relay != 0 {
		relay, err := drill.NewRelay(address, row.relay)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = relay.Close() })
		load.Address = relay.Addr()
	}
	run, err := drill.Start(ctx, load)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// TestStandaloneFails: a new program that ends in its start, or cannot be started, changes nothing; the next one is taken.
func TestStandaloneFails(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	ctx := limited(t)
	address := fmt.Sprintf("127.0.0.1:%d", FreePort(t))
	good := Program(t, goserverProgram)
	a := startAlone(t, good, "-addr", address)
	run := startRow(ctx, t, loadRow{load: drill.Load{Mode: drill.ModePost, Clients: 16}}, address)
	defer run.Stop()
	if err := run.WaitGeneration(ctx, 1); err != nil {
		t.Fatal(err)
	}
	serving := a.serving()
	for i, program := range []string{"/bin/false", "/etc/hostname"} {
		a.install(program)
		a.signal(serving, unix.SIGHUP)
		eventually(t, "the failure is told", func() bool {
			return strings.Count(a.log.String(), "handover: generation 1 serves on: upgrade: ") == i+1
		})
	}
	if a.serving() != serving {
		t.Errorf("process %d serves, before it was %d", a.serving(), serving)
	}
	a.install(good)
	a.signal(serving, unix.SIGHUP)
	if err := run.WaitGeneration(ctx, 2); err != nil {
		t.Fatal(err)
	}
	a.waitEnd(serving)
	report := run.Stop()
	if report.Failed() > 0 {
		t.Errorf("lost: %s", &report)
	}
}

// TestStandaloneWaits: SIGHUPs that come while the old generation drains are one upgrade, once it has ended.
func TestStandaloneWaits(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	address := fmt.Sprintf("127.0.0.1:%d", FreePort(t))
	a := startAlone(t, Program(t, goserverProgram), "-addr", address)
	first := a.serving()
	slow := request(t, address, "/stream?n=1&ms=3000")
	a.signal(first, unix.SIGHUP)
	eventually(t, "the second serves", func() bool { return a.serving() != first })
	second := a.serving()
	for range 3 {
		a.signal(second, unix.SIGHUP)
	}
	eventually(t, "the wait is told", func() bool {
		return strings.Contains(a.log.String(), "handover: the upgrade waits until generation 1 has drained")
	})
	if got := slow(); !strings.Contains(got, "generation=1 n=1 chunks=60 crc32=") {
		t.Errorf("the stream that was cut short ends with %q", got[max(0, len(got)-200):])
	}
	a.waitEnd(first)
	eventually(t, "the third serves", func() bool { return a.serving() != second })
	third := a.serving()
	a.waitEnd(second)
	if got := request(t, address, "/fast?n=2")(); !strings.Contains(got, "generation=3 n=2 ") {
		t.Errorf("generation 3 was to answer: %q", got)
	}
	// SIGTERM lets the request in flight end.
	slow = request(t, address, "/stream?n=3&ms=300")
	a.signal(third, unix.SIGTERM)
	if got := slow(); !strings.Contains(got, "generation=3 n=3 chunks=6 crc32=") {
		t.Errorf("cut at the stop: %q", got)
	}
	a.waitEnd(third)
	if c, err := net.Dial("tcp", address); err == nil {
		_ = c.Close()
		t.Error("the port is open after the end")
	}
}

// request sends a GET and returns with the first byte of its answer; the function returned gives the whole of it.
func request(t *testing.T, address, target string) func() string {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n", target); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 1)
	if _, err := c.Read(first); err != nil {
		t.Fatal(err)
	}
	return func() string {
		rest, err := io.ReadAll(c)
		if err != nil {
			t.Error(err)
		}
		return string(first) + string(rest)
	}
}

// TestStandaloneSockets: two sockets of port 0, a UNIX one and datagrams keep their addresses through an upgrade, and the
// path goes with the last process.
func TestStandaloneSockets(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	for _, keep := range []string{"false", "true"} {
		t.Run("keep-signals="+keep, func(t *testing.T) { checkAloneSockets(t, keep) })
	}
}

func checkAloneSockets(t *testing.T, keep string) {
	path := filepath.Join(t.TempDir(), "s")
	a := startAlone(t, Program(t, "./testdata/aloneserver"), "-unix", path, "-keep-signals="+keep)
	addresses := func(generation int) string {
		var line string
		eventually(t, "the addresses are told", func() bool {
			_, after, found := strings.Cut(a.log.String(), fmt.Sprintf("generation %d: ", generation))
			line, _, _ = strings.Cut(after, "\n")
			return found && strings.Contains(after, "\n")
		})
		return line
	}
	inode := func() uint64 {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	want, before, first := addresses(1), inode(), a.serving()
	if parts := strings.Fields(want); len(parts) != 4 || parts[0] == parts[1] {
		t.Fatalf("addresses %q: want four, the first two different", want)
	}
	a.signal(first, unix.SIGHUP)
	if got := addresses(2); got != want {
		t.Errorf("addresses are %q, before the upgrade %q", got, want)
	}
	if inode() != before {
		t.Error("the path is another socket after the upgrade")
	}
	a.waitEnd(first)
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	second := a.serving()
	a.signal(second, unix.SIGINT)
	a.waitEnd(second)
	select { // all that it has said is there when nobody has its output any more
	case <-a.reaped:
	case <-time.After(patience):
		t.Fatalf("not within %v: the end of the output", patience)
	}
	for _, end := range []string{"generation 1 ends: reload", "generation 2 ends: stop"} {
		if byItself := keep == "true" && strings.HasPrefix(end, "generation 2"); strings.Contains(a.log.String(), end) == byItself {
			t.Errorf("%q told: %v", end, !byItself)
		}
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the path is left behind: %v", err)
	}
	if own := strings.Contains(a.log.String(), "stops by itself"); own != (keep == "true") {
		t.Errorf("stopped by itself: %v, want %s", own, keep)
	}
}

// TestActivated: under systemd socket activation the program is restarted, and the clients' connections wait in the socket,
// which the service manager keeps. The test is the service manager.
func TestActivated(t *testing.T) {
	if testing.Short() {
		t.Skip("load needs the machine to itself; it runs without -short")
	}
	restarts, modes := 2, []drill.Mode{drill.ModeFresh, drill.ModePost}
	if full() {
		restarts, modes = 50, []drill.Mode{drill.ModeFresh, drill.ModeKeepAlive, drill.ModePost}
	}
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(restarts)*5*time.Second)
			defer cancel()
			addr, options, err := fdpass.ParseAddr(fmt.Sprintf("tcp4://127.0.0.1:%d", FreePort(t)))
			if err != nil {
				t.Fatal(err)
			}
			socket, err := fdpass.Bind(addr, options)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = socket.Close() }()
			program := Program(t, goserverProgram)
			pid := activate(t, program, socket.FD())
			defer func() { kill(t, pid, unix.SIGKILL) }()
			address := net.JoinHostPort(addr.IP.String(), strconv.Itoa(int(addr.Port)))
			run := startRow(ctx, t, loadRow{load: drill.Load{Mode: mode, Rate: 1000}}, address)
			defer run.Stop()
			for i := range restarts {
				w := run.Mark(fmt.Sprint(i))
				if err := run.WaitOK(ctx, run.Snapshot().OK+500); err != nil {
					t.Fatal(err)
				}
				if status := kill(t, pid, unix.SIGTERM); status.ExitStatus() != 0 {
					t.Errorf("the program ended with %v", status)
				}
				pid = activate(t, program, socket.FD())
				if err := run.WaitOK(ctx, run.Snapshot().OK+500); err != nil {
					t.Fatal(err)
				}
				w.End()
			}
			report := run.Stop()
			t.Logf("%d restarts: %s", restarts, &report)
			checkSent(t, &report)
			if report.Failed() > 0 {
				t.Errorf("lost: %s", &report)
			}
		})
	}
}

// activate starts the program as systemd.socket(5) has it: by a shell that knows its own number and becomes the program.
func activate(t *testing.T, program string, fd int) int {
	t.Helper()
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(null) }()
	// Not exec.Cmd, whose ExtraFiles would make the socket a blocking one for all who share it.
	pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", `LISTEN_PID=$$ exec "$0"`, program}, &syscall.ProcAttr{
		Env:   []string{"LISTEN_FDS=1", "LISTEN_FDNAMES=http", "PATH=/usr/bin:/bin"},
		Files: []uintptr{uintptr(null), uintptr(null), uintptr(null), uintptr(fd)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// kill ends a child of the test and reaps it.
func kill(t *testing.T, pid int, sig unix.Signal) unix.WaitStatus {
	t.Helper()
	var status unix.WaitStatus
	if err := unix.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
	for {
		_, err := unix.Wait4(pid, &status, 0, nil)
		if err == nil {
			return status
		}
		if err != unix.EINTR {
			t.Fatal(err)
		}
	}
}
