//go:build linux

package handover_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// handoverd as a service of systemd, against a double that reads its NOTIFY_SOCKET and keeps every datagram. What a real
// systemd makes of it is tested by make systemd.

// notifyDouble is a service manager's end: what it was told, and the descriptors that it keeps.
type notifyDouble struct {
	t    testing.TB
	name string // for NOTIFY_SOCKET
	fd   int

	mu    sync.Mutex
	heard []string         // the datagrams, in order
	from  []int            // the pids of their senders
	store map[string][]int // by FDNAME
	over  chan struct{}
}

// newNotifyDouble binds name, a path or "@name", and keeps at most room descriptors.
func newNotifyDouble(t testing.TB, name string, room int) *notifyDouble {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: name})
	}
	if err != nil {
		t.Fatal(err)
	}
	m := &notifyDouble{t: t, name: name, fd: fd, store: map[string][]int{}, over: make(chan struct{})}
	go m.listen(room) // waited for by the cleanup
	t.Cleanup(func() {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		<-m.over
		_ = unix.Close(fd)
		for _, fds := range m.store {
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
		}
		if t.Failed() {
			t.Logf("the service manager heard:\n%s", strings.Join(m.all(), "\n--\n"))
		}
	})
	return m
}

func (m *notifyDouble) listen(room int) {
	defer close(m.over)
	buf, oob := make([]byte, 8192), make([]byte, 4096)
	for {
		n, noob, flags, _, err := unix.Recvmsg(m.fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 && noob == 0 {
			return // the cleanup
		}
		if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			m.t.Errorf("a datagram was cut: %q", buf[:n])
		}
		m.take(string(buf[:n]), oob[:noob], room)
	}
}

func (m *notifyDouble) take(text string, oob []byte, room int) {
	var fds []int
	pid := 0
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		m.t.Error(err)
	}
	for _, c := range messages {
		if got, err := unix.ParseUnixRights(&c); err == nil {
			fds = append(fds, got...)
		}
		if cred, err := unix.ParseUnixCredentials(&c); err == nil {
			pid = int(cred.Pid)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard, m.from = append(m.heard, text), append(m.from, pid)
	say := assignments(text)
	if say["FDSTOREREMOVE"] == "1" {
		for _, fd := range m.store[say["FDNAME"]] {
			_ = unix.Close(fd)
		}
		delete(m.store, say["FDNAME"])
	}
	for _, fd := range fds {
		if say["FDSTORE"] != "1" || len(m.store) >= room {
			_ = unix.Close(fd)
			continue
		}
		m.store[say["FDNAME"]] = append(m.store[say["FDNAME"]], fd)
	}
}

func assignments(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.SplitSeq(text, "\n") {
		key, value, _ := strings.Cut(line, "=")
		out[key] = value
	}
	return out
}

// all is what was heard so far.
func (m *notifyDouble) all() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.heard)
}

// wait waits for a datagram from the one with this index on that is ok, and returns it and the index after it.
func (m *notifyDouble) wait(from int, what string, ok func(map[string]string) bool) (map[string]string, int) {
	m.t.Helper()
	var found map[string]string
	next := from
	eventually(m.t, "the service manager hears: "+what, func() bool {
		heard := m.all()
		for ; next < len(heard); next++ {
			if say := assignments(heard[next]); ok(say) {
				found = say
				next++
				return true
			}
		}
		return false
	})
	return found, next
}

func says(key, value string) func(map[string]string) bool {
	return func(say map[string]string) bool { return say[key] == value }
}

