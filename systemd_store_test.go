//go:build linux

package handover_test

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// passed is what a service manager passes to a start: descriptors with their names. They are borrowed.
type passed struct {
	names []string
	fds   []int
}

// stored is all that the double keeps, in the order of the names.
func (m *notifyDouble) stored() passed {
	m.mu.Lock()
	defer m.mu.Unlock()
	var p passed
	for _, name := range slices.Sorted(maps.Keys(m.store)) {
		for _, fd := range m.store[name] {
			p.names, p.fds = append(p.names, name), append(p.fds, fd)
		}
	}
	return p
}

// startPassed starts handoverd with descriptors from 3 on, as systemd does.
func (d *Daemon) startPassed(t *testing.T, m *notifyDouble, p passed, environ ...string) {
	t.Helper()
	log, err := os.OpenFile(d.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	d.cmd = exec.Command("sh", "-c", `export LISTEN_PID=$$; exec "$@"`, "sh", Program(t, handoverdProgram), "run", "-c", d.ConfigFile())
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.Env = append(os.Environ(), markEnv+"="+d.Dir, "NOTIFY_SOCKET="+m.name,
		fmt.Sprintf("LISTEN_FDS=%d", len(p.fds)), "LISTEN_FDNAMES="+strings.Join(p.names, ":"))
	d.cmd.Env = append(d.cmd.Env, environ...)
	for _, fd := range p.fds {
		// A copy, and the mode is set again below: ExtraFiles clears O_NONBLOCK for every holder.
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		d.cmd.ExtraFiles = append(d.cmd.ExtraFiles, os.NewFile(uintptr(dup), "passed"))
	}
	defer func() {
		for _, f := range d.cmd.ExtraFiles {
			_ = f.Close()
		}
	}()
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, fd := range p.fds {
		if err := unix.SetNonblock(fd, true); err != nil {
			t.Fatal(err)
		}
	}
	d.PID, d.exited = d.cmd.Process.Pid, make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) { // waited for through exited
		_ = cmd.Wait()
		close(exited)
	}(d.cmd, d.exited)
}

// queuedRequest connects and asks, and returns a function that waits for the answer.
func queuedRequest(t *testing.T, address string) (answer func()) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err == nil {
		_, err = c.Write([]byte("GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"))
	}
	if err != nil {
		t.Fatalf("while nobody serves: %v", err)
	}
	return func() {
		t.Helper()
		defer func() { _ = c.Close() }()
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("who waited in the queue: %v", err)
			return
		}
		_ = resp.Body.Close()
		if resp.StatusCode >= 500 {
			t.Errorf("who waited in the queue: %s", resp.Status)
		}
	}
}

// TestStoreKeepsThePort: the fd store takes the keeper's place, over a SIGKILL and over an ordered restart.
func TestStoreKeepsThePort(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := NewDaemon(t)
	m := newNotifyDouble(t, d.Dir+"/notify.sock", 100)
	port := FreePort(t)
	other := strings.Replace(strings.Replace(goserver(t, FreePort(t)), "service.web", "service.other", -1), "web.", "other.", 1)
	path := d.Dir + "/local.sock"
	web := rewrite(t, goserver(t, port), "[service.web.socket]\n", fmt.Sprintf("[service.web.socket]\nlocal = \"unix://%s\"\n", path))
	d.Configure(web + other)
	const store = "FDSTORE=64"
	d.runUnder(t, m, store)
	_, next := m.wait(0, "READY=1", says("READY", "1"))
	address := fmt.Sprintf("127.0.0.1:%d", port)
	socket := fmt.Sprintf("socket/tcp|127.0.0.1|%d", port)
	local := "socket/unix|" + path
	all := []string{"control/other.1", "control/web.1", "notify/other.1", "notify/web.1", socket, local}
	for _, name := range all {
		if !slices.Contains(m.names(), name) {
			t.Errorf("the store has %v, want %s among them", m.names(), name)
		}
	}
	st := d.Status()
	if st.Keeper.PID != 0 || st.Keeper.Off == "" || st.Store.Held < 7 || st.Store.Room != 64 || st.Store.Fault != "" {
		t.Errorf("status: keeper %+v, store %+v; want none, and at least 7 descriptors", st.Keeper, st.Store)
	}
	if s := st.Services[0].Sources; s.Store != "" || s.Keeper == "" {
		t.Errorf("sources: %+v", s)
	}

	// Killed: all that it had stored comes back, and the program is spoken to as before.
	_, pid := d.Serving("web")
	d.Kill()
	d.startPassed(t, m, m.stored(), store)
	_, next = m.wait(next, "READY=1 of the next life", says("READY", "1"))
	if n, again := d.Serving("web"); n != 1 || again != pid {
		t.Errorf("generation %d, pid %d serves after the kill, want 1, %d", n, again, pid)
	}
	if from := d.Service("web").Sockets[0].TakenFrom; from != "systemd's fd store" {
		t.Errorf("the socket was taken from %q", from)
	}
	if strings.Contains(d.Log(), "may be lost") {
		t.Error("channels were not taken back")
	}

	// A service that a reload removes takes its sockets and channels out of the store.
	d.Configure(web)
	d.MustReload()
	eventually(t, "the store has what is left", func() bool {
		return slices.Equal(m.names(), []string{"control/web.2", "notify/web.2", socket, local})
	})
	m.wait(next, "FDSTOREREMOVE", says("FDSTOREREMOVE", "1"))

	// An ordered end, of which no systemd says what follows: the socket stays, and who comes meanwhile waits.
	d.Signal(unix.SIGTERM)
	if code := d.WaitExit(); code != 0 {
		t.Errorf("exit %d", code)
	}
	if left := m.names(); !slices.Equal(left, []string{socket, local}) {
		t.Errorf("the store has %v after the stop, want the sockets alone", left)
	}
	answer := queuedRequest(t, address)
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Errorf("the path while nobody serves: %v", err)
	} else {
		defer func() { _ = c.Close() }()
	}
	d.startPassed(t, m, m.stored(), store)
	answer()
	d.WaitReady()
	for _, s := range d.Service("web").Sockets {
		if s.TakenFrom != "systemd's fd store" {
			t.Errorf("socket %s after the restart: %+v", s.Name, s)
		}
	}
	if n := len(m.store[socket]); n != 1 {
		t.Errorf("the store has the socket %d times", n)
	}

	// A socket that the configuration does not have any more when it comes back is closed.
	d.Signal(unix.SIGTERM)
	d.WaitExit()
	moved := FreePort(t)
	d.Configure(goserver(t, moved))
	d.startPassed(t, m, m.stored(), store)
	d.WaitReady()
	eventually(t, "the store drops what nobody wants", func() bool {
		return !slices.Contains(m.names(), socket) && !slices.Contains(m.names(), local)
	})
	if c, err := net.Dial("tcp", address); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("connect to the address that is not served any more: %v, %v", c, err)
	}
	d.Signal(unix.SIGTERM)
	d.WaitExit()
}

