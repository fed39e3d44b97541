package handover_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover"
	"github.com/handoverd/handover/internal/fdleak"
	"github.com/handoverd/handover/internal/sdnotify"
	"github.com/handoverd/handover/internal/wire"
)

// The tests of this file start this binary again as a program that uses the
// package. helperEnv names what it shall do.
const (
	helperEnv = "HANDOVER_TEST_HELPER"
	selfPID   = "self" // LISTEN_PID: to be replaced by the program's own
)

// init runs the program in the child. Not TestMain, which the package's other
// tests may need for themselves.
func init() {
	what, ok := os.LookupEnv(helperEnv)
	if !ok {
		return
	}
	if os.Getenv("LISTEN_PID") == selfPID {
		// What the exec shim does: the number stays the same over exec.
		_ = os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
		err := syscall.Exec("/proc/self/exe", os.Args, os.Environ())
		say("exec: %v", err)
		os.Exit(9)
	}
	if what == "example" {
		Example()
	} else {
		helper(what, os.Args[1:])
	}
	os.Exit(0)
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// helper inherits, takes each "name,network,address" of args, serves, and says
// on its standard output what happens.
func helper(what string, args []string) {
	child, err := handover.Inherit()
	if err != nil {
		say("inherit: %v", err)
		os.Exit(3)
	}
	if _, err := handover.Inherit(); !errors.Is(err, handover.ErrInherited) {
		say("second Inherit: %v", err)
	}
	for _, kv := range os.Environ() {
		for _, gone := range []string{"LISTEN_", "HANDOVER_FD"} {
			if strings.HasPrefix(kv, gone) {
				say("still there: %s", kv)
			}
		}
	}
	var servers sync.WaitGroup
	var closers []interface{ Close() error }
	for _, arg := range args {
		f := strings.Split(arg, ",")
		if f[1] == "udp" || f[1] == "unixgram" {
			pc, err := child.ListenPacket(f[0], f[1], f[2])
			if err != nil {
				say("listen: %v", err)
				os.Exit(4)
			}
			say("%s %T %s", f[0], pc.LocalAddr(), pc.LocalAddr())
			closers = append(closers, pc)
			servers.Go(func() { echo(child, pc) })
			continue
		}
		ln, err := child.Listen(f[0], f[1], f[2])
		if err != nil {
			say("listen: %v", err)
			os.Exit(4)
		}
		say("%s %T %s", f[0], ln.Addr(), ln.Addr())
		closers = append(closers, ln)
		servers.Go(func() { serve(child, ln) })
	}
	if what == "hang" {
		say("hanging")
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(7)
	}
	err = child.Ready()
	say("ready: %v", err)
	if err == nil && what != "once" {
		<-child.Draining()
		ctx, cancel := child.DrainContext(context.Background())
		at, ok := ctx.Deadline()
		say("draining: deadline %v, in %v", ok, time.Until(at).Round(time.Second))
		cancel()
	}
	if what == "once" {
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
	}
	if err == nil {
		for _, c := range closers {
			if err := c.Close(); err != nil {
				say("close: %v", err)
			}
		}
	}
	servers.Wait()
	say("closed")
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	if err := child.Close(); err != nil {
		say("close: %v", err)
	}
}

func serve(child *handover.Child, ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				say("accept: %v", err)
			}
			return
		}
		_, _ = fmt.Fprintf(c, "generation %d\n", child.Generation())
		_ = c.Close()
	}
}

func echo(child *handover.Child, pc net.PacketConn) {
	b := make([]byte, 100)
	for {
		_, from, err := pc.ReadFrom(b)
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				say("read: %v", err)
			}
			return
		}
		_, _ = pc.WriteTo(fmt.Appendf(nil, "generation %d\n", child.Generation()), from)
	}
}

// program is a started helper.
type program struct {
	pid   int
	out   *bufio.Scanner
	stdin *os.File
	sup   *wire.Conn // nil if not supervised
}