// names are those of the descriptors that are kept now, without the files of programs, which are kept when there is time.
func (m *notifyDouble) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for name := range m.store {
		if !strings.HasPrefix(name, "program/") && !strings.HasPrefix(name, "copy/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// runUnder starts handoverd as the service manager would, with more in its environment.
func (d *Daemon) runUnder(t *testing.T, m *notifyDouble, environ ...string) {
	t.Helper()
	d.startUnder(t, append([]string{"NOTIFY_SOCKET=" + m.name}, environ...), "env")
}

// monotonicUsec is CLOCK_MONOTONIC now.
func monotonicUsec(t testing.TB) uint64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return uint64(ts.Nano()) / 1000
}

// TestServiceManager: the datagrams of a start, reloads that succeed, fail and are refused, and a stop.
func TestServiceManager(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	for _, name := range []string{"@", "/"} {
		t.Run("socket "+name, func(t *testing.T) {
			t.Parallel()
			d := NewDaemon(t)
			socket := filepath.Join(d.Dir, "notify.sock")
			if name == "@" {
				socket = "@handoverd-test-" + filepath.Base(d.Dir)
			}
			m := newNotifyDouble(t, socket, 100)
			d.Configure(goserver(t, FreePort(t)))
			d.runUnder(t, m)
			managedLife(t, d, m)
		})
	}
}

func managedLife(t *testing.T, d *Daemon, m *notifyDouble) {
	first, next := m.wait(0, "READY=1", says("READY", "1"))
	if want := "web: generation 1 serves"; first["STATUS"] != want {
		t.Errorf("STATUS at the start: %q, want %q", first["STATUS"], want)
	}
	for _, text := range m.all()[:next-1] {
		if say := assignments(text); say["RELOADING"] != "" || say["STOPPING"] != "" {
			t.Errorf("before READY=1: %q", text)
		}
	}
	if say := assignments(m.all()[0]); !strings.HasPrefix(say["STATUS"], "starting") || usec(t, say) < 20_000_000 {
		t.Errorf("the first datagram: %q, want STATUS=starting and EXTEND_TIMEOUT_USEC of some 30 s", m.all()[0])
	}
	reload := func(what, status string) {
		t.Helper()
		asked := monotonicUsec(t)
		d.HUP()
		say, at := m.wait(next, what+": RELOADING=1", says("RELOADING", "1"))
		if said, err := strconv.ParseUint(say["MONOTONIC_USEC"], 10, 64); err != nil || said < asked || said > monotonicUsec(t) {
			t.Errorf("%s: MONOTONIC_USEC=%s, asked at %d, now %d", what, say["MONOTONIC_USEC"], asked, monotonicUsec(t))
		}
		if usec(t, say) < 20_000_000 {
			t.Errorf("%s: RELOADING=1 with EXTEND_TIMEOUT_USEC=%s", what, say["EXTEND_TIMEOUT_USEC"])
		}
		say, next = m.wait(at, what+": READY=1", says("READY", "1"))
		if !regexp.MustCompile("^" + status).MatchString(say["STATUS"]) {
			t.Errorf("%s: READY=1 with STATUS=%q, want %s", what, say["STATUS"], status)
		}
	}
	reload("reload", "web: generation 2 serves")
	d.Configure("nonsense = 1\n")
	reload("a reload that is refused", "the last reload refused: .*handoverd.toml:1: .*; web: generation 2 serves$")
	d.Configure("[service.web]\ncommand = [\"/bin/false\"]\n[service.web.socket]\nhttp = \"" + d.Service("web").Sockets[0].Address + "\"\n")
	reload("a reload that fails", "the last reload of web failed: .*; web: generation 2 serves")
	began := time.Now()
	d.Signal(unix.SIGTERM)
	say, at := m.wait(next, "STOPPING=1", says("STOPPING", "1"))
	// The default deadline is 25 s; what handoverd and systemd need beyond it is small.
	if u := usec(t, say); u < 25_000_000 || u > 35_000_000 || !strings.HasPrefix(say["STATUS"], "stopping; web:") {
		t.Errorf("at the stop: %v, want the time of the deadline", say)
	}
	if code := d.WaitExit(); code != 0 || time.Since(began) > 25*time.Second {
		t.Errorf("exit %d after %v", code, time.Since(began))
	}
	for _, text := range m.all()[at:] {
		if say := assignments(text); say["READY"] != "" || say["RELOADING"] != "" {
			t.Errorf("after STOPPING=1, which is final: %q", text)
		}
	}
	for i, pid := range m.from {
		if pid != d.PID {
			t.Errorf("datagram %q is from process %d, not from handoverd: a service manager would not listen", m.heard[i], pid)
		}
	}
}

func usec(t testing.TB, say map[string]string) int {
	t.Helper()
	n, err := strconv.Atoi(say["EXTEND_TIMEOUT_USEC"])
	if say["EXTEND_TIMEOUT_USEC"] != "" && err != nil {
		t.Error(err)
	}
	return n
}

// TestServiceManagerHearsWhyNot: the status line of a start that has failed, which outlives the process.
func TestServiceManagerHearsWhyNot(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := NewDaemon(t)
	m := newNotifyDouble(t, d.Dir+"/notify.sock", 0)
	d.Configure("[service.web]\ncomand = []\n")
	d.runUnder(t, m)
	if code := d.WaitExit(); code != 1 {
		t.Errorf("exit %d", code)
	}
	m.wait(0, "why", func(say map[string]string) bool {
		return strings.HasPrefix(say["STATUS"], "could not start: ") && strings.Contains(say["STATUS"], "comand")
	})
}

// TestServiceManagerHearsNoProgram: programs do not learn of NOTIFY_SOCKET, and what they say to their own is not passed
// on. A slow init and a watchdog have the manager told again and again.
func TestServiceManagerHearsNoProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	d := NewDaemon(t)
	m := newNotifyDouble(t, filepath.Join(d.Dir, "notify.sock"), 0)
	fifo := filepath.Join(d.Dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	d.Configure(stepsConfig("", "serve 3", "wait "+fifo, "notify STOPPING=1|STATUS=mine|READY=1|WATCHDOG=1")(t, d, "") +
		"[service.web.ready]\nwhen = \"notify\"\n")
	d.runUnder(t, m, "WATCHDOG_USEC=200000", "LISTEN_PID=1", "LISTEN_FDS=1", "FDSTORE=0")
	next, fed := 0, time.Time{}
	for n := range 6 {
		_, next = m.wait(next, "WATCHDOG=1", says("WATCHDOG", "1"))
		if gap := time.Since(fed); n > 0 && gap > 10*time.Second {
			t.Errorf("%v between two signs of life", gap)
		}
		fed = time.Now()
	}
	if err := os.WriteFile(fifo, []byte("\n"), 0); err != nil {
		t.Fatal(err)
	}
	m.wait(next, "READY=1", says("READY", "1"))
	for _, text := range m.all() {
		if say := assignments(text); say["STOPPING"] != "" || strings.Contains(text, "mine") {
			t.Errorf("passed on from a program: %q", text)
		}
	}
	_, pid := d.Serving("web")
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		t.Fatal(err)
	}
	for kv := range strings.SplitSeq(string(text), "\x00") {
		if strings.HasPrefix(kv, "WATCHDOG_") || strings.HasPrefix(kv, "FDSTORE") || kv == "NOTIFY_SOCKET="+m.name || kv == "LISTEN_PID=1" {
			t.Errorf("the program has %q", kv)
		}
	}
	d.Stop()
}