// TestStoreTooSmall: what the store has no room for a keeper holds.
func TestStoreTooSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := NewDaemon(t)
	m := newNotifyDouble(t, d.Dir+"/notify.sock", 2)
	d.Configure(goserver(t, FreePort(t)))
	d.runUnder(t, m, "FDSTORE=2")
	d.WaitReady()
	st := d.WaitStatus("a keeper holds what the store does not", func(st *supervisor.Status) bool { return st.Keeper.PID != 0 && st.Keeper.Held >= 3 })
	if !strings.Contains(st.Store.Fault, "FileDescriptorStoreMax=2") || len(m.names()) != 2 {
		t.Errorf("store: %+v, kept %v", st.Store, m.names())
	}
	_, pid := d.Serving("web")
	d.Kill()
	d.startPassed(t, m, m.stored(), "FDSTORE=2")
	d.WaitReady()
	if _, again := d.Serving("web"); again != pid || strings.Contains(d.Log(), "may be lost") {
		t.Errorf("pid %d serves after the kill, want %d, with its channels", again, pid)
	}
}

// TestSocketUnits: sockets of socket units are adopted by name, live on when handoverd ends, and are refused by name where
// they are bound elsewhere.
func TestSocketUnits(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := NewDaemon(t)
	m := newNotifyDouble(t, d.Dir+"/notify.sock", 100)
	unit := func(port int) (int, string) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port})
		}
		if err == nil {
			err = unix.Listen(fd, 128)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd, fmt.Sprintf("127.0.0.1:%d", port)
	}
	port := FreePort(t)
	fd, address := unit(port)
	foreign, elsewhere := unit(FreePort(t))
	d.Configure(goserver(t, port))

	// Under another address the start is refused, by name.
	d.startPassed(t, m, passed{[]string{"http"}, []int{foreign}}, "FDSTORE=64")
	if code := d.WaitExit(); code != 1 {
		t.Errorf("exit %d of a start with a socket that is bound elsewhere, want 1", code)
	}
	want := fmt.Sprintf("service.web.socket.http: systemd passes a socket named %q that is not this one: it is %s", "http", elsewhere)
	m.wait(0, want, func(say map[string]string) bool {
		return strings.HasPrefix(say["STATUS"], "could not start: ") && strings.Contains(say["STATUS"], want)
	})

	answer := queuedRequest(t, address) // before it starts: this is what activates it
	both := passed{[]string{"web.http", "handoverd.socket"}, []int{fd, foreign}}
	d.startPassed(t, m, both, "FDSTORE=64")
	answer()
	d.WaitReady()
	d.WaitLog("it is not used; set FileDescriptorName= in its unit\" name=handoverd.socket")
	s := d.Service("web").Sockets[0]
	if s.TakenFrom != "systemd's socket unit" || !s.Nonblocking {
		t.Errorf("socket: %+v", s)
	}
	for _, name := range m.names() {
		if strings.HasPrefix(name, "socket/") {
			t.Errorf("stored, though systemd has it in its unit: %s", name)
		}
	}
	_, pid := d.Serving("web")
	d.Kill()
	d.startPassed(t, m, passed{append(both.names, m.stored().names...), append(both.fds, m.stored().fds...)}, "FDSTORE=64")
	d.WaitReady()
	if _, again := d.Serving("web"); again != pid || d.Service("web").Sockets[0].TakenFrom != "systemd's socket unit" {
		t.Errorf("after the kill: pid %d, %+v", again, d.Service("web").Sockets)
	}
	d.MustReload()
	d.Signal(unix.SIGTERM)
	if code := d.WaitExit(); code != 0 {
		t.Errorf("exit %d", code)
	}
	answer = queuedRequest(t, address) // systemd still listens
	d.startPassed(t, m, both)
	answer()
	d.WaitReady()
	d.Signal(unix.SIGTERM)
	d.WaitExit()
}
