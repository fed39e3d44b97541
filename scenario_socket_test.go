//go:build linux

package handover_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/supervisor"
)

const (
	oneSocket  = `http = "tcp4://127.0.0.1:0"`
	twoSockets = oneSocket + "\n" + `extra = "tcp4://127.0.0.1:0"`
)

// A socket that a reload adds serves after it; nothing is lost on the other.
func TestScenarioListenerAdded(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{})
	kept := s.socket("web", "http")
	fresh, posts := s.fresh(s.address("web", "http")), s.posts(s.address("web", "http"))
	s.configure(childService{socket: twoSockets, env: `TESTCHILD_SOCKETS = "http extra"`})
	s.MustReload()
	extra := s.fresh(s.address("web", "extra"))
	extra.sees(2)
	fresh.sees(2)
	if now := s.socket("web", "http"); now.Inode != kept.Inode || now.Address != kept.Address {
		t.Errorf("the kept socket was %+v and is %+v", kept, now)
	}
	s.only("web", 2)
	fresh.more(50)
	r := extra.end()
	if r.Generations[1] > 0 {
		t.Errorf("generation 1 answered %d requests on a socket that it was not given", r.Generations[1])
	}
	fresh.end()
	posts.end()
	s.Stop()
}

// A socket that a reload removes is served until the commit and refused after it; nothing is lost on the other.
func TestScenarioListenerRemoved(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{socket: twoSockets, env: `TESTCHILD_SOCKETS = "http extra"`})
	fresh, posts := s.fresh(s.address("web", "http")), s.posts(s.address("web", "http"))
	extra := s.fresh(s.address("web", "extra"))
	s.configure(childService{ready: `settle = "500ms"`})
	reload := s.reloading()
	s.reaches("web", 2, supervisor.PhaseStarting)
	extra.more(20) // it is served while the new one starts
	commit := s.reaches("web", 2, supervisor.PhaseServing).Time
	reload.serves(2)
	eventually(t, "the removed socket refuses", func() bool { return extra.Snapshot().Failures[drill.KindRefused] > 0 })
	fresh.sees(2)
	s.only("web", 2)
	r := extra.Run.Stop()
	t.Logf("%-11s %6d requests  %v on the removed socket, all after the commit", "removed", r.Sent, r.Failures)
	for _, f := range r.Samples {
		if f.End.Before(commit) {
			t.Errorf("a request on the removed socket failed %v before the commit: %v", commit.Sub(f.End), f)
		}
	}
	if n := len(s.service("web").Sockets); n != 1 {
		t.Errorf("the status has %d sockets, want 1", n)
	}
	fresh.more(50)
	fresh.end()
	posts.end()

	// It may come back: on the number that it had.
	s.configure(childService{
		socket: oneSocket + "\n" + fmt.Sprintf("extra = %q", "tcp4://"+r.Load.Address), env: `TESTCHILD_SOCKETS = "http extra"`,
	})
	s.MustReload()
	s.fresh(r.Load.Address).end()
	s.Stop()
}

// refused reloads, and checks that it is refused for each of the reasons and that nothing was touched.
func (s *scene) refused(reasons ...string) {
	s.t.Helper()
	before := s.service("web")
	r, err := s.Reload(limited(s.t))
	if err != nil {
		s.t.Fatal(err)
	}
	if r.OK() || len(r.Results) != 1 || r.Results[0].Outcome != supervisor.OutcomeRefused {
		s.t.Fatalf("the reload answers %+v, want refused", r)
	}
	for _, reason := range reasons {
		if !strings.Contains(r.Results[0].Reason, reason) {
			s.t.Errorf("the reload is refused with %q, want %q in it", r.Results[0].Reason, reason)
		}
	}
	s.WaitLog("refused, nothing was changed")
	after := s.service("web")
	if !cmp.Equal(before.Sockets, after.Sockets, cmp.FilterPath(isQueued, cmp.Ignore())) || after.Reloads != before.Reloads ||
		len(after.Generations) != 1 || after.Generations[0].Generation != before.Generations[0].Generation || after.Digest != before.Digest {
		s.t.Errorf("a refused reload has changed\n%+v into\n%+v", before, after)
	}
}

func isQueued(p cmp.Path) bool { return p.Last().String() == ".Queued" }