// start runs the helper. fds become its descriptors from 3 on; with control
// one more follows, HANDOVER_FD. ForkExec and not os/exec, whose ExtraFiles
// would make the shared sockets blocking.
func start(t *testing.T, control bool, fds []int, env []string, what string, args ...string) *program {
	t.Helper()
	p := &program{}
	var in, out [2]int
	for _, pipe := range []*[2]int{&in, &out} {
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
	files := []uintptr{uintptr(in[0]), uintptr(out[1]), 2}
	for _, fd := range fds {
		files = append(files, uintptr(fd))
	}
	childFD := -1
	if control {
		var err error
		if p.sup, childFD, err = wire.Pair(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.sup.Close() })
		env = append(env, fmt.Sprintf("HANDOVER_FD=%d", len(files)))
		files = append(files, uintptr(childFD))
	}
	pid, err := syscall.ForkExec("/proc/self/exe", append([]string{"helper"}, args...), &syscall.ProcAttr{
		Env:   append([]string{helperEnv + "=" + what}, env...),
		Files: files,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range []int{in[0], out[1], childFD} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	p.pid = pid
	stdout := os.NewFile(uintptr(out[0]), "stdout")
	p.stdin = os.NewFile(uintptr(in[1]), "stdin")
	p.out = bufio.NewScanner(stdout)
	t.Cleanup(func() {
		_ = p.stdin.Close()
		_ = stdout.Close()
		if p.pid != 0 {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
			_, _ = syscall.Wait4(p.pid, nil, 0, nil)
		}
	})
	return p
}

func (p *program) line(t *testing.T) string {
	t.Helper()
	if !p.out.Scan() {
		t.Fatalf("the program said nothing more: %v", p.out.Err())
	}
	return p.out.Text()
}

func (p *program) want(t *testing.T, want string) {
	t.Helper()
	if got := p.line(t); !strings.Contains(got, want) {
		t.Errorf("the program said %q, want %q", got, want)
	}
}

// exit lets the program end and gives its exit code.
func (p *program) exit(t *testing.T) int {
	t.Helper()
	_ = p.stdin.Close()
	for p.out.Scan() {
		t.Errorf("the program also said %q", p.out.Text())
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(p.pid, &ws, 0, nil); err != nil {
		t.Fatal(err)
	}
	p.pid = 0
	return ws.ExitStatus()
}

func (p *program) recv(t *testing.T, verb wire.Verb) wire.Message {
	t.Helper()
	m, _, err := p.sup.Recv()
	if err != nil || m.Verb != verb {
		t.Fatalf("received %+v, %v; want %s", m, err, verb)
	}
	return m
}

func (p *program) send(t *testing.T, m wire.Message) {
	t.Helper()
	if err := p.sup.Send(m); err != nil {
		t.Fatal(err)
	}
}

// polls counts the entries for sock in the program's epoll sets.
func (p *program) polls(t *testing.T, sock int) int {
	t.Helper()
	ino := fmt.Sprintf("ino:%x ", inode(t, sock))
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", p.pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("no fdinfo: %v", err)
	}
	n := 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // closed meanwhile
		}
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, "tfd:") && strings.Contains(line, ino) {
				n++
			}
		}
	}
	return n
}

// holds says whether the program has sock open.
func (p *program) holds(t *testing.T, sock int) bool {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.pid))
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("socket:[%d]", inode(t, sock))
	for _, f := range files {
		if l, err := os.Readlink(f); err == nil && l == want {
			return true
		}
	}
	return false
}

func inode(t *testing.T, fd int) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// rawSocket gives c's descriptor, duplicated, and closes c.
func rawSocket(t *testing.T, c interface {
	syscall.Conn
	Close() error
},
) int {
	t.Helper()
	if u, ok := c.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	fd := -1
	err = raw.Control(func(n uintptr) {
		fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 20)
	})
	if err != nil || fd < 0 {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func tcpSocket(t *testing.T, network, address string) (int, string) {
	t.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	return rawSocket(t, ln.(*net.TCPListener)), addr
}

// dial connects and gives a function that waits for the answer.
func dial(t *testing.T, network, address string) (net.Conn, func() string) {
	t.Helper()
	c, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, func() string {
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		s, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(s)
	}
}

var native = []string{"HANDOVER_GENERATION=7", "HANDOVER_SERVICE=web", "HANDOVER_TOKEN=t"}

func listenEnv(names ...string) []string {
	return append([]string{
		"LISTEN_PID=" + selfPID,
		fmt.Sprintf("LISTEN_FDS=%d", len(names)),
		"LISTEN_FDNAMES=" + strings.Join(names, ":"),
	}, native...)
}

func TestSupervisedLife(t *testing.T) {
	fdleak.Snapshot(t)
	path := filepath.Join(t.TempDir(), "s")
	tcp, tcpAddr := tcpSocket(t, "tcp4", "127.0.0.1:0")
	six, sixAddr := tcpSocket(t, "tcp6", "[::1]:0")
	uln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	unx := rawSocket(t, uln)
	pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	udpAddr := pc.LocalAddr().String()
	udp := rawSocket(t, pc)
	spare, _ := tcpSocket(t, "tcp4", "127.0.0.1:0")
	socks := []int{tcp, six, unx, udp, spare}
	flags := make([]int, len(socks))
	for i, fd := range socks {
		flags[i], _ = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	}

	p := start(t, true, socks, listenEnv("http", "six", "local-sock", "dns", "spare"), "serve",
		"http,tcp,", "six,tcp6,", "local-sock,unix,", "dns,udp,")
	if m := p.recv(t, wire.Hello); m.PID != p.pid || m.Generation != 7 {
		t.Errorf("hello %+v", m)
	}
	p.want(t, "http *net.TCPAddr "+tcpAddr)
	p.want(t, "six *net.TCPAddr "+sixAddr)
	p.want(t, "local-sock *net.UnixAddr "+path)
	p.want(t, "dns *net.UDPAddr "+udpAddr)
	if m := p.recv(t, wire.Ready); fmt.Sprint(m.Names) != "[http six local-sock dns]" {
		t.Errorf("ready %+v", m)
	}
	if p.holds(t, spare) {
		t.Error("the socket that nobody took is still open")
	}
	var answers []func() string
	for _, a := range [][2]string{{"tcp", tcpAddr}, {"tcp", sixAddr}, {"unix", path}, {"udp", udpAddr}} {
		c, answer := dial(t, a[0], a[1])
		if a[0] == "udp" {
			if _, err := c.Write([]byte("?")); err != nil {
				t.Fatal(err)
			}
		}
		answers = append(answers, answer)
	}
	// All four wait in the kernel by now: whoever polled or accepted would
	// have them. Reading the first must time out.
	if !readable(t, tcp) || !readable(t, udp) {
		t.Error("a waiting client was taken before accept")
	}
	for _, fd := range socks[:4] {
		if n := p.polls(t, fd); n != 0 {
			t.Errorf("socket %d: %d epoll entries before accept", fd, n)
		}
	}
	p.send(t, wire.Message{Verb: wire.Accept})
	for _, answer := range answers {
		if got := answer(); got != "generation 7" {
			t.Errorf("answer %q", got)
		}
	}
	for _, fd := range socks[:4] {
		if n := p.polls(t, fd); n != 1 {
			t.Errorf("socket %d: %d epoll entries after accept, want 1", fd, n)
		}
	}
	p.send(t, wire.Message{Verb: wire.Ack})
	p.want(t, "ready: <nil>")

	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	p.send(t, wire.Message{Verb: wire.Drain, Reason: "reload", DeadlineNS: now.Nano() + int64(time.Minute)})
	p.recv(t, wire.Draining)
	p.want(t, "draining: deadline true, in 59s")
	p.want(t, "closed")
	for i, fd := range socks {
		if n := p.polls(t, fd); n != 0 || p.holds(t, fd) {
			t.Errorf("socket %d: %d epoll entries after the drain, open %v", fd, n, p.holds(t, fd))
		}
		now, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if now != flags[i] {
			t.Errorf("socket %d: status flags %#x, %#x before", fd, now, flags[i])
		}
	}
	dial(t, "unix", path) // still there
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	p.recv(t, wire.Bye)
}

// readable says whether something waits in the queue of fd.
func readable(t *testing.T, fd int) bool {
	t.Helper()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n == 1
}

// TestDeathBeforeAcceptTakesNothing kills a generation that has listeners and
// sits in Accept: the client that waited is served by another holder.
func TestDeathBeforeAcceptTakesNothing(t *testing.T) {
	fdleak.Snapshot(t)
	sock, addr := tcpSocket(t, "tcp4", "127.0.0.1:0")
	p := start(t, true, []int{sock}, listenEnv("http"), "hang", "http,tcp,")
	p.recv(t, wire.Hello)
	_, answer := dial(t, "tcp", addr)
	p.want(t, "http")
	p.want(t, "hanging")
	if code := p.exit(t); code != 7 {
		t.Errorf("exit code %d", code)
	}
	next := start(t, true, []int{sock}, listenEnv("http"), "serve", "http,tcp,")
	next.recv(t, wire.Hello)
	next.recv(t, wire.Ready)
	next.send(t, wire.Message{Verb: wire.Accept})
	if got := answer(); got != "generation 7" {
		t.Errorf("answer %q", got)
	}
}

func TestSupervisorDiesBeforeAck(t *testing.T) {
	fdleak.Snapshot(t)
	sock, _ := tcpSocket(t, "tcp4", "127.0.0.1:0")
	p := start(t, true, []int{sock}, listenEnv("http"), "serve", "http,tcp,")
	p.recv(t, wire.Hello)
	p.recv(t, wire.Ready)
	p.want(t, "http")
	_ = p.sup.Close()
	got := []string{p.line(t), p.line(t)}
	for i, want := range []string{"accept: handover: accept \"http\" tcp: the supervisor is gone", "ready: handover: ready: the supervisor is gone"} {
		if !strings.Contains(strings.Join(got, "\n"), want) {
			t.Errorf("the program said %q, want %q (%d)", got, want, i)
		}
	}
	p.want(t, "closed")
	_ = p.exit(t)
}

// TestExample runs the documented program: a request that is in flight when the
// drain begins, on a connection that was idle before, is answered.
func TestExample(t *testing.T) {
	fdleak.Snapshot(t)
	sock, addr := tcpSocket(t, "tcp4", "127.0.0.1:0")
	p := start(t, true, []int{sock}, listenEnv("http"), "example")
	p.recv(t, wire.Hello)
	p.recv(t, wire.Ready)
	p.send(t, wire.Message{Verb: wire.Accept})
	p.send(t, wire.Message{Verb: wire.Ack})
	transport := &http.Transport{MaxConnsPerHost: 1}
	defer transport.CloseIdleConnections()
	get := func() (body string, closing bool) {
		t.Helper()
		resp, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Get("http://" + addr)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return string(b), resp.Close
	}
	if body, closing := get(); body != "hello from generation 7\n" || closing {
		t.Errorf("%q, closing %v", body, closing)
	}
	p.send(t, wire.Message{Verb: wire.Drain})
	p.recv(t, wire.Draining)
	for p.polls(t, sock) > 0 {
		runtime.Gosched() // until the listener is closed
	}
	// The listener is closed first: an answer of the moment before the clients are told keeps its connection.
	for closing := false; !closing && !t.Failed(); {
		var body string
		if body, closing = get(); body != "hello from generation 7\n" {
			t.Errorf("during the drain: %q, closing %v", body, closing)
		}
	}
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, _, err := p.sup.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the end of the connection: %v", err)
	}
}