func TestScenarioRefused(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{})
	fresh := s.fresh(s.address("web", "http"))
	foreign, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = foreign.Close() }()
	taken := foreign.Addr().String()
	added := childService{
		socket: oneSocket + "\n" + `another = "tcp4://127.0.0.1:0"` + "\n" + fmt.Sprintf("extra = %q", "tcp4://"+taken),
		env:    `TESTCHILD_SOCKETS = "http another extra"`,
	}
	s.configure(added)
	sockets := s.openSockets()
	s.refused("address already in use", taken, fmt.Sprintf("%d", os.Getpid()), "service.web.socket.extra")
	if after := s.openSockets(); after != sockets {
		t.Errorf("handoverd has %d sockets open after a refused reload, had %d", after, sockets)
	}
	s.configure(childService{socket: `http = { listen = "tcp4://127.0.0.1:0", reuse_port = true }`})
	s.refused("reuse_port", "needs a new socket", "service.web.socket.http")
	s.configure(childService{socket: `http = { lisen = "tcp4://127.0.0.1:0" }`})
	s.refused("lisen")
	if err := os.WriteFile(s.ConfigFile(), []byte("runtime_dir = \"/nowhere\"\n"+childService{}.toml(t, s.Daemon)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.refused("runtime_dir")
	fresh.more(50)

	// What refused it gone, the same configuration is taken.
	if err := foreign.Close(); err != nil {
		t.Fatal(err)
	}
	s.configure(added)
	s.MustReload()
	fresh.sees(2)
	s.fresh(taken).end()
	fresh.end()
	s.Stop()
}

// openSockets counts the sockets that are bound or listen among handoverd's descriptors; those of the control socket's
// connections come and go.
func (s *scene) openSockets() int {
	s.t.Helper()
	n := 0
	for _, fd := range s.descriptors() {
		copied := s.take(fd)
		on, err := unix.GetsockoptInt(copied, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		if err == nil && on == 1 {
			n++
		}
		_ = unix.Close(copied)
	}
	return n
}

// descriptors lists handoverd's descriptors that are sockets, by inode.
func (s *scene) descriptors() map[uint64]int {
	s.t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", s.PID)
	entries, err := os.ReadDir(dir)
	if err != nil {
		s.t.Fatal(err)
	}
	found := map[uint64]int{}
	for _, e := range entries {
		var inode uint64
		var fd int
		link, _ := os.Readlink(filepath.Join(dir, e.Name())) // one that was closed meanwhile has none
		if _, err := fmt.Sscanf(link, "socket:[%d]", &inode); err != nil {
			continue
		}
		if _, err := fmt.Sscan(e.Name(), &fd); err != nil {
			s.t.Fatal(err)
		}
		found[inode] = fd
	}
	return found
}

// take copies one of handoverd's descriptors (pidfd_getfd(2), Linux 5.6); -1 if it is gone. The caller closes it.
func (s *scene) take(fd int) int {
	s.t.Helper()
	pidfd, err := unix.PidfdOpen(s.PID, 0)
	if err != nil {
		s.t.Fatal(os.NewSyscallError("pidfd_open", err))
	}
	defer func() { _ = unix.Close(pidfd) }()
	copied, err := unix.PidfdGetfd(pidfd, fd, 0)
	if errors.Is(err, unix.EBADF) {
		return -1
	}
	if err != nil {
		s.t.Fatal(os.NewSyscallError("pidfd_getfd", err))
	}
	return copied
}

// looks are what a socket looks like in the kernel: what every holder of it shares.
type looks struct {
	Inode   uint64
	Flags   int
	Options map[string]int
	Linger  unix.Linger
	Backlog uint32
}

// socketLooks reads the flags and options of a service's sockets, through handoverd's own descriptors.
func (s *scene) socketLooks(service string) map[string]looks {
	s.t.Helper()
	fds, all := s.descriptors(), map[string]looks{}
	for _, so := range s.service(service).Sockets {
		fd := s.take(fds[so.Inode])
		if fd < 0 {
			s.t.Fatalf("handoverd does not hold socket %s, inode %d", so.Name, so.Inode)
		}
		all[so.Name] = lookAt(s.t, fd, so.Inode)
		_ = unix.Close(fd)
	}
	return all
}

// optionsSeen are read from every socket that has them.
var optionsSeen = []struct {
	name          string
	level, option int
}{
	{"SO_REUSEADDR", unix.SOL_SOCKET, unix.SO_REUSEADDR},
	{"SO_REUSEPORT", unix.SOL_SOCKET, unix.SO_REUSEPORT},
	{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE},
	{"SO_RCVBUF", unix.SOL_SOCKET, unix.SO_RCVBUF},
	{"SO_SNDBUF", unix.SOL_SOCKET, unix.SO_SNDBUF},
	{"SO_ACCEPTCONN", unix.SOL_SOCKET, unix.SO_ACCEPTCONN},
	{"SO_MARK", unix.SOL_SOCKET, unix.SO_MARK},
	{"SO_BROADCAST", unix.SOL_SOCKET, unix.SO_BROADCAST},
	{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY},
	{"TCP_DEFER_ACCEPT", unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT},
	{"TCP_FASTOPEN", unix.IPPROTO_TCP, unix.TCP_FASTOPEN},
	{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE},
	{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
	{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
	{"IPV6_V6ONLY", unix.IPPROTO_IPV6, unix.IPV6_V6ONLY},
}

func lookAt(t testing.TB, fd int, inode uint64) looks {
	t.Helper()
	l := looks{Inode: inode, Options: map[string]int{}}
	var err error
	if l.Flags, err = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil {
		t.Fatal(os.NewSyscallError("fcntl F_GETFL", err))
	}
	for _, o := range optionsSeen {
		value, err := unix.GetsockoptInt(fd, o.level, o.option)
		switch {
		case err == nil:
			l.Options[o.name] = value
		case errors.Is(err, unix.ENOPROTOOPT), errors.Is(err, unix.EOPNOTSUPP): // not of this kind of socket
		default:
			t.Fatalf("getsockopt %s: %v", o.name, err)
		}
	}
	linger, err := unix.GetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER)
	if err != nil {
		t.Fatal(os.NewSyscallError("getsockopt SO_LINGER", err))
	}
	l.Linger = *linger
	// Of a listening socket tcpi_sacked is the backlog (net/ipv4/tcp.c, tcp_get_info).
	if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
		l.Backlog = info.Sacked
	}
	return l
}

// TestScenario300Sockets: more than one message's worth of sockets, of several kinds. All are served by each generation,
// and none changes in any way that the kernel tells.
func TestScenario300Sockets(t *testing.T) {
	t.Parallel()
	const sockets, reloads = 300, 5
	var names []string
	var table strings.Builder
	for i := range sockets {
		name := fmt.Sprintf("s%03d", i)
		names = append(names, name)
		address := []string{
			`"tcp4://127.0.0.1:0"`,
			`{ listen = "tcp4://127.0.0.1:0", backlog = 17 }`,
			`{ listen = "tcp4://127.0.0.1:0", reuse_port = true }`,
			`"tcp6://[::1]:0"`,
			`"tcp://:0"`,
		}[i%5]
		fmt.Fprintf(&table, "%s = %s\n", name, address)
	}
	s := newScene(t, childService{socket: table.String(), env: fmt.Sprintf("TESTCHILD_SOCKETS = %q", strings.Join(names, " "))})
	before := s.socketLooks("web")
	if len(before) != sockets {
		t.Fatalf("the status has %d sockets, want %d", len(before), sockets)
	}
	addresses := map[string]string{}
	for _, so := range s.service("web").Sockets {
		_, address, _ := strings.Cut(so.Address, "://")
		addresses[so.Name] = strings.Replace(address, "[::]", "[::1]", 1)
	}
	visits := s.visitAll(addresses)
	for generation := 1; generation <= reloads+1; generation++ {
		if generation > 1 {
			s.MustReload()
		}
		for name, address := range addresses {
			if got, err := visit(address); err != nil || got != fmt.Sprint(generation) {
				t.Errorf("socket %s is answered by generation %q, %v, want %d", name, got, err, generation)
			}
		}
	}
	n, fails := visits()
	if len(fails) > 0 {
		t.Errorf("%d of %d requests beside the reloads failed: %v", len(fails), n, fails[0])
	}
	if diff := cmp.Diff(before, s.socketLooks("web")); diff != "" {
		t.Errorf("sockets have changed over %d reloads (-before +after):\n%s", reloads, diff)
	}
	t.Logf("%-11s %6d requests  %3d failures  allowed 0  %d sockets, %d reloads, %d looked at before and after",
		"300 sockets", n+sockets*(reloads+1), len(fails), sockets, reloads, len(before))
	s.Stop()
}

// visit asks on a connection of its own, and returns the generation.
func visit(address string) (generation string, err error) {
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + address + "/fast?n=1")
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.Header.Get("X-Generation"), err
}

// visitAll goes round all addresses until the returned function is called, which tells how that went.
func (s *scene) visitAll(addresses map[string]string) (end func() (int, []error)) {
	ctx, cancel := context.WithCancel(context.Background())
	s.t.Cleanup(cancel)
	var n int
	var fails []error
	var over sync.WaitGroup
	over.Go(func() { // waited for by end
		for {
			for _, address := range addresses {
				if ctx.Err() != nil {
					return
				}
				n++
				if _, err := visit(address); err != nil {
					fails = append(fails, err)
				}
			}
		}
	})
	return func() (int, []error) {
		cancel()
		over.Wait()
		return n, fails
	}
}

// The path of a UNIX socket is there all the time, with its mode and group, and is removed at the end.
func TestScenarioUNIXSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/dev/shm", "hds")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "web.sock")
	group, err := user.LookupGroup("daemon")
	if err != nil {
		t.Fatal(err)
	}
	s := newScene(t, childService{
		socket: fmt.Sprintf("http = { listen = %q, mode = \"0620\", group = \"daemon\" }", "unix://"+path),
		env:    `TESTCHILD_NETWORK = "unix"`,
	})
	fresh := s.load("unix", drill.Load{
		Network: "unix", Address: path, Mode: drill.ModeFresh, Clients: 8, Delay: 2 * time.Millisecond, Spread: 20 * time.Millisecond,
	})
	posts := s.load("unix posts", drill.Load{Network: "unix", Address: path, Mode: drill.ModePost, Clients: 8, Pause: 20 * time.Millisecond})
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for generation := 2; generation <= 4; generation++ {
		s.MustReload()
		fresh.sees(generation)
		posts.sees(generation)
	}
	posts.end()
	s.MustReload() // to one whose account has a connection for each request
	s.only("web", 5)
	fresh.sees(5)
	s.kill("web")
	fresh.sees(6)
	s.only("web", 6)
	fresh.more(50)
	fresh.end(dead{"web", 5})
	after, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	stat := func(i os.FileInfo) *syscall.Stat_t { return i.Sys().(*syscall.Stat_t) }
	if b, a := stat(before), stat(after); b.Ino != a.Ino || b.Mode != a.Mode || b.Uid != a.Uid || b.Gid != a.Gid {
		t.Errorf("the path was %+v and is %+v", b, a)
	}
	if a := stat(after); a.Mode&0o777 != 0o620 || fmt.Sprint(a.Gid) != group.Gid {
		t.Errorf("the path has mode %o and group %d, want 620 and %s", a.Mode&0o777, a.Gid, group.Gid)
	}
	s.Stop()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("after the stop the directory has %v, %v, want nothing", left, err)
	}
}