// TestSocketsByNumber: where another dialect has the numbers from 3, the
// sockets are known by HANDOVER_FD_<NAME> alone.
func TestSocketsByNumber(t *testing.T) {
	fdleak.Snapshot(t)
	a, _ := tcpSocket(t, "tcp4", "127.0.0.1:0")
	b, addr := tcpSocket(t, "tcp4", "127.0.0.1:0")
	p := start(t, true, []int{a, b}, append([]string{"HANDOVER_FD_STATS=3", "HANDOVER_FD_MY_HTTP=4"}, native...),
		"serve", "my-http,tcp,")
	p.recv(t, wire.Hello)
	p.want(t, "my-http *net.TCPAddr "+addr)
	if m := p.recv(t, wire.Ready); fmt.Sprint(m.Names) != "[my-http]" {
		t.Errorf("ready %+v", m)
	}
}

func TestSystemd(t *testing.T) {
	for _, c := range []struct {
		name, fdnames, ask string
	}{
		{"by name", "LISTEN_FDNAMES=web.socket:other", "web.socket"},
		{"nameless", "LISTEN_FDNAMES=unknown", "http"},
		{"no names", "X=", "http"},
	} {
		t.Run(c.name, func(t *testing.T) {
			notify, err := sdnotify.Listen(filepath.Join(t.TempDir(), "n"), 0o600, -1, -1)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = notify.Close() }()
			sock, addr := tcpSocket(t, "tcp", "127.0.0.1:0")
			n := strings.Count(c.fdnames, ":") + 1
			p := start(t, false, []int{sock, sock}[:n], []string{
				"LISTEN_PID=" + selfPID, fmt.Sprintf("LISTEN_FDS=%d", n), c.fdnames, "NOTIFY_SOCKET=" + notify.Path(),
			}, "once", c.ask+",tcp,")
			p.want(t, c.ask+" *net.TCPAddr "+addr)
			m, cred, err := notify.Recv()
			if err != nil || !m.Ready || int(cred.Pid) != p.pid {
				t.Errorf("%+v from %d, %v", m, cred.Pid, err)
			}
			p.want(t, "ready: <nil>")
			_, answer := dial(t, "tcp", addr)
			if got := answer(); got != "generation 0" {
				t.Errorf("answer %q", got)
			}
			_, _ = p.stdin.WriteString("x")
			p.want(t, "closed")
			if code := p.exit(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
	}
	t.Run("wrong name", func(t *testing.T) {
		sock, _ := tcpSocket(t, "tcp", "127.0.0.1:0")
		p := start(t, false, []int{sock}, []string{"LISTEN_PID=" + selfPID, "LISTEN_FDS=1", "LISTEN_FDNAMES=web.socket"},
			"once", "http,tcp,127.0.0.1:0")
		p.want(t, `listen: handover: listen "http" tcp: no such socket: inherited are ["web.socket"]`)
		if code := p.exit(t); code != 4 {
			t.Errorf("exit code %d", code)
		}
	})
}

func TestUnsupervised(t *testing.T) {
	fdleak.Snapshot(t)
	// The variables are another process's: left over, and nobody's.
	p := start(t, false, nil, []string{"LISTEN_PID=1", "LISTEN_FDS=1"}, "once", "http,tcp,127.0.0.1:0", "dns,udp,127.0.0.1:0")
	addr := strings.TrimPrefix(p.line(t), "http *net.TCPAddr ")
	p.want(t, "dns *net.UDPAddr 127.0.0.1:")
	p.want(t, "ready: <nil>")
	_, answer := dial(t, "tcp", addr)
	if got := answer(); got != "generation 0" {
		t.Errorf("answer %q", got)
	}
	_, _ = p.stdin.WriteString("x")
	p.want(t, "closed")
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestDamaged: whatever is wrong, the program binds nothing.
func TestDamaged(t *testing.T) {
	sock, _ := tcpSocket(t, "tcp", "127.0.0.1:0")
	for _, c := range []struct {
		name, want string
		control    bool
		env        []string
	}{
		{"control is no socket", "socket operation on non-socket", false, append([]string{"HANDOVER_FD=4"}, listenEnv("http")...)},
		{"control is another socket", "not a UNIX SOCK_SEQPACKET socket", false, append([]string{"HANDOVER_FD=5"}, listenEnv("http")...)},
		{"control is closed", "bad file descriptor", false, append([]string{"HANDOVER_FD=77"}, listenEnv("http")...)},
		{"a socket is closed", `socket "b": descriptor 99: `, true, append([]string{"HANDOVER_FD_HTTP=3", "HANDOVER_FD_B=99"}, native...)},
		{
			"for another process", "start the program itself, or let the script exec it", true,
			append([]string{"LISTEN_PID=1", "LISTEN_FDS=1"}, native...),
		},
		{"the supervisor is gone", "the supervisor is gone", false, append([]string{"HANDOVER_FD=6"}, listenEnv("http")...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			var null [2]int
			if err := unix.Pipe2(null[:], unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			sup, orphan, err := wire.Pair()
			if err != nil {
				t.Fatal(err)
			}
			_ = sup.Close()
			p := start(t, c.control, []int{sock, null[0], sock, orphan}, c.env, "once", "http,tcp,127.0.0.1:0")
			for _, fd := range []int{null[0], null[1], orphan} {
				_ = unix.Close(fd)
			}
			p.want(t, "inherit: handover: ")
			if got := p.out.Text(); !strings.Contains(got, c.want) {
				t.Errorf("the program said %q, want %q", got, c.want)
			}
			if code := p.exit(t); code != 3 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