// Every datagram is answered once, by exactly one generation.
func TestScenarioUDP(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{mode: "udp", socket: `http = "udp4://127.0.0.1:0"`})
	// What nobody reads for so long that the receive buffer is full is lost by the kernel: it has room for some 270
	// datagrams (net.core.rmem_default), at this rate a second in which the machine has no time for the server.
	datagrams := s.load("udp", drill.Load{Network: "udp", Address: s.address("web", "http"), Mode: drill.ModeUDP, Rate: 250, Clients: 4})
	for generation := 2; generation <= 6; generation++ {
		s.MustReload()
		datagrams.sees(generation)
		datagrams.more(100)
	}
	r := datagrams.end()
	if len(r.Generations) != 6 || r.LateAnswers > 0 {
		t.Errorf("answered by %v, %d late, want by 6 generations and none late", r.Generations, r.LateAnswers)
	}
	s.Stop()
}

// IPv6, and one socket for both families.
func TestScenarioIPv6(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{
		socket: `http = "tcp6://[::1]:0"` + "\n" + `both = "tcp://:0"`, env: `TESTCHILD_SOCKETS = "http both"`,
	})
	six := s.fresh(s.address("web", "http"))
	_, port, err := net.SplitHostPort(s.address("web", "both"))
	if err != nil {
		t.Fatal(err)
	}
	bothBy6, bothBy4 := s.fresh("[::1]:"+port), s.fresh("127.0.0.1:"+port)
	posts := s.posts("[::1]:" + port)
	for generation := 2; generation <= 4; generation++ {
		s.MustReload()
		for _, tr := range []*traffic{six, bothBy6, bothBy4, posts} {
			tr.sees(generation)
		}
	}
	for _, tr := range []*traffic{six, bothBy6, bothBy4, posts} {
		tr.end()
	}
	s.Stop()
}

// Port 0 is a number once and for all: shown in the status, and kept over reloads and restarts.
func TestScenarioPort0(t *testing.T) {
	t.Parallel()
	s := newScene(t, childService{restart: "backoff_min = \"20ms\"\nbackoff_max = \"20ms\""})
	before := s.socket("web", "http")
	if before.Address == "tcp4://127.0.0.1:0" || before.Address == "" {
		t.Fatalf("the status has the address %q", before.Address)
	}
	fresh, posts := s.fresh(s.address("web", "http")), s.posts(s.address("web", "http"))
	for generation := 2; generation <= 4; generation++ {
		s.MustReload()
		fresh.sees(generation)
		posts.sees(generation)
	}
	posts.end()
	s.MustReload() // to one whose account has a connection for each request
	s.only("web", 5)
	fresh.sees(5)
	s.kill("web")
	fresh.sees(6)
	s.only("web", 6)
	if after := s.socket("web", "http"); after.Address != before.Address || after.Inode != before.Inode {
		t.Errorf("the socket was %+v and is %+v", before, after)
	}
	fresh.end(dead{"web", 5})
	s.Stop()
}
